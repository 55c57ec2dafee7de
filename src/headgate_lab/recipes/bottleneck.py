"""What the experiments on gated autoencoders share: what is measured, and the problems of the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headgate as hg
from headgate_lab.data.factors import linear_factors, neural_factors, quadratic_factors
from headgate_lab.engine.job import Recipe
from headgate_lab.methods.l1 import RectifiedMask
from headgate_lab.models.autoencoder import Autoencoder, QuadraticResidual, linear, perceptron


class GatedLoss(nn.Module):
    """An autoencoder with a gate or an L1 mask on its code, as the engine's stack wants it."""

    def __init__(self, network: Autoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean squared error of reconstruction, the penalty, and how many channels are open."""
        gate = self.network.gate
        assert isinstance(gate, hg.Gate | RectifiedMask)
        penalty = gate.penalty() if isinstance(gate, RectifiedMask) else hg.penalty(gate)
        return F.mse_loss(self.network(x), x), penalty, (gate.mask() > 0).sum()


@dataclass(frozen=True)
class Problem:
    """Data of a known dimension, a network that can learn it, and the paper's settings (its Table 1 in Appendix D)."""

    data: Callable[..., Tensor]
    network: Callable[[int, int, hg.Gate, torch.Generator], Autoencoder]
    lr: float
    weight_decay: float
    strength: float
    steps: int
    offset: float


def _linear(features: int, bottleneck: int, gate: hg.Gate, generator: torch.Generator) -> Autoencoder:
    encoder = linear(features, bottleneck, bias=False, generator=generator)
    return Autoencoder(encoder, gate, linear(bottleneck, features, bias=False, generator=generator))


def _quadratic(features: int, bottleneck: int, gate: hg.Gate, generator: torch.Generator) -> Autoencoder:
    encoder = perceptron((features, 256, 256, bottleneck), nn.LeakyReLU, generator=generator)
    return Autoencoder(encoder, gate, QuadraticResidual(bottleneck, features, generator=generator))


def _neural(features: int, bottleneck: int, gate: hg.Gate, generator: torch.Generator) -> Autoencoder:
    encoder = perceptron((features, 256, 256, bottleneck), nn.ELU, generator=generator)
    return Autoencoder(encoder, gate, perceptron((bottleneck, 128, features), nn.ELU, generator=generator))


PROBLEMS = {
    "linear": Problem(linear_factors, _linear, lr=0.01, weight_decay=1e-6, strength=0.01, steps=2_000, offset=1.0),
    "quadratic": Problem(
        quadratic_factors, _quadratic, lr=0.01, weight_decay=1e-6, strength=0.01, steps=5_000, offset=5.0
    ),
    "neural": Problem(neural_factors, _neural, lr=0.001, weight_decay=0.0, strength=0.1, steps=10_000, offset=1.0),
}


@dataclass(frozen=True)
class Sizes:
    """The data: samples and features, and the channels of the code."""

    samples: int = 5_000
    features: int = 100
    bottleneck: int = 50


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Recipe):
    """What every recipe on one of the problems has.

    Attributes:
        steps: of the training, each on all samples.
        length: how many epochs the steps are divided into: metrics are kept for each.
        samples: of the data.
        features: of a sample.
        bottleneck: channels of the code.
    """

    steps: int
    length: int = 100
    samples: int = 5_000
    features: int = 100
    bottleneck: int = 50

    def __post_init__(self) -> None:
        if self.steps % self.length:
            raise ValueError(f"{self.steps} steps cannot be divided into {self.length} epochs")

    @property
    def epochs(self) -> int:
        """Pieces of the training, each of the same number of steps on all samples."""
        return self.length

    @property
    def sizes(self) -> Sizes:
        """The data's and the code's."""
        return Sizes(self.samples, self.features, self.bottleneck)


def data_of(problem: str, factors: int, sizes: Sizes, seed: int) -> Tensor:
    """Fresh data of a seed, with a random map of its own."""
    generator = torch.Generator().manual_seed(2 * seed)
    return PROBLEMS[problem].data(sizes.samples, sizes.features, factors, generator=generator)


def network_of(problem: str, sizes: Sizes, seed: int, *, offset: float, floor: int = 0) -> GatedLoss:
    """The problem's network with the weights of a seed and a gate on its code."""
    gate = hg.Gate(sizes.bottleneck, dim=-1, offset=offset, floor=floor)
    generator = torch.Generator().manual_seed(2 * seed + 1)
    return GatedLoss(PROBLEMS[problem].network(sizes.features, sizes.bottleneck, gate, generator))
