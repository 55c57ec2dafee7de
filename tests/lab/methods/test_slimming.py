"""Network Slimming: one threshold over all scales, what is below it gone, and nothing else changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.narrower import parameters
from headgate_lab.methods.norm_channels import scales
from headgate_lab.methods.slimming import Slimmed, Sparse, leaving
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def random_scales(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.copy_(torch.randn(norm.num_features, generator=generator))
                norm.bias.copy_(torch.randn(norm.num_features, generator=generator))
                norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator))
    return model.eval()


def silenced(model: nn.Module, share: float) -> nn.Module:
    """By definition: scale and shift of the smallest scales set to zero, but for the largest of each layer."""
    every = torch.cat([scale.detach().abs() for scale in scales(model).values()]).sort().values
    threshold = every[len(every) - round(share * len(every)) - 1]
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                keep = norm.weight.abs() > threshold
                keep[norm.weight.abs().argmax()] = True
                norm.weight.mul_(keep), norm.bias.mul_(keep)
    return model


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("build", [lambda: PreResNet(20), lambda: VGG(widths=(8, 0, 16, 16, 0, 8))], ids=["res", "vgg"])
def test_what_is_cut_is_what_zeroed_channels_contributed(build: object, share: float) -> None:
    torch.manual_seed(0)
    model = random_scales(build()).double()
    small = leaving(model, hg.find_groups(model, IMAGES.double(), readers=True), share)
    expected = silenced(model, share)(IMAGES.double())
    assert (small(IMAGES.double()) - expected).abs().max() <= 1e-9 * expected.abs().max()
    assert parameters(small) < parameters(model)


def test_a_stream_keeps_its_width() -> None:
    model = random_scales(PreResNet(20))
    small = leaving(model, hg.find_groups(model, IMAGES, readers=True), 0.4)
    for stage in ("stage1", "stage2", "stage3"):
        for mine, theirs in zip(getattr(small, stage), getattr(model, stage), strict=True):
            assert mine.conv3.weight.shape[0] == theirs.conv3.weight.shape[0]
    assert small.stage2[1].conv1.weight.shape[1] < model.stage2[1].conv1.weight.shape[1]
    assert small.stage2[1].conv2.weight.shape < model.stage2[1].conv2.weight.shape


def test_as_much_stays_as_the_parameters_allow() -> None:
    model = random_scales(PreResNet(20))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    limit = parameters(model) // 2
    small = Slimmed(params=limit).attach(model, IMAGES)
    assert 0.95 * limit < parameters(small) <= limit
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_penalty_s_gradient_is_the_sign() -> None:
    model = random_scales(VGG(widths=(8, 0, 16)))
    first = next(iter(scales(model).values()))
    with torch.no_grad():
        first[0] = 0.0
    Sparse(0.25).penalty(model).backward()
    gradient: Tensor = first.grad
    assert gradient.tolist() == (0.25 * first.detach().sign()).tolist() and gradient[0] == 0
    assert model.classifier.weight.grad is None
