"""Permutations: the seed draws orders and nothing else, a different one for every gate, and it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

import headgate as hg
from headgate_lab.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.gated import permutations
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar
from headgate_lab.recipes.compared import MethodName, compared
from headgate_lab.recipes.permutation import EXPERIMENT
from headgate_lab.recipes.preresnets import ShownPreResNet
from headgate_lab.report.rows import rows
from tests.lab.recipes.few_images import few_images

CPU = torch.device("cpu")
FULL = sum(parameter.numel() for parameter in PreResNet(11).parameters())


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 8, 54)  # a tenth of which is for validation
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(11, classes, width))


def short(method: MethodName = "paper", order: str = "random") -> ShownPreResNet:
    much: dict[str, Any] = {"strength": 0.4} if method == "paper" else {"params": FULL // 2}
    parts = {"length": 4, "batch_size": 4, "reach": 0.95, "lr": 0.01}
    return compared(ShownPreResNet, "preresnet164", "cifar10", method, order=order, **much, **parts)


def started(*jobs: Job) -> Any:
    return cast(Any, ShownPreResNet.start(jobs, CPU))


def test_orders_are_told_where_they_are_drawn() -> None:
    assert [recipe.setting for recipe in EXPERIMENT.recipes()] == [
        "preresnet164 cifar10 paper strength 0.4, random order",
        "preresnet164 cifar10 ours 615,000 parameters, random order",
        "preresnet164 cifar10 paper strength 0.4",
        "preresnet164 cifar10 narrower 615,000 parameters",
        "preresnet20 cifar10 paper strength 0.2, random order",
        "preresnet20 cifar10 paper strength 0.2",
    ]


def test_seeds_draw_orders_only() -> None:
    networks = started(Job(short(), 1), Job(short(), 2)).networks.networks
    assert [network.batches.generator.initial_seed() for network in networks] == [0, 0]
    one, other = (network.model for network in networks)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in plain(one).items())
    same = [torch.equal(mine.keep(), theirs.keep()) for mine, theirs in zip(half(one), half(other), strict=True)]
    assert not any(same)


def plain(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("headgate_")}


def half(model: torch.nn.Module) -> list[Any]:
    """Its gates, half closed."""
    gates = list(hg.gates(model).values())
    with torch.no_grad():
        for gate in gates:
            gate.offset.fill_(-2.5)
    return gates


def test_every_gate_has_an_order_of_its_own_and_the_seed_s() -> None:
    model, images = PreResNet(11), torch.zeros(2, 3, 8, 8)
    orders = permutations(model, images, 5)
    drawn = started(Job(short(), 5)).networks.networks[0].model
    for name, gate in hg.gates(drawn).items():
        with torch.no_grad():
            gate.offset.fill_(-2.5)
        assert torch.equal(gate.keep(), orders[name] >= gate.n // 2)
    alike = [name for name, order in orders.items() if len(order) == 16]
    assert len(alike) > 2 and len({tuple(orders[name].tolist()) for name in alike}) == len(alike)


def test_seeds_draw_everything_else_where_the_order_is_the_index() -> None:
    one, other = (
        network.model
        for network in started(Job(short(order="index"), 1), Job(short(order="index"), 2)).networks.networks
    )
    assert not torch.equal(one.stem.weight, other.stem.weight)
    assert all(torch.equal(mine.keep(), theirs.keep()) for mine, theirs in zip(half(one), half(other), strict=True))


def test_every_kind_runs_and_is_recorded_under_its_own_name(tmp_path: Path) -> None:
    kinds = [short(), short("ours"), short(order="index"), short("narrower", "index")]
    jobs = [*(Job(recipe, 0) for recipe in kinds), Job(short(), 1)]
    assert run(jobs, Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"}), Lines(), together=8) == []
    found = read_runs(tmp_path, "preresnets")
    assert {record["recipe"] for record in found} == {"ShownPreResNet"} and len(found) == 5
    assert sorted(job.name for job in jobs) == sorted(path.name for path in (tmp_path / "preresnets").iterdir())
    for record in found:
        if record["config"]["method"] in ("ours", "narrower"):
            assert record["metrics"]["final"]["params"] <= FULL // 2
    table = [row for row in rows("permutation", found) if row.place and row.n]
    assert {row.n for row in table if row.statistic == "relative sd"} == {2}
    assert {row.setting["seed"] for row in table if row.statistic == "mean"} == {0, 1}


def test_a_training_goes_on_bit_by_bit(tmp_path: Path) -> None:
    job = Job(short("ours"), 3)
    whole, broken = started(job), started(job)
    expected = [whole.epoch() for _ in range(4)]
    assert [broken.epoch() for _ in range(2)] == expected[:2]
    save_checkpoint(tmp_path / "unfinished.pt", [], broken, Progress())
    again = started(job)
    load_checkpoint(tmp_path / "unfinished.pt", again, CPU)
    assert [again.epoch() for _ in range(2)] == expected[2:]
    assert again.finish() == whole.finish()
