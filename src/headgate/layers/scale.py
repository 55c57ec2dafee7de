"""What is left of a gate that was placed by hand."""

from __future__ import annotations

from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies channels along `dim` by fixed numbers, the buffer `gain`: what is left of a hand-placed gate.

    Example:
        >>> Scale(torch.tensor([0.5, 2.0]), dim=1)(torch.ones(1, 2))
        tensor([[0.5000, 2.0000]])
    """

    gain: Tensor

    def __init__(self, gain: Tensor, dim: int) -> None:
        super().__init__()
        self.register_buffer("gain", gain)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the numbers, in x's own dtype."""
        shape = [1] * x.dim()
        shape[self.dim] = len(self.gain)
        return x * self.gain.to(x.dtype).view(shape)

    def extra_repr(self) -> str:
        """How many channels, and along which axis."""
        return f"{len(self.gain)}, dim={self.dim}"
