"""Pre-activation residual networks of bottlenecks for small images, as Network Slimming and the paper use them."""

from __future__ import annotations

import math

from torch import Tensor, nn

from headgate_lab.models import bottleneck
from headgate_lab.models.convolution import convolved
from headgate_lab.models.norm import norm_relu
from headgate_lab.models.width import scaled

EXPANSION = 4


class Bottleneck(nn.Module):
    """Normalise, activate, convolve, three times; the input (projected where shapes change) is added at the end."""

    def __init__(self, inputs: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        outputs = planes * EXPANSION
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, inputs, H, W) to (B, 4·planes, H/stride, W/stride)."""
        if bottleneck.is_fast_for(self, x):
            return bottleneck.computed(self, x)
        out = self.conv1(norm_relu(self.bn1, x))
        out = convolved(self.conv2, norm_relu(self.bn2, out))
        out = self.conv3(norm_relu(self.bn3, out))
        result: Tensor = self.shortcut(x) + out  # in this order: where a branch is gone, memory lies as the stream does
        return result


class PreResNet(nn.Module):
    """Three stages of (depth - 2) / 9 blocks each; global average pooling, so that any image size works."""

    def __init__(self, depth: int, classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        if depth < 11 or (depth - 2) % 9:
            raise ValueError(
                f"depth={depth}: a PreResNet of bottlenecks has a depth of 9n + 2, such as 20, 56, 110, 164"
            )
        blocks = (depth - 2) // 9
        first, second, third = (scaled(planes, width) for planes in (16, 32, 64))
        self.stem = nn.Conv2d(3, first, 3, padding=1, bias=False)
        self.stage1 = _stage(first, first, blocks, stride=1)
        self.stage2 = _stage(first * EXPANSION, second, blocks, stride=2)
        self.stage3 = _stage(second * EXPANSION, third, blocks, stride=2)
        self.bn = nn.BatchNorm2d(third * EXPANSION)
        self.classifier = nn.Linear(third * EXPANSION, classes)
        self.initialise_()

    def initialise_(self) -> None:
        """Draws the weights of all convolutions from torch's generator."""
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to logits (B, classes)."""
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        logits: Tensor = self.classifier(norm_relu(self.bn, x).mean((2, 3)))
        return logits


def _stage(inputs: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(planes * EXPANSION, planes) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, planes, stride), *rest)


def initialise_(model: nn.Module) -> None:
    """Network Slimming's start: normal convolutions scaled by fan-out, BatchNorm scales of one half."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 0.5)
            nn.init.zeros_(module.bias)
