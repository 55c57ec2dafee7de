"""Trained networks made small: every way for a few steps, the dense network shared, sizes met, resumed bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import headgate as hg
from headgate_lab.data import mnist
from headgate_lab.data.images import Images
from headgate_lab.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, batches, run
from headgate_lab.engine.staged import Staged
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.one_shot import OneShot
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar, pretrained
from headgate_lab.recipes.pretrained import ORDERS, NetworkName, Order, Pretrained, on_digits
from headgate_lab.report.rows import rows

CPU = torch.device("cpu")


def images(channels: int, pixels: int) -> Images:
    """Each class is a little brighter than the one before, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 10
    noise = torch.randint(0, 76, (64, channels, pixels, pixels), generator=generator)
    found = (noise + 20 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return Images(found, labels, found[:20], labels[:20], tuple("0123456789"))


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "digits_of_mnist", lambda: images(1, 28))
    monkeypatch.setattr(cifar, "_images", lambda dataset: images(3, 16))
    monkeypatch.setitem(pretrained.NETWORKS, "preresnet20", lambda width: PreResNet(11, width=width))
    monkeypatch.setattr(pretrained, "AT_ONCE", 32)


def shortened(recipe: Pretrained) -> Pretrained:
    """One epoch, then three of 16 steps."""
    return replace(recipe, length=1, tail=3, batch_size=4, reach=0.95, lr=0.001)


def test_all_are_there_once_and_names_stay() -> None:
    found = pretrained.recipes()
    assert len({recipe.setting for recipe in found}) == len(found) == 25 + 28 + 24
    assert all(recipe.length == 10 * recipe.tail for recipe in found)
    assert Job(found[0], 0).name == "d3c381a75bc6"
    assert Job(Pretrained("preresnet20", "gates", "taylor", 0.1), 2).name == "f93469c1d650"


def test_a_network_and_its_ways_are_trained_together() -> None:
    together = batches([Job(recipe, seed) for seed in (0, 1) for recipe in pretrained.recipes()], 28)
    assert {len({job.recipe.network for job in jobs}) for jobs in together} == {1}  # type: ignore[attr-defined]


# What LeNet-5 has shown for an order of closing need not be shown again.
@pytest.mark.parametrize(("network", "orders"), [("lenet5", ORDERS), ("preresnet20", ("norm_scale",))])
def test_every_way_runs_and_is_recorded(network: NetworkName, orders: tuple[Order, ...], tmp_path: Path) -> None:
    ways = [one for one in pretrained.recipes() if one.network == network and one.share in (None, 0.3)]
    ways = [one for one in ways if one.tail_lr is None]
    jobs = [Job(shortened(way), 0) for way in ways if way.order in (None, *orders)]
    assert run(jobs, Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"}), Lines(), together=28) == []
    records = read_runs(tmp_path, "pretrained")
    assert len(records) == len(jobs) == (9 if network == "lenet5" else 4)
    full = sum(parameter.numel() for parameter in pretrained.NETWORKS[network](1.0).parameters())
    for record in records:
        end, share = record["metrics"]["final"], record["config"]["share"] or 1.0
        assert 0.8 * share * full < end["params"] <= share * full
        assert end["accuracy"] == pytest.approx(end["accuracy_before"], abs=1e-9)
        assert len(record["metrics"]["epochs"]["loss"]) == 4
    told = [record["metrics"]["final"].get("dense_accuracy") for record in records]
    assert told.count(None) == 2 and len(set(told)) == 2
    assert {row.setting["method"] for row in rows("pretrained", records)} == {"gates", "one-shot", "narrower", "dense"}


def training(*ways: Pretrained, seeds: tuple[int, ...] = (0,)) -> Staged:
    started = Pretrained.start([Job(shortened(on_digits(way)), seed) for seed in seeds for way in ways], CPU)
    assert isinstance(started, Staged)
    return started


TAYLOR = Pretrained("lenet5", "gates", "taylor", 0.3)
RANDOM = Pretrained("lenet5", "gates", "random", 0.3)
ONE_SHOT = Pretrained("lenet5", "one-shot", None, 0.3)
DENSE = Pretrained("lenet5", "dense")


def test_dense_networks_are_trained_once_and_controls_go_on() -> None:
    together = training(TAYLOR, RANDOM, ONE_SHOT, DENSE, seeds=(0, 1))
    first = together.epoch()
    assert [one.epochs for one in together.networks.networks] == [1, 4, 1, 4]
    assert first[0] == first[1] == first[2] != first[4] == first[5]
    control = together.networks.networks[1]
    together.epoch()
    assert len(together.networks.networks) == 8
    assert together.networks.networks[3] is control and control.done == 2
    assert [one.done for one in together.networks.networks[:3]] == [1, 1, 1]


def test_a_tail_may_have_a_rate_of_its_own_after_the_same_beginning() -> None:
    started = training(TAYLOR, replace(TAYLOR, tail_lr=0.0002))
    assert len(started.networks.networks) == 1
    started.epoch()
    started.epoch()
    anew, gentle = (one.optimizer.param_groups[0]["lr"] for one in started.networks.networks)
    assert (float(anew), float(gentle)) == (0.001, 0.0002)


@pytest.mark.parametrize("order", ["taylor", "mutual_information", "random"])
def test_gates_are_inserted_into_the_trained_network_in_its_order(order: Order) -> None:
    started = training(replace(TAYLOR, order=order))
    started.epoch()
    dense, seen = started.networks.networks[0], images(1, 28)
    looked_at = [(mnist.NORMALISATION(seen.train_images), seen.train_labels)]
    before = {name: value.clone() for name, value in dense.model.state_dict().items()}
    fork = started.stages[1].fork
    assert fork is not None
    gated = fork(0, dense).model.eval()
    assert all(torch.equal(value, before[name]) for name, value in dense.model.state_dict().items())
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gated(x), dense.model.eval()(x))
    for name, gate in hg.gates(gated).items():
        if order == "random":
            places = torch.randperm(gate.n, generator=torch.Generator().manual_seed(0))
        else:
            places = hg.order_by(dense.model, order, looked_at, loss_fn=cross_entropy)[name]
        with torch.no_grad():
            gate.offset.fill_(-2.5)
        assert torch.equal(gate.keep(), places >= gate.n // 2)


def test_a_training_goes_on_bit_by_bit(tmp_path: Path) -> None:
    ways = (TAYLOR, ONE_SHOT, DENSE)
    whole, broken = training(*ways), training(*ways)
    expected = [whole.epoch() for _ in range(4)]
    found = []
    for _ in range(4):
        found.append(broken.epoch())
        save_checkpoint(tmp_path / "unfinished.pt", [], broken, Progress())
        broken = training(*ways)
        load_checkpoint(tmp_path / "unfinished.pt", broken, CPU)
    assert found == expected
    assert broken.networks.networks[0].at_rest is not None
    for ours, theirs in zip(broken.networks.networks, whole.networks.networks, strict=True):
        weights = theirs.model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in ours.model.state_dict().items())
    assert broken.finish() == whole.finish()


def test_a_job_ends_the_same_alone_and_beside_others() -> None:
    together = training(RANDOM, ONE_SHOT, DENSE)
    expected = [together.epoch() for _ in range(4)]
    ends = together.finish()
    for number, way in enumerate((RANDOM, ONE_SHOT, DENSE)):
        alone = training(way)
        assert [alone.epoch()[0] for _ in range(4)] == [epoch[number] for epoch in expected]
        assert alone.finish() == [ends[number]]


def test_the_smallest_size_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.NETWORKS, "preresnet20", lambda width: PreResNet(20, width=width))
    recipe = Pretrained("preresnet20", "one-shot", None, 0.1)
    cut = OneShot(recipe.params).attach(recipe.build(1.0), torch.randn(2, 3, 32, 32))
    assert 0.9 * recipe.params < sum(parameter.numel() for parameter in cut.parameters()) <= recipe.params
    assert Narrower(recipe.params).width(recipe.build, torch.zeros(2, 3, 32, 32)) < 1
