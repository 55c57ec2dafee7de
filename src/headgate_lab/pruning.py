"""The demo: a residual network learns on handwritten digits how narrow it can be, and is cut to that size.

`train_gated` is the program a user would write: an ordinary loop with five lines of headgate in it. The two other
networks are its controls, trained by the same recipe without gates: the full one, and one made uniformly narrower.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg
from headgate_lab.data.digits import Digits
from headgate_lab.models.digits import DigitsNet

# A budget refuses to close gates faster.
FEWEST_EPOCHS = 6


@dataclass(frozen=True)
class PruningConfig:
    """Everything that decides the outcome of the demo.

    Attributes:
        seed: of the initial weights and the order of the images.
        epochs: of each of the three trainings.
        params: the fraction of the parameters wanted.
        width: of the network at the start.
        batch: images a step.
        lr: SGD's rate for the weights; it falls along half a cosine once the offsets have come to rest.
        weight_decay: of the weights.
        cold: the fraction of the training at the start in which gates do not move: the weights learn first.
        settle: the fraction at the end in which they do not: the weights get used to what is left.
    """

    seed: int = 0
    epochs: int = 24
    params: float = 0.1
    width: int = 24
    batch: int = 64
    lr: float = 0.1
    weight_decay: float = 5e-4
    cold: float = 0.125
    settle: float = 0.5

    def __post_init__(self) -> None:
        if self.epochs < FEWEST_EPOCHS:
            raise ValueError(f"epochs must be {FEWEST_EPOCHS} or more, not {self.epochs}: gates need time to close")
        if not 0 < self.params < 1:
            raise ValueError(f"params must lie between 0 and 1, not {self.params}: it is the fraction that is wanted")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be 0 or more and below 2**63, not {self.seed}")

    def phase(self, epoch: int) -> str:
        """What the gates may do in this epoch, counted from 0."""
        if epoch < self.cold * self.epochs:
            return "cold start"
        return "gates settled" if epoch >= (1 - self.settle) * self.epochs else "gates moving"

    def rate(self, epoch: int) -> float:
        """The weights' rate in this epoch, as a fraction of `lr`."""
        settled = epoch / self.epochs - (1 - self.settle)
        return 1.0 if settled <= 0 else 0.5 * (1 + math.cos(math.pi * settled / self.settle))


@dataclass(frozen=True)
class Bar:
    """One gate: its name, and its open and all units."""

    name: str
    open: int
    total: int


@dataclass(frozen=True)
class Frame:
    """A network after an epoch: mean task loss and test accuracy; of a gated one also what compaction would leave."""

    run: str
    epoch: int
    loss: float
    accuracy: float
    bars: tuple[Bar, ...] = ()
    channels: float = 1.0
    params: float = 1.0


Watch = Callable[[Frame], None]


def make(config: PruningConfig, width: int | None = None) -> DigitsNet:
    """A fresh network, the same at every call; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return DigitsNet(config.width if width is None else width)


def train_gated(config: PruningConfig, data: Digits, watch: Watch) -> DigitsNet:
    """The network with its gates, trained."""
    model = make(config)
    example = data.train_images[:2]
    hg.insert_gates_(model, example)
    groups = hg.param_groups(model, lr=config.lr, weight_decay=config.weight_decay)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
    steps = config.epochs * math.ceil(len(data.train_images) / config.batch)
    budget = hg.Budget(model, example, params=config.params, steps=steps, start=config.cold, reach=1 - config.settle)
    for epoch, batches in enumerate(_epochs(config, data)):
        losses = []
        for images, labels in batches:
            task = cross_entropy(model(images), labels)
            loss = task + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            budget.step()
            losses.append(task.detach())
        scheduler.step()
        watch(_gated_frame(epoch + 1, torch.stack(losses).mean().item(), model, data))
    return model


def train_plain(config: PruningConfig, data: Digits, watch: Watch, *, run: str, width: int) -> DigitsNet:
    """A network of that width, trained by the same recipe without gates."""
    model = make(config, width)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, momentum=0.9, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
    for epoch, batches in enumerate(_epochs(config, data)):
        losses = []
        for images, labels in batches:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        scheduler.step()
        watch(Frame(run, epoch + 1, torch.stack(losses).mean().item(), accuracy(model, data)))
    return model


def parameters(model: nn.Module) -> int:
    """Entries of all parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def narrower(config: PruningConfig, small: nn.Module) -> int:
    """The smallest width whose network has at least as many parameters as `small`: the control is never the smaller."""
    return next(
        (width for width in range(1, config.width) if parameters(make(config, width)) >= parameters(small)),
        config.width,
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """The fraction of test images that the model names correctly, in evaluation mode."""
    was_training = model.training
    model.eval()
    right: Tensor = model(data.test_images).argmax(1) == data.test_labels
    model.train(was_training)
    return right.float().mean().item()


@torch.no_grad()
def largest_difference(gated: nn.Module, small: nn.Module, data: Digits) -> float:
    """The largest difference of outputs over all test images, relative to the largest output, in evaluation mode."""
    outputs: list[Tensor] = [copy.deepcopy(model).eval()(data.test_images) for model in (gated, small)]
    return ((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()).item()


def _epochs(config: PruningConfig, data: Digits) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """For every epoch the training images in a new order, in batches; the same at every call."""
    generator = torch.Generator().manual_seed(config.seed)
    for _ in range(config.epochs):
        order = torch.randperm(len(data.train_images), generator=generator)
        yield ((data.train_images[some], data.train_labels[some]) for some in order.split(config.batch))


def _gated_frame(epoch: int, loss: float, model: nn.Module, data: Digits) -> Frame:
    bars = tuple(Bar(gate.name, gate.open, gate.total) for gate in hg.status(model).gates)
    channels, params = hg.kept(model), hg.kept(model, "params")
    return Frame("with gates", epoch, loss, accuracy(model, data), bars, channels, params)
