"""CKA of a layer: every method for a few steps, features that are left, and layers that are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.data.cifar import NORMALISATION
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar, cka
from headgate_lab.recipes.cka import Cka, features, summary
from headgate_lab.report.rows import rows
from headgate_lab.similarity import cka as alike
from tests.lab.recipes.few_images import few_images

IMAGES = few_images(3, 16, 48)
DATA = Resident(IMAGES.test_images, IMAGES.test_labels, NORMALISATION)


def closed(open_channels: int) -> nn.Module:
    """A compacted network whose last branch of stage 1 writes so many channels."""
    torch.manual_seed(0)
    model = PreResNet(20)
    example = DATA.normalised(DATA.images[:2], torch.float32)
    hg.insert_gates_(model, example, where=lambda name, _: name == "stage1.1.conv3:write")
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-5 * (1 - open_channels / 64) - (1e-3 if open_channels else 0.1))
    return hg.compact(model.eval(), example)


def test_names_stay_and_the_layer_is_there() -> None:
    found = cka.recipes()
    assert Job(found[0], 0).name == "dae592d9094b"
    assert isinstance(PreResNet(164).get_submodule(found[0].layer), nn.Conv2d)
    convolutions = [name for name, module in PreResNet(164).named_modules() if isinstance(module, nn.Conv2d)]
    inside = [name for name in convolutions if ".conv" in name]
    assert inside.index(found[0].layer) + 1 == 54


@pytest.mark.parametrize("count", [64, 40, 1])
def test_features_are_what_the_layer_still_computes(count: int) -> None:
    small = closed(count)
    found = features(small, "stage1.1.conv3", DATA)
    assert found is not None and found.shape == (20, count, 16, 16) and found.dtype == torch.float64
    told = Cka("preresnet164", "cifar10", "ours", layer="stage1.1.conv3").further(small, DATA)
    assert told["features"] == count and (told["cka_mean"] is None) == (count == 1)
    if count > 1:
        assert len(told["cka"]) == len(told["rbf_cka"]) == count
        one, other = found[:, 0].flatten(1), found[:, 1].flatten(1)
        assert told["cka"][0][1] == pytest.approx(alike(one, other).item(), abs=1e-4)
    assert not small.stage1[1].conv3._forward_hooks


def test_a_layer_that_is_gone_has_no_features() -> None:
    small = closed(0)
    assert features(small, "stage1.1.conv3", DATA) is None
    told = Cka("preresnet164", "cifar10", "ours", layer="stage1.1.conv3").further(small, DATA)
    assert told["features"] == 0 and told["rbf_cka_max"] is None and told["cka"] is None


def test_what_stands_beside_the_diagonal_is_summed_up() -> None:
    matrix = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]])
    told = summary("cka", matrix)
    assert told["cka_mean"] == pytest.approx(0.4) and told["cka_max"] == pytest.approx(0.6)
    assert told["cka_sd"] == pytest.approx((0.08 / 3) ** 0.5)
    assert told["cka"][0] == [1.0, 0.2, 0.4]


def test_every_method_runs_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "_images", lambda dataset: IMAGES)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(11, classes, width))
    size = sum(parameter.numel() for parameter in PreResNet(11).parameters()) // 2
    recipes = [
        replace(recipe, params=recipe.params and size, length=4, batch_size=4, reach=0.95, layer="stage1.0.conv3")
        for recipe in cka.recipes()
    ]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in recipes], place, Lines(), together=4) == []
    records = read_runs(tmp_path, "cka")
    assert len(records) == 4
    for record in records:
        final = record["metrics"]["final"]
        assert 0 < final["cka_mean"] <= final["cka_max"] <= 1 and 0 < final["rbf_cka_mean"] < 1
        assert final["features"] == len(final["cka"])
    table = rows("cka", records)
    measured = [(row.setting["method"], row.paper) for row in table if row.metric == "cka_mean" and row.n]
    assert measured == [("narrower", 0.273), ("paper", 0.229), ("narrower", None), ("ours", None)]
    assert {row.metric for row in table if row.place is not None} >= {"rbf_cka_sd", "features", "accuracy"}
