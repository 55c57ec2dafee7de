"""Sizes of the networks against the counts their papers' code gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.resnet import resnet18, resnet50, resnet_cifar
from headgate_lab.models.vgg import VGG

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    **{f"preresnet{depth}": lambda classes, depth=depth: PreResNet(depth, classes) for depth in (20, 56, 110, 164)},
    **{f"resnet{depth}": lambda classes, depth=depth: resnet_cifar(depth, classes) for depth in (20, 56, 110)},
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vgg19": VGG,
}
# Parameters with 10, 100 and 200 classes; channels of all BatchNorms.
SIZES = {
    "preresnet20": (219_482, 242_612, 268_312, 1_360),
    "preresnet56": (590_426, 613_556, 639_256, 4_048),
    "preresnet110": (1_146_842, 1_169_972, 1_195_672, 8_080),
    "preresnet164": (1_703_258, 1_726_388, 1_752_088, 12_112),
    "resnet20": (272_474, 278_324, 284_824, 784),
    "resnet56": (855_770, 861_620, 868_120, 2_128),
    "resnet110": (1_730_714, 1_736_564, 1_743_064, 4_144),
    # The usual CIFAR forms. ResNet-18 by hand: 1,856 + 147,968 + 525,568 + 2,099,712 + 8,393,728 + classifier.
    "resnet18": (11_173_962, 11_220_132, 11_271_432, 4_800),
    "resnet50": (23_520_842, 23_705_252, 23_910_152, 26_560),
    "vgg19": (20_035_018, 20_081_188, 20_132_488, 5_504),
}
# Multiply-accumulates at 32 pixels with 10 classes, and at 64 pixels with 200.
WORK = {
    "preresnet20": (33_737_216, 134_989_824),
    "preresnet56": (87_214_592, 348_899_328),
    "preresnet110": (167_430_656, 669_763_584),
    "preresnet164": (247_646_720, 990_627_840),
    "vgg19": (398_136_320, None),
}


def macs(model: nn.Module, pixels: int) -> int:
    """Multiply-accumulates of convolutions and linear layers, counted layer by layer as the image passes."""
    counted = []

    def count(layer: nn.Module, _: object, out: torch.Tensor) -> None:
        counted.append(layer.weight[0].numel() * out[0].numel())

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, pixels, pixels))
    return sum(counted)


@pytest.mark.parametrize("network", SIZES)
def test_a_network_has_the_published_size(network: str) -> None:
    models = [BUILDERS[network](classes) for classes in (10, 100, 200)]
    found = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    norms = [norm.num_features for norm in models[0].modules() if isinstance(norm, nn.BatchNorm2d)]
    assert (*found, sum(norms)) == SIZES[network]


@pytest.mark.parametrize("network", WORK)
def test_a_network_has_the_published_cost_also_at_64_pixels(network: str) -> None:
    small, large = WORK[network]
    assert macs(BUILDERS[network](10), 32) == small
    if large is not None:
        assert macs(BUILDERS[network](200), 64) == large


def test_resnet56_costs_what_others_reduce() -> None:
    assert macs(resnet_cifar(56), 32) == pytest.approx(125.8e6, rel=1e-3)


@pytest.mark.parametrize("size", [32, 64])
def test_any_image_size_works(size: int) -> None:
    images = torch.randn(2, 3, size, size)
    assert PreResNet(11)(images).shape == (2, 10)
    assert VGG(7, widths=(4, 0, 8, 0, 8, 0, 8, 0, 8))(images).shape == (2, 7)
    assert resnet_cifar(8, 200)(images).shape == (2, 200)
    assert resnet18(5, width=0.1)(images).shape == (2, 5)
    assert resnet50(5, width=0.1)(images).shape == (2, 5)


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_9n_plus_2_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="9n \\+ 2"):
        PreResNet(depth)


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_6n_plus_2_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="6n \\+ 2"):
        resnet_cifar(depth)


@pytest.mark.parametrize("build", [lambda: resnet_cifar(14), lambda: resnet50(10, 0.1)], ids=["basic", "bottleneck"])
def test_streams_and_inner_channels_go_exactly(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 16).double()
    model = build().double()
    plan = hg.find_groups(model, images)
    assert sum(group.stream for group in plan.groups) == len(model.stages)
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.normal_(), norm.bias.normal_(), norm.running_mean.normal_()
    hg.insert_gates_(model, images, floor=1)
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-2.0)
    small = hg.compact(model.eval(), images)
    expected = model(images)
    assert (small(images) - expected).abs().max() <= 1e-9 * expected.abs().max()
    assert sum(map(torch.Tensor.numel, small.parameters())) < 0.7 * sum(map(torch.Tensor.numel, model.parameters()))
