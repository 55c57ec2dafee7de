"""How an outline is made: the plan of a network, and the small one made from it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

import headgate as hg
from headgate_lab.outline import Layer, Outline

Axis = tuple[str, int]


def outline(plan: hg.Plan, full: nn.Module, small: nn.Module) -> Outline:
    """What is left of every layer of `full`, whose plan this is, in `small`, which was made from it.

    A layer is a parameter of two or more axes; its channels are the indices of the axis that writes, as the plan
    has it. What the plan does not know stays, and is counted along its first axis.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> plan = hg.find_groups(net, torch.randn(1, 4))
        >>> small = hg.shrink(net, plan, {"0": torch.arange(8) < 3})
        >>> print(outline(plan, net, small))
        0       3 of 8
        2       2 of 2
        gone: nothing
    """
    left = dict(small.named_parameters())
    writers: dict[str, tuple[int, str | None]] = {}
    for group in plan.groups:
        for name, axis in group.writers:
            writers[name] = axis, group.name if group.stream else None
    layers = []
    for name, parameter in full.named_parameters():
        if parameter.dim() < 2:
            continue
        axis, stream = writers.get(name, (0, None))
        layers.append(Layer(_layer_of(name), parameter.shape[axis], _size(left, (name, axis)), stream))
    return Outline(tuple(layers), tuple(_stream(plan, group, left) for group in plan.groups if group.stream))


def _stream(plan: hg.Plan, group: hg.Group, left: Mapping[str, Tensor]) -> tuple[str, int, int]:
    """A stream's width is that of the widest that carries it: branches write, and may read, only some of it."""
    whole = [axis for axis in (*group.writers, *group.readers) if sorted(plan.axes[axis]) == list(group.units)]
    return group.name, group.size, max((_size(left, axis) for axis in whole), default=0)


def _size(left: Mapping[str, Tensor], axis: Axis) -> int:
    return left[axis[0]].shape[axis[1]] if axis[0] in left else 0


def _layer_of(name: str) -> str:
    """The path of the module for its weight, the parameter's own name otherwise."""
    return name.removesuffix(".weight")
