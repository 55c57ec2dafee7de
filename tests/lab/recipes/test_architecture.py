"""What is left, layer by layer: recorded as it is in the small network, and drawn from the record."""

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
from headgate_lab.outline import Outline
from headgate_lab.recipes import architecture, cifar
from headgate_lab.report.figures import picture
from tests.lab.recipes.few_images import few_images


def test_names_stay() -> None:
    found = architecture.recipes()
    assert len({recipe.setting for recipe in found}) == len(found) == 4
    assert Job(found[0], 0).name == "809aacfcb872"


def test_what_is_left_is_recorded_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 8, 54)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(20, classes, width))
    architecture._full.cache_clear()
    size = sum(parameter.numel() for parameter in PreResNet(20).parameters()) // 8
    recipes = [
        replace(recipe, params=recipe.params and size, length=4, batch_size=4, reach=0.95)
        for recipe in architecture.recipes()[1:3]
    ]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in recipes], place, Lines(), together=2) == []
    records = read_runs(tmp_path, "architecture")
    architecture._full.cache_clear()
    for record in records:
        final = record["metrics"]["final"]
        found = Outline.from_json(final["layers"], final["streams"])
        assert len(found.layers) == final["layers_left"] + final["layers_gone"] == 23
        assert len(found.streams) == 3
        if record["config"]["method"] == "ours":
            assert final["params"] <= size and sum(layer.after < layer.before for layer in found.layers) > 10
            # Streams are at least as wide as what is written into them.
            widths = {name: after for name, _, after in found.streams}
            assert all(layer.after <= widths[layer.stream] for layer in found.layers if layer.stream)
    assert picture("architecture", records).startswith(b"\x89PNG")
