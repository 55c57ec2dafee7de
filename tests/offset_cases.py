"""What the tests of offsets share: a toy with prescribed gradients, the rule in plain Python, all optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

import headgate as hg

MakeOptimizer = Callable[[list[dict[str, Any]]], Optimizer]

RATE = 0.01
# Signs change, sizes differ by orders of magnitude, one is zero: an optimizer that touches an offset would show.
PUSHES = (0.5, -0.25, 2.0, 0.0, 1e-3, -40.0, 0.3, 0.3, 0.3, -0.7, 5.0, 0.02)


def toy(floor: int = 1, offset: float = 1.0) -> nn.Sequential:
    """Two gates of four units, in a network with weights of its own."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), hg.Gate(4, floor=floor, offset=offset), nn.ReLU(),
        nn.Linear(4, 4), hg.Gate(4, floor=floor, offset=offset), nn.Linear(4, 2),
    )  # fmt: skip


def offsets(model: nn.Module) -> list[float]:
    return [gate.offset.item() for gate in hg.gates(model).values()]


def weights(model: nn.Module) -> Tensor:
    """All parameters that are no offset, in one vector."""
    held = {id(gate.offset) for gate in hg.gates(model).values()}
    return torch.cat([p.detach().flatten() for p in model.parameters() if id(p) not in held])


def prescribed_loss(model: nn.Module, push: float) -> Tensor:
    """Its gradient is `push` at the first offset and -push/2 at the second; the weights are pulled towards 0."""
    held = {id(gate.offset) for gate in hg.gates(model).values()}
    pull = torch.stack([p.square().sum() for p in model.parameters() if id(p) not in held]).sum()
    first, second = (gate.offset for gate in hg.gates(model).values())
    return pull + push * first - push / 2 * second


def drive(
    model: nn.Module,
    optimizer: Optimizer,
    pushes: Iterable[float] = PUSHES,
    after: Callable[[], object] = lambda: None,
) -> list[list[float]]:
    """Trains on the prescribed losses, one step each, calling `after` after each; the offsets after every step."""
    seen = []
    for push in pushes:
        model.zero_grad()
        prescribed_loss(model, push).backward()
        optimizer.step()
        after()
        seen.append(offsets(model))
    return seen


def by_the_rule(
    gradients: Sequence[float], *, start: float = 1.0, lowest: float = -5.0, epsilon: float = 1e-6
) -> list[float]:
    """The offsets that the documented rule gives, in plain Python."""
    offset, first, second, seen = start, 0.0, 0.0, []
    for count, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        ratio = (first / (1 - 0.9**count)) / ((second / (1 - 0.99**count)) ** 0.5 + epsilon)
        offset = min(max(offset - RATE * min(max(ratio, -1.0), 1.0), lowest), start)
        seen.append(offset)
    return seen


def expected_trajectory(pushes: Sequence[float] = PUSHES) -> list[list[float]]:
    """What `drive` must return for `toy(floor=1)` whatever the optimizer does to the weights."""
    lowest = 5 / 8 - 5.0
    both = by_the_rule(pushes, lowest=lowest), by_the_rule([-push / 2 for push in pushes], lowest=lowest)
    return [list(pair) for pair in zip(*both, strict=True)]


# Every torch optimizer that takes groups, in the variants a CPU can run. Rates are bold on purpose: were an offset
# left to the optimizer, it would land far away.
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adadelta": partial(optim.Adadelta, lr=0.5),
    "Adadelta foreach": partial(optim.Adadelta, lr=0.5, foreach=True, weight_decay=0.1),
    "Adafactor": partial(optim.Adafactor, lr=0.1),
    "Adagrad": partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "Adagrad fused": partial(optim.Adagrad, lr=0.1, fused=True),
    "Adam": partial(optim.Adam, lr=0.1),
    "Adam amsgrad": partial(optim.Adam, lr=0.1, amsgrad=True),
    "Adam foreach": partial(optim.Adam, lr=0.1, foreach=True),
    "Adam fused": partial(optim.Adam, lr=0.1, fused=True),
    "Adam tensor rate": lambda groups: optim.Adam(groups, lr=torch.tensor(0.1), foreach=False),
    "AdamW": partial(optim.AdamW, lr=0.1, weight_decay=0.5),
    "AdamW fused amsgrad": partial(optim.AdamW, lr=0.1, weight_decay=0.5, amsgrad=True, fused=True),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "ASGD": partial(optim.ASGD, lr=0.1),
    "ASGD foreach": partial(optim.ASGD, lr=0.1, foreach=True),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "NAdam decoupled": partial(optim.NAdam, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "RMSprop": partial(optim.RMSprop, lr=0.1),
    "RMSprop centered momentum": partial(optim.RMSprop, lr=0.1, centered=True, momentum=0.9),
    "Rprop": partial(optim.Rprop, lr=0.1),
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "SGD foreach": partial(optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "SGD fused tensor rate": lambda groups: optim.SGD(groups, lr=torch.tensor(0.1), momentum=0.9, fused=True),
}
# These refuse the offsets or the groups: each has a test of its own.
SPECIAL = frozenset({"LBFGS", "Muon", "SparseAdam"})
