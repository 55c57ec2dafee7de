"""TinyImageNet recipes: the paper's strengths are all there, 200 classes, 64 pixels, and each kind for a few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headgate_lab.data.tinyimagenet import NORMALISATION
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.paper import PAPER
from headgate_lab.recipes import cifar, tinyimagenet
from headgate_lab.report.rows import rows
from tests.lab.recipes.few_images import few_images


def test_names_stay_and_the_paper_s_strengths_are_all_there() -> None:
    found = tinyimagenet.recipes()
    assert len({recipe.setting for recipe in found}) == len(found) == 17
    assert Job(found[0], 0).name == "ac3010cc196c"
    strengths = {number.setting["strength"] for number in PAPER["tinyimagenet"].numbers}
    assert strengths == {recipe.strength for recipe in found if recipe.method == "paper"}
    full = sum(parameter.numel() for parameter in found[-1].build(1.0).parameters())
    assert [size / full for size in tinyimagenet.SIZES] == pytest.approx([1 / 2, 1 / 4, 1 / 8], rel=1e-3)


def test_every_method_runs_at_64_pixels_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 64, 24)
    monkeypatch.setattr(cifar, "_images", {"tinyimagenet": stored}.__getitem__)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(11, classes, width))
    full = sum(parameter.numel() for parameter in PreResNet(11, 200).parameters())
    chosen = [one for one in tinyimagenet.recipes() if one.strength == 0 or one.params == 438_000]
    chosen = [one for one in chosen if one.method != "found"]  # which is tested with CIFAR
    assert [one.method for one in chosen] == ["paper", "ours", "narrower"]
    recipes = [
        replace(one, params=one.params and full // 3, length=4, batch_size=2, reach=0.95, lr=0.01) for one in chosen
    ]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in recipes], place, Lines(), together=3) == []
    records = read_runs(tmp_path, "tinyimagenet")
    for record in records:
        final, params = record["metrics"]["final"], record["config"]["params"]
        assert final["params"] <= (params or full) and final["dead"] == 0
    assert len(records) == 3
    table = rows("tinyimagenet", records)
    assert [row.ours for row in table if row.place and row.n and row.metric == "pruned_channels"] == [0.0]


def test_images_are_normalised_as_imagenet_and_shifted_by_an_eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 64, 20)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    data = tinyimagenet.recipes()[0].data()
    assert (data.images, data.normalisation, data.pad, data.flip) == (stored, NORMALISATION, 8, True)
