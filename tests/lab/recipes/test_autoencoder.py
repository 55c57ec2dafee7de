"""DAM and L1 on codes of digits: penalties close channels, orders are the seed's own, interruptions leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headgate as hg
from headgate_lab.data.images import Images
from headgate_lab.engine import stacked_classifier
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.l1 import RectifiedMask
from headgate_lab.recipes import autoencoder
from headgate_lab.recipes.autoencoder import TEXT_WIDTHS, DigitCode, network_of, recipes
from tests.lab.engine.straight_line import here

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ten prototypes with noise, in the place of handwritten digits."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randint(0, 200, (10, 28, 28), generator=generator)
    labels = torch.arange(300) % 10
    images = prototypes[labels] + torch.randint(0, 50, (300, 28, 28), generator=generator)
    pixels = images.to(torch.uint8).unsqueeze(1)
    digits = Images(pixels[:200], labels[:200], pixels[200:], labels[200:], tuple("0123456789"))
    monkeypatch.setattr(autoencoder, "mnist", lambda: digits)
    monkeypatch.setattr(stacked_classifier, "EPOCHS", 2)
    yield


def small(method: str, strength: float, **others: Any) -> DigitCode:
    sizes: dict[str, Any] = {"widths": (784, 16, 6), "batch": 50, "length": 3, "images": 200, "unseen": 100}
    return DigitCode(method, strength, **{**sizes, **others})


def test_names_of_runs() -> None:
    assert Job(DigitCode("dam", 0.01), 0).name == "5483dfc702cc"
    assert Job(DigitCode("l1", 25.0), 4).name == "dc8827c4d7ce"
    assert Job(DigitCode("dam", 0.01, widths=TEXT_WIDTHS), 0).name == "ed0f7bcbf80a"


def test_all_strengths_of_a_method_run_side_by_side() -> None:
    jobs = [Job(recipe, seed) for recipe in recipes() for seed in range(5)]
    assert [len(batch) for batch in batches(jobs, 125)] == [95, 125]


def test_the_network_is_the_papers() -> None:
    def widths(model: torch.nn.Module) -> list[tuple[int, int]]:
        layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        return [(layer.in_features, layer.out_features) for layer in layers]

    down = [(784, 128), (128, 64), (64, 32), (32, 50)]
    assert widths(network_of("dam", autoencoder.CODE_WIDTHS, 0)) == down + [(b, a) for a, b in reversed(down)]
    for method, kind in (("dam", hg.Gate), ("l1", RectifiedMask)):
        network = network_of(method, TEXT_WIDTHS, 0).network
        assert isinstance(network.gate, kind)
        out = network(torch.rand(3, 784) * 100)
        assert out.shape == (3, 784) and out.abs().max() <= 1


@pytest.mark.parametrize("method", ["dam", "l1"])
def test_a_record_has_dimension_error_and_score(method: str, tmp_path: Path) -> None:
    jobs = [Job(small(method, strength), seed) for strength in (0.1, 1.0) for seed in range(2)]
    assert run(jobs, here(tmp_path), Lines(), together=8) == []
    records = read_runs(tmp_path, "autoencoder")
    assert len(records) == 4
    for record in records:
        assert set(record["metrics"]["final"]) == {"dimension", "test_mse", "macro_f1"}
        loss = record["metrics"]["epochs"]["loss"]
        assert loss[0] > loss[-1] and len(loss) == 3
        assert record["metrics"]["final"]["test_mse"] == pytest.approx(loss[-1], rel=0.2)
        assert 0 <= record["metrics"]["final"]["macro_f1"] <= 1


@pytest.mark.parametrize("method", ["dam", "l1"])
def test_a_larger_strength_closes_more(method: str) -> None:
    jobs = [Job(small(method, strength, lr=0.05, length=10), 0) for strength in (0.0, 100.0)]
    training = DigitCode.start(jobs, CPU)
    metrics = [training.epoch() for _ in range(10)]
    weak, strong = ([epoch[job]["dimension"] for epoch in metrics] for job in range(2))
    assert weak[-1] > strong[-1]
    assert strong[0] == 6


@pytest.mark.parametrize("method", ["dam", "l1"])
def test_going_on_is_bit_identical(method: str) -> None:
    jobs = [Job(small(method, 1.0), seed) for seed in range(2)]
    whole, first, second = (DigitCode.start(jobs, CPU) for _ in range(3))
    epochs = [whole.epoch() for _ in range(3)]
    assert first.epoch() == epochs[0]
    second.load_state_dict(first.state_dict())
    assert [second.epoch() for _ in range(2)] == epochs[1:]
    assert second.finish() == whole.finish()


def test_alone_and_side_by_side_are_the_same() -> None:
    jobs = [Job(small("dam", 1.0), seed) for seed in (3, 1)]
    together = DigitCode.start(jobs, CPU)
    metrics = together.epoch()
    for job, beside in zip(jobs, metrics, strict=True):
        (own,) = DigitCode.start([job], CPU).epoch()
        assert own["loss"] == pytest.approx(beside["loss"], rel=1e-5)
    assert metrics[0]["loss"] != metrics[1]["loss"]


def test_every_epoch_has_an_order_of_its_own_and_meets_each_image_once() -> None:
    training = DigitCode.start([Job(small("dam", 1.0), 0), Job(small("dam", 1.0), 1)], CPU)
    orders = []
    for _ in range(2):
        training.epoch()
        assert [sorted(order.flatten().tolist()) for order in training.order] == [list(range(200))] * 2
        orders += list(training.order.clone())
    assert len({tuple(order.flatten().tolist()) for order in orders}) == 4


def test_codes_are_those_of_the_gated_encoder() -> None:
    training = DigitCode.start([Job(small("l1", 1.0), seed) for seed in range(2)], CPU)
    training.epoch()
    codes = training._codes(training.unseen)
    assert codes.shape == (2, 100, 6)
    network = training.stack.copy(1).network
    wanted = network.encode(training.unseen.float() / 127.5 - 1)
    torch.testing.assert_close(codes[1], wanted.detach())


def test_the_cohort_is_all_but_strength_and_seed() -> None:
    assert small("dam", 1.0).cohort == small("dam", 2.0).cohort != small("l1", 1.0).cohort
    assert replace(small("dam", 1.0), batch=25).cohort != small("dam", 1.0).cohort
