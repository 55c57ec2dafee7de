"""CIFAR recipes: the paper's sizes are all there, and each kind of run works for a few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import headgate as hg
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.dam import Dam
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.paper import PAPER
from headgate_lab.recipes import cifar
from headgate_lab.recipes.cifar import Cifar, NetworkName
from tests.lab.recipes.few_images import few_images


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 32, 48)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)


def test_the_paper_s_sizes_are_all_there() -> None:
    found = cifar.recipes()
    assert len(set(found)) == len(found)
    printed = {
        (setting["network"], setting["dataset"], setting["strength"], number.value)
        for number, setting in ((number, number.setting) for number in PAPER["cifar"].numbers)
        if number.metric == "params"
    }
    assert printed == {(*key, strength, size) for key, sizes in cifar.TABLE.items() for strength, size in sizes.items()}


def test_gates_that_are_not_on_streams_leave_more_than_the_paper_prints() -> None:
    network, example = PreResNet(20, 100), torch.zeros(2, 3, 32, 32)
    plan = hg.find_groups(network, example)
    without = {branch.name: torch.zeros(branch.size, dtype=torch.bool) for branch in plan.branches}
    left = sum(parameter.numel() for parameter in hg.shrink(network, plan, without).parameters())
    assert left == 68_628 > min(cifar.TABLE["preresnet20", "cifar100"].values())


@pytest.mark.parametrize(("network", "gates"), [("vgg19", 16), ("preresnet20", 19)])
def test_the_paper_s_way_is_that_of_its_code(network: NetworkName, gates: int) -> None:
    recipe = cifar.paper(network, "cifar100", 0.5)
    method = recipe.pruning()
    assert isinstance(method, Dam) and method.before_norm and method.cold_start == 20
    model = method.attach(recipe.build(1.0), torch.zeros(2, 3, 32, 32))
    assert len(hg.gates(model)) == gates
    how = recipe.optimization()
    assert how.kind == "adamw"
    optimizer = torch.optim.AdamW(method.groups(model), lr=how.lr, weight_decay=how.weight_decay)
    # Weights and offsets alike.
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(1e-3, 0.05)] * 2


def test_datasets_are_not_mixed() -> None:
    jobs = [Job(Cifar("vgg19", "cifar10", "narrower"), 0), Job(Cifar("vgg19", "cifar100", "narrower"), 0)]
    assert batches(jobs, 6) == [[jobs[0]], [jobs[1]]]


def test_every_method_runs_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", lambda classes, width: PreResNet(11, classes, width))
    full = sum(parameter.numel() for parameter in PreResNet(11).parameters())
    kinds = [("paper", 0.3, None), ("ours", None, full // 3), ("narrower", None, full // 3), ("narrower", None, None)]
    kinds.append(("found", None, full // 3))
    recipes = [Cifar("preresnet20", "cifar10", *kind) for kind in kinds]  # type: ignore[arg-type]
    jobs = [Job(replace(recipe, length=4, batch_size=4, reach=0.95, lr=0.01), 0) for recipe in recipes]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run(jobs, place, Lines(), together=4) == []
    found = {record["setting"]: record["metrics"]["final"] for record in read_runs(tmp_path, "cifar")}
    assert found["preresnet20 cifar10 dense"]["params"] == full
    in_the_paper_s_way = found["preresnet20 cifar10 paper strength 0.3"]
    assert 0 <= in_the_paper_s_way["pruned_channels"] < 100
    assert in_the_paper_s_way["accuracy"] == pytest.approx(in_the_paper_s_way["accuracy_before"], abs=1e-9)
    for method in ("ours", "narrower", "found"):
        left = found[f"preresnet20 cifar10 {method} {full // 3:,} parameters"]
        assert 0.8 * (full // 3) < left["params"] <= full // 3
        assert left["accuracy"] == pytest.approx(left["accuracy_before"], abs=1e-9)
