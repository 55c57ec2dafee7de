"""LeNet-5 in the two forms that papers prune, for images of 28 by 28."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from headgate_lab.models.width import scaled


class LeNet5(nn.Module):
    """Channels 6-16-120, then 84 units: 61,706 parameters, with an activation of the caller's after each.

    Args:
        activation: applied to every hidden layer.
        width: a fraction of all widths.
        gate: makes a module for a number of channels; one each stands on the channels 6, 16 and 120.
        gate_first: whether these stand before the activation instead of after it.
    """

    def __init__(
        self,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        width: float = 1.0,
        gate: Callable[[int], nn.Module] = lambda channels: nn.Identity(),
        gate_first: bool = False,
    ) -> None:
        super().__init__()
        first, second, third, fourth = (scaled(size, width) for size in (6, 16, 120, 84))
        self.activation, self.gate_first = activation, gate_first
        self.gate1, self.gate2, self.gate3 = gate(first), gate(second), gate(third)
        self.conv1 = nn.Conv2d(1, first, 5, padding=2)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.conv3 = nn.Conv2d(second, third, 5)
        self.hidden = nn.Linear(third, fourth)
        self.classifier = nn.Linear(fourth, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 1, 28, 28) to logits (B, 10)."""
        x = max_pool2d(self._gated(self.conv1(x), self.gate1), 2)
        x = max_pool2d(self._gated(self.conv2(x), self.gate2), 2)
        x = self._gated(self.conv3(x), self.gate3).flatten(1)
        logits: Tensor = self.classifier(self.activation(self.hidden(x)))
        return logits

    def _gated(self, x: Tensor, gate: nn.Module) -> Tensor:
        result: Tensor = self.activation(gate(x)) if self.gate_first else gate(self.activation(x))
        return result


class LeNet5Caffe(nn.Module):
    """Channels 20-50, then 500 units: 431,080 parameters; one ReLU only, after the hidden layer, as Caffe has it."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        first, second, third = (scaled(size, width) for size in (20, 50, 500))
        self.conv1 = nn.Conv2d(1, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.hidden = nn.Linear(16 * second, third)
        self.classifier = nn.Linear(third, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 1, 28, 28) to logits (B, 10)."""
        x = max_pool2d(self.conv1(x), 2)
        x = max_pool2d(self.conv2(x), 2)
        logits: Tensor = self.classifier(torch.relu(self.hidden(x.flatten(1))))
        return logits
