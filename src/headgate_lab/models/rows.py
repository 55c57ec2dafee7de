"""A convolution of which some output channels are silent."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import conv2d


class RowsConv2d(nn.Conv2d):
    """A convolution that writes into some of its output channels only; `rows` is one for these, zero for others."""

    rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The others are zero, and stay so."""
        return conv2d(x, self.masked(), None, self.stride, self.padding, self.dilation)

    def masked(self) -> Tensor:
        """The weight that is used."""
        return self.weight * self.rows
