"""The budget's ablation: one thing changed at a time, each for a few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import budget, cifar
from headgate_lab.recipes.budget import LARGE
from tests.lab.recipes.few_images import few_images


def test_each_changes_one_thing_but_the_best_together() -> None:
    found = budget.recipes()
    assert len({recipe.setting for recipe in found}) == len(found) == 21
    assert [recipe.setting.partition(", ")[2] for recipe in found if recipe.params == LARGE] == [
        "as by default",
        "weigh mean",
        "branches False",
        "scale plain",
        "bake False",
        "reach 0.25",
        "reach 0.75",
        "reach 0.25, branches False",
        "streams False",
    ]


def test_every_kind_runs_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 16, 48)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", lambda classes, width: PreResNet(11, classes, width))
    size = 2 * sum(parameter.numel() for parameter in PreResNet(11, 100).parameters()) // 3
    chosen = [recipe for recipe in budget.recipes() if recipe.params == LARGE and recipe.reach == 0.5]
    shortened = [replace(one, params=size, length=4, batch_size=4, reach=0.95, lr=0.01) for one in chosen]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in shortened], place, Lines(), together=8) == []
    ends = [record["metrics"]["final"] for record in read_runs(tmp_path, "budget")]
    assert len(ends) == 6
    for end in ends:
        assert 0.8 * size < end["params"] <= size
        assert end["accuracy"] == pytest.approx(end["accuracy_before"], abs=1e-9)
