"""Autoencoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearAutoencoder(nn.Module):
    """Encoder and decoder without biases, and whatever module the caller puts on the code between them.

    Args:
        features: size of the last axis of input and output.
        bottleneck: size of the code.
        gate: applied to the code, shape (..., bottleneck); must keep the shape.
        generator: draws the weights, uniform in ±1/√(inputs) as `nn.Linear` does; the global generator is left alone.
    """

    def __init__(self, features: int, bottleneck: int, gate: nn.Module, *, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = _linear(features, bottleneck, generator)
        self.gate = gate
        self.decoder = _linear(bottleneck, features, generator)

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of `x`, in its shape."""
        reconstruction: Tensor = self.decoder(self.gate(self.encoder(x)))
        return reconstruction


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    assert isinstance(layer, nn.Linear)
    bound = inputs**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    return layer
