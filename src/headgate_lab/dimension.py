"""A linear autoencoder learns how many of its channels the data needs (the paper's Figure 3a).

The data has 100 features but only r hidden factors. A gate sits on a code of 50 channels, and its offset is trained
with the weights: channels close until the next one would cost reconstruction. r are left, by Theorem 1 of the paper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.data.factors import linear_factors
from headgate_lab.models.autoencoder import LinearAutoencoder


@dataclass(frozen=True)
class DimensionConfig:
    """One run: everything that decides its outcome.

    Attributes:
        dimension: r, the number of hidden factors; below `bottleneck`.
        seed: of the data and the initial weights.
        steps: training steps, each on all samples.
        samples: number of data points.
        features: size of one data point.
        bottleneck: channels of the code at the start.
        lr: Adam's rate for the weights.
        offset_lr: the most the offset moves in one step.
        strength: weight of the penalty in the loss.
        search: the fraction of the steps in which the offset moves. After it the offset is frozen and the weights'
            rate falls to zero: an offset that still moves keeps the error from getting small.
    """

    dimension: int
    seed: int = 0
    steps: int = 2000
    samples: int = 1000
    features: int = 100
    bottleneck: int = 50
    lr: float = 0.01
    offset_lr: float = 0.01
    strength: float = 0.02
    search: float = 0.75

    def __post_init__(self) -> None:
        if not 1 <= self.dimension < self.bottleneck:
            raise ValueError(
                f"dimension {self.dimension} must lie between 1 and {self.bottleneck - 1}: "
                f"the gate looks for it among {self.bottleneck} channels"
            )
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, not {self.steps}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be 0 or more and below 2**63, not {self.seed}")

    def searching(self, step: int) -> bool:
        """Whether the offset still moves at this step."""
        return step < self.search * self.steps

    def rate(self, step: int) -> float:
        """The weights' rate at this step, as a fraction of `lr`: 1 while searching, then down to 0 in a line."""
        return 1.0 if self.searching(step) else (self.steps - step) / ((1 - self.search) * self.steps)


@dataclass(frozen=True)
class Frame:
    """The gate after `step` training steps; `error` is the squared error as a fraction of the data's mean square."""

    step: int
    offset: float
    mask: tuple[float, ...]
    error: float

    @property
    def open(self) -> int:
        """Number of open channels."""
        return sum(value > 0 for value in self.mask)


@dataclass(frozen=True)
class Trace:
    """A finished run: its config, the gate on its way, and how long it took."""

    config: DimensionConfig
    frames: tuple[Frame, ...]
    seconds: float

    @property
    def last(self) -> Frame:
        """The gate at the end."""
        return self.frames[-1]

    @property
    def exact(self) -> bool:
        """Whether the gate has found the true dimension."""
        return self.last.open == self.config.dimension


def run(config: DimensionConfig, watch: Callable[[Frame], None]) -> Trace:
    """Trains once and returns the trace; `watch` sees every frame as it comes."""
    started = time.perf_counter()
    frames = []
    for frame in train(config):
        frames.append(frame)
        watch(frame)
    return Trace(config, tuple(frames), time.perf_counter() - started)


def train(config: DimensionConfig, every: int = 10) -> Iterator[Frame]:
    """Trains, yielding a frame at the start, after every `every` steps, and at the end. The same on every call."""
    generator = torch.Generator().manual_seed(config.seed)
    data = linear_factors(config.samples, config.features, config.dimension, generator=generator)
    gate = hg.Gate(config.bottleneck, dim=-1, floor=1)
    model = LinearAutoencoder(config.features, config.bottleneck, gate, generator=generator)
    optimizer = torch.optim.Adam(hg.param_groups(model, lr=config.lr, offset_lr=config.offset_lr))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
    yield _frame(0, gate, model, data)
    for step in range(config.steps):
        hg.freeze_(model, not config.searching(step))
        loss = nn.functional.mse_loss(model(data), data) + config.strength * hg.penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % every == 0 or step + 1 == config.steps:
            yield _frame(step + 1, gate, model, data)


@torch.no_grad()
def _frame(step: int, gate: hg.Gate, model: nn.Module, data: Tensor) -> Frame:
    error = (model(data) - data).square().mean() / data.square().mean()
    return Frame(step, gate.offset.item(), tuple(gate.mask().tolist()), error.item())
