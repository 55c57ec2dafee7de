"""DAM in the paper's way, where nothing keeps a gate from closing altogether: what is left of such a network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.dam import in_the_paper_s_way
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from tests.surgery.exactness import LIMIT, error, outputs, randomise_

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
METHOD = in_the_paper_s_way(1.0, 0)


def closed(model: nn.Module, *names: str) -> nn.Module:
    """With these gates wholly closed, by as much as a penalty brings them."""
    gated = METHOD.attach(randomise_(model).double(), IMAGES)
    with torch.no_grad():
        for name in names:
            hg.gates(gated)[name].offset.fill_(-5.2)
    return gated.eval()


def compacted(model: nn.Module, images: Tensor = IMAGES) -> nn.Module:
    """The small network, which computes the same."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = METHOD.small(model, images)
    assert error(outputs(model, 2 * images), outputs(small, 2 * images)) < LIMIT
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return small


@pytest.mark.parametrize("layer", ["stage1.1.conv1", "stage2.1.conv2", "stage3.0.conv2", "stem"])
def test_of_an_empty_layer_one_channel_is_left_that_passes_on_what_norms_make_of_nothing(layer: str) -> None:
    small = compacted(closed(PreResNet(20), layer))
    assert [small.get_submodule(layer).out_channels] == [1]


def test_a_branch_that_writes_nothing_goes_as_a_whole() -> None:
    small = compacted(closed(PreResNet(20), "stage1.1.conv3:write", "stage1.1.conv2"))
    gone = {name for name, _ in PreResNet(20).named_parameters()} - {name for name, _ in small.named_parameters()}
    assert gone and all(name.startswith("stage1.1.") for name in gone)


def test_a_layer_in_no_branch_makes_the_network_say_one_thing() -> None:
    small = compacted(closed(VGG(widths=(8, 0, 8)), "features.4"))
    told = small(IMAGES)
    torch.testing.assert_close(told, told[:1].expand_as(told))
