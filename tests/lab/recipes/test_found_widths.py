"""Found widths with fresh weights: the widths are those of the budget, the weights are nobody's, and it resumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.engine.job import FAILED, Job, Training
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar
from headgate_lab.recipes.cifar import Cifar
from headgate_lab.recipes.found_widths import drawn_anew_
from tests.lab.recipes.few_images import few_images

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 16, 48)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", lambda classes, width: PreResNet(11, classes, width))


def job(method: str) -> Job:
    full = sum(parameter.numel() for parameter in PreResNet(11).parameters())
    recipe = Cifar(
        "preresnet20", "cifar10", method, params=full // 3, length=5, batch_size=4, reach=0.8, lr=0.01, train_on=False
    )
    return Job(recipe, 3)


def trained(training: Training, epochs: int) -> list[object]:
    return [training.epoch() for _ in range(epochs)]


def shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def test_the_widths_are_the_budget_s_and_the_weights_are_fresh() -> None:
    found, ours = (cast(Any, Cifar.start([job(method)], CPU)) for method in ("found", "ours"))
    assert trained(found, 4) == trained(ours, 4)
    network = ours.networks[0]
    small = network.method.small(network.model, torch.zeros(2, 3, 16, 16))
    found.turn()
    fresh = found.networks.networks[0].model
    assert shapes(fresh) == shapes(small)
    drawn_anew_(small, 3)
    assert all(torch.equal(value, small.state_dict()[name]) for name, value in fresh.state_dict().items())
    assert not torch.equal(fresh.stem.weight, PreResNet(11).stem.weight[: len(fresh.stem.weight)])


def test_drawing_anew_leaves_the_generator_and_nothing_of_a_training() -> None:
    torch.manual_seed(7)
    model, built = PreResNet(11), torch.random.get_rng_state()
    model(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    drawn_anew_(model, 7)
    assert torch.equal(torch.random.get_rng_state(), built)
    assert not model.bn.running_mean.any() and model.bn.num_batches_tracked == 0
    again = PreResNet(11)
    drawn_anew_(again, 7)
    assert torch.equal(model.classifier.weight, again.classifier.weight)
    assert torch.equal(model.stem.weight, again.stem.weight)


def test_a_network_that_has_diverged_has_no_widths_and_does_not_stop_the_others() -> None:
    found = cast(Any, Cifar.start([job("found"), job("found")], CPU))
    trained(found, 4)
    with torch.no_grad():
        for parameter in found.networks.networks[1].model.parameters():
            parameter.fill_(torch.nan)
    trained(found, 5)
    alive, dead = found.finish()
    assert (alive["dead"], dead["dead"], dead["params"]) == (0, 1, None)


@pytest.mark.parametrize("method", ["found", "ours"])
def test_a_network_that_cannot_be_cut_does_not_stop_the_others(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as it is, and says in the end that there is no result."""
    one = replace(cast(Cifar, job(method).recipe), train_on=True)
    together = cast(Any, Cifar.start([Job(one, 0), Job(one, 1)], CPU))
    network, small = together.networks if method == "ours" else together.networks.networks, Budgeted.small
    models = [id(each.model) for each in network]

    def failing(budgeted: Budgeted, model: nn.Module, example: Tensor) -> nn.Module:
        if id(model) == models[1]:
            raise hg.CompactionError("outputs differ")
        return small(budgeted, model, example)

    monkeypatch.setattr(Budgeted, "small", failing)
    trained(together, 9 if method == "found" else 5)
    alive, failed = together.finish()
    assert alive["dead"] == 0 and failed == {FAILED: "outputs differ"}


def test_it_resumes_in_either_part() -> None:
    whole = Cifar.start([job("found")], CPU)
    expected = trained(whole, 9)
    for interrupted in (2, 6):
        first, second = Cifar.start([job("found")], CPU), Cifar.start([job("found")], CPU)
        trained(first, interrupted)
        second.load_state_dict(first.state_dict())
        assert trained(second, 9 - interrupted) == expected[interrupted:]
        assert second.finish() == whole.finish()
