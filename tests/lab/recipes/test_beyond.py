"""Against others: their sizes are ours, each kind runs for a few steps, and targets can be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.resnet import ResNet, resnet_cifar
from headgate_lab.models.vgg import VGG
from headgate_lab.paper import PAPER
from headgate_lab.recipes import beyond, cifar
from headgate_lab.report.rows import rows
from tests.lab.recipes.few_images import few_images


def test_names_stay_and_epochs_are_no_more_than_theirs() -> None:
    found = beyond.recipes()
    assert len({recipe.setting for recipe in found}) == len(found) == 18
    assert Job(found[0], 0).name == "468d09c3c1ed"
    theirs = {"DepGraph": 400, "OCSPruner": 300, "HESSO": 100}
    assert all(recipe.length <= theirs[recipe.against] for recipe in found if recipe.against is not None)
    assert len(PAPER["beyond"].numbers) == 2 * len(beyond.TARGETS)


@pytest.mark.parametrize(
    ("network", "times"), [("resnet56", (2.13, 2.57, 2.0)), ("vgg19", (8.92,))], ids=["resnet56", "vgg19"]
)
def test_costs_are_no_higher_than_theirs(network: str, times: tuple[float, ...]) -> None:
    found = [macs for name, _, _, macs, _, _ in beyond.TARGETS if name == network]
    assert all(1 / macs >= fewer > 0.99 / macs for macs, fewer in zip(found, times, strict=True))


def test_resnet18_loses_92_percent() -> None:
    (size,) = [params for name, _, _, _, params, _ in beyond.TARGETS if name == "resnet18"]
    assert 0.92 <= 1 - size / 11_173_962 < 0.9202


def test_every_kind_runs_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 16, 48)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    small: dict[cifar.NetworkName, Callable[[int, float], nn.Module]] = {
        "resnet56": lambda classes, width: resnet_cifar(8, classes, width),
        "resnet18": lambda classes, width: ResNet((1, 1), (16, 32), classes, width),
        "vgg19": lambda classes, width: VGG(classes, (16, 0, 32, 0, 32), width),
    }
    for name, build in small.items():
        monkeypatch.setitem(cifar.NETWORKS, name, build)
    chosen = [one for one in beyond.recipes() if one.against and one.macs in (None, 0.469, 0.112)]
    costs = {0.469: 0.469, 0.112: 0.4, None: None}  # so small a network cannot lose as much
    recipes = [
        replace(one, macs=costs[one.macs], params=one.params and 9_000, length=4, batch_size=4, reach=0.95, lr=0.01)
        for one in chosen
    ]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in recipes], place, Lines(), together=6) == []
    records = read_runs(tmp_path, "beyond")
    assert len(records) == len(chosen) == 9
    for record in records:
        config, final = record["config"], record["metrics"]["final"]
        full = small[config["network"]](10 if config["dataset"] == "cifar10" else 100, 1.0)
        before = hg.cost(full, torch.zeros(1, 3, 16, 16))
        assert final["macs"] <= config.get("macs", 1.0) * before.macs
        assert final["params"] <= (config["params"] or before.params)
        assert final["accuracy"] == pytest.approx(final["accuracy_before"], abs=1e-9)
    table = rows("beyond", records)
    assert [row.paper for row in table if row.place and row.n and row.metric == "accuracy"] == [93.77]


@pytest.mark.parametrize("number", [1, 3, 4], ids=lambda number: beyond.TARGETS[number][0])
def test_the_smallest_target_of_a_network_can_be_reached(number: int) -> None:
    recipe = [one for one in beyond.recipes() if one.method == "ours"][number]
    method, images = recipe.pruning(), torch.zeros(2, 3, 32, 32)
    model = method.attach(recipe.build(1.0), images)
    assert method.companion(model, recipe.length * 391) is not None  # it would have been refused
