"""CKA of a layer: features that are left, and layers that are gone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.data.cifar import NORMALISATION
from headgate_lab.engine.images import Resident
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.paper.preresnets import LITTLE
from headgate_lab.recipes.features import features, likeness, summary
from headgate_lab.recipes.preresnets import LAYERS
from headgate_lab.similarity import cka
from tests.lab.recipes.few_images import few_images

IMAGES = few_images(3, 16, 48)
DATA = Resident(IMAGES.test_images, IMAGES.test_labels, NORMALISATION)


def closed(open_channels: int, gate: str = "stage1.1.conv2", size: int = 16) -> nn.Module:
    """A compacted network in which a gate has so many channels left."""
    torch.manual_seed(0)
    model = PreResNet(20)
    example = DATA.normalised(DATA.images[:2], torch.float32)
    hg.insert_gates_(model, example, where=lambda name, _: name == gate, floor=1)
    with torch.no_grad():
        for one in hg.gates(model).values():
            one.offset.fill_(-5 * (1 - open_channels / size) - (1e-3 if open_channels else 0.1))
    return hg.compact(model.eval(), example)


def test_the_layer_is_the_54th() -> None:
    """And so far into a little network as well, at the end of its first stage."""
    layers = list(PreResNet(164).named_modules())
    convolutions = [name for name, module in layers if isinstance(module, nn.Conv2d) and "shortcut" not in name]
    norms = [name for name, module in layers if isinstance(module, nn.BatchNorm2d)]
    assert convolutions[53] == LAYERS["preresnet164"] and norms[53] == "stage1.17.bn3"
    assert LAYERS[LITTLE] == f"stage1.{len(PreResNet(20).stage1) - 1}.conv2"


@pytest.mark.parametrize("count", [16, 10, 1])
def test_features_are_what_the_layer_still_computes(count: int) -> None:
    small = closed(count)
    found = features(small, "stage1.1.conv2", DATA)
    assert found is not None and found.shape == (20, count, 16, 16) and found.dtype == torch.float64
    final = likeness(small, "stage1.1.conv2", DATA)
    assert final["features"] == count and (final["cka_mean"] is None) == (count == 1)
    if count > 1:
        assert len(final["cka"]) == len(final["rbf_cka"]) == count
        one, other = found[:, 0].flatten(1), found[:, 1].flatten(1)
        assert final["cka"][0][1] == pytest.approx(cka(one, other).item(), abs=1e-4)
    assert not small.stage1[1].conv2._forward_hooks


def test_the_norm_behind_the_layer_changes_nothing() -> None:
    small = closed(10)
    with torch.no_grad():
        small.stage1[1].bn3.weight.normal_(generator=torch.Generator().manual_seed(0))
        small.stage1[1].bn3.bias.normal_(generator=torch.Generator().manual_seed(1))
    before, after = likeness(small, "stage1.1.conv2", DATA), likeness(small, "stage1.1.bn3", DATA)
    assert all(after[name] == pytest.approx(before[name], abs=1e-5) for name in ("cka_mean", "rbf_cka_mean", "cka_max"))


def test_zeros_that_a_branch_writes_are_no_features() -> None:
    assert likeness(closed(40, "stage1.1.conv3:write", 64), "stage1.1.conv3", DATA)["features"] == 40


def test_a_layer_that_is_gone_has_no_features() -> None:
    small = closed(0, "stage1.1.conv3:write", 64)
    assert features(small, "stage1.1.conv2", DATA) is None
    final = likeness(small, "stage1.1.conv2", DATA)
    assert final["features"] == 0 and final["rbf_cka_max"] is None and final["cka"] is None


def test_what_is_no_number_is_not_recorded() -> None:
    matrix = torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]])
    assert set(summary("cka", matrix).values()) == {None}


def test_what_stands_beside_the_diagonal_is_summed_up() -> None:
    matrix = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]])
    final = summary("cka", matrix)
    assert final["cka_mean"] == pytest.approx(0.4) and final["cka_max"] == pytest.approx(0.6)
    assert final["cka_sd"] == pytest.approx((0.08 / 3) ** 0.5)
    assert final["cka"][0] == pytest.approx([1.0, 0.2, 0.4])
