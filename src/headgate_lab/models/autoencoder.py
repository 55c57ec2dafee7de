"""Autoencoders with room for a gate on their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from headgate_lab.models.width import scaled


class Autoencoder(nn.Module):
    """Encoder, whatever module the caller puts on the code, decoder. The gate must keep the code's shape."""

    def __init__(self, encoder: nn.Module, gate: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.gate = gate
        self.decoder = decoder

    def encode(self, x: Tensor) -> Tensor:
        """The code of `x`, behind the gate."""
        code: Tensor = self.gate(self.encoder(x))
        return code

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of `x`, in its shape."""
        reconstruction: Tensor = self.decoder(self.encode(x))
        return reconstruction


class QuadraticResidual(nn.Module):
    """(W₁x)∘(W₂x) + W₁x + b, the QRes layer; all uniform in ±1/√inputs, drawn from `generator`."""

    def __init__(self, inputs: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(inputs, outputs, bias=False, generator=generator)
        self.factor = linear(inputs, outputs, bias=False, generator=generator)
        self.bias = nn.Parameter(nn.init.uniform_(torch.empty(outputs), *_bounds(inputs), generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, inputs) to (…, outputs)."""
        straight: Tensor = self.linear(x)
        factor: Tensor = self.factor(x)
        return straight * factor + straight + self.bias


def linear(inputs: int, outputs: int, *, bias: bool = True, generator: torch.Generator) -> nn.Linear:
    """A linear layer drawn as `nn.Linear` does, uniform in ±1/√inputs; the global generator is left alone."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    assert isinstance(layer, nn.Linear)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, *_bounds(inputs), generator=generator)
    return layer


def perceptron(
    widths: Sequence[int], activation: Callable[[], nn.Module], *, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers of these widths with activations between them, none at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [linear(inputs, outputs, generator=generator), activation()]
    return nn.Sequential(*layers[:-1])


def digits_autoencoder(width: float = 1.0) -> nn.Sequential:
    """Of images of 28 by 28 pixels, through a code of 32 numbers; what is inside at a fraction of its width."""
    hidden, code = scaled(256, width), scaled(32, width)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, code)),
        *(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 784), nn.Unflatten(1, (1, 28, 28))),
    )


def _bounds(inputs: int) -> tuple[float, float]:
    return -(inputs**-0.5), inputs**-0.5
