"""DAM in the paper's way, where nothing keeps a gate from closing altogether: what is left of such a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.methods.dam import in_the_paper_s_way
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
METHOD = in_the_paper_s_way(1.0, 0)


def closed(model: nn.Module, *names: str) -> nn.Module:
    """With these gates wholly closed, by as much as a penalty brings them."""
    gated = METHOD.attach(model, IMAGES)
    with torch.no_grad():
        for name in names:
            hg.gates(gated)[name].offset.fill_(-5.2)
    return gated.eval()


@pytest.mark.parametrize("layer", ["stage1.1.conv1", "stage2.1.conv2", "stage3.0.conv2", "stage1.1.conv3:write"])
def test_a_branch_with_an_empty_layer_goes_and_the_rest_stays(layer: str) -> None:
    model = closed(PreResNet(20), layer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = METHOD.small(model, IMAGES)
    block = layer.rpartition(".")[0]
    gone = {name for name, _ in PreResNet(20).named_parameters()} - {name for name, _ in small.named_parameters()}
    assert gone and all(name.startswith(f"{block}.") and "shortcut" not in name for name in gone)
    assert small(IMAGES).isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_goes_is_what_a_branch_would_lose_that_writes_nothing() -> None:
    torch.manual_seed(0)
    build = PreResNet(20)
    weights = build.state_dict()
    empty = METHOD.small(closed(build, "stage2.1.conv1", "stage2.1.conv2"), IMAGES)
    again = PreResNet(20)
    again.load_state_dict(weights)
    silent = METHOD.small(closed(again, "stage2.1.conv3:write"), IMAGES)
    assert torch.equal(empty(IMAGES), silent(IMAGES))


@pytest.mark.parametrize(
    ("build", "layer"), [(lambda: PreResNet(20), "stem"), (lambda: VGG(widths=(8, 0, 8)), "features.4")]
)
def test_nothing_goes_around_a_layer_that_is_in_no_branch(build: type[nn.Module], layer: str) -> None:
    with pytest.raises(hg.GateError, match=f"'{layer}' has closed all"):
        METHOD.small(closed(build(), layer), IMAGES)
