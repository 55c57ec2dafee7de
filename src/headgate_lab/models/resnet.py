"""Post-activation residual networks for small images: He et al.'s three stages, and the ImageNet ones in CIFAR form.

The three-stage networks are ChipNet's (1×1 projections where shapes change). In CIFAR form ResNet-18 and -50 begin with
one 3×3 convolution and no pooling, as OTO and DepGraph prune them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

from headgate_lab.models.convolution import convolved
from headgate_lab.models.norm import norm_relu
from headgate_lab.models.width import scaled

EXPANSION = 4


class Basic(nn.Module):
    """Two 3×3 convolutions; the input (projected where shapes change) is added before the last activation."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, inputs, H, W) to (B, planes, H/stride, W/stride)."""
        out = norm_relu(self.bn1, convolved(self.conv1, x))
        return relu(self.bn2(convolved(self.conv2, out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Convolutions of 1×1, 3×3 and 1×1, the last four times as wide; added and activated like `Basic`."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * EXPANSION
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, inputs, H, W) to (B, 4·planes, H/stride, W/stride)."""
        out = norm_relu(self.bn1, self.conv1(x))
        out = norm_relu(self.bn2, convolved(self.conv2, out))
        return relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of blocks, each but the first halving the image; global average pooling, so that any image size works.

    Args:
        blocks: how many there are in each stage.
        planes: the width of each stage, at a width of 1.
        classes: outputs.
        width: a fraction of all widths.
        bottleneck: whether blocks are bottlenecks.
    """

    def __init__(
        self, blocks: Sequence[int], planes: Sequence[int], classes: int, width: float, *, bottleneck: bool = False
    ) -> None:
        super().__init__()
        block, expansion = (Bottleneck, EXPANSION) if bottleneck else (Basic, 1)
        widths = [scaled(size, width) for size in planes]
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        stages, inputs = [], widths[0]
        for number, (count, size) in enumerate(zip(blocks, widths, strict=True)):
            streams = [inputs, *[size * expansion] * count]
            strides = [1 if number == 0 else 2, *[1] * (count - 1)]
            pairs = zip(pairwise(streams), strides, strict=True)
            stages.append(nn.Sequential(*(block(before, size, stride) for (before, _), stride in pairs)))
            inputs = streams[-1]
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(inputs, classes)
        self.initialise_()

    def initialise_(self) -> None:
        """Draws the weights of convolutions and classifier from torch's generator."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.classifier.weight, 0.0, 0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to logits (B, classes)."""
        x = self.stages(norm_relu(self.bn, self.stem(x)))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


def resnet_cifar(depth: int, classes: int = 10, width: float = 1.0) -> ResNet:
    """Three stages of (depth - 2) / 6 basic blocks, 16, 32 and 64 wide: ResNet-20, -56, -110."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth={depth}: a ResNet of basic blocks has a depth of 6n + 2, such as 20, 56, 110")
    return ResNet([(depth - 2) // 6] * 3, (16, 32, 64), classes, width)


def resnet18(classes: int = 10, width: float = 1.0) -> ResNet:
    """ResNet-18 for small images."""
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), classes, width)


def resnet50(classes: int = 10, width: float = 1.0) -> ResNet:
    """ResNet-50 for small images."""
    return ResNet((3, 4, 6, 3), (64, 128, 256, 512), classes, width, bottleneck=True)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
