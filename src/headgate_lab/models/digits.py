"""A small residual network for images of 8 by 8 pixels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu


class Block(nn.Module):
    """Two convolutions with BatchNorm, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, channels, H, W), kept."""
        inner = relu(self.bn1(self.conv1(x)))
        return relu(x + self.bn2(self.conv2(inner)))


class DigitsNet(nn.Module):
    """A convolution and a residual block at 8 by 8, the same with twice the width at 4 by 4, one linear layer.

    Args:
        width: channels of the first half; the second half has twice as many.
    """

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.block1 = Block(width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.block2 = Block(2 * width)
        self.classifier = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 1, 8, 8) to logits (B, 10)."""
        x = self.block1(relu(self.bn1(self.stem(x))))
        x = self.block2(relu(self.bn2(self.down(x))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits
