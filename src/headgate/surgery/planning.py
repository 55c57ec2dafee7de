"""What can be removed from a model, and has been tried: the plan that all else goes by."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torch import nn

from headgate.arguments import true_or_false
from headgate.channels.example import Example
from headgate.channels.groups import analysed
from headgate.channels.plan import Plan
from headgate.errors import ArgumentError, GateError
from headgate.gated import gated_parts
from headgate.layers import can_write_back
from headgate.surgery.trial import proven


def find_groups(model: nn.Module, example: Any, *, readers: bool = False) -> Plan:
    """Finds out which channels of `model` can be removed, and which go together. The model is left as it is.

    Everything in the plan has been removed from a randomised copy before it is told: it is what `insert_gates_` has to
    choose from. What failed there is among what stays.

    Args:
        model: any module. Of one that `torch.export` cannot trace, the largest parts that it can are analysed.
        example: what to call it with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        readers: whether to look for the entries of residual branches too, which can read fewer channels than their
            stream has; entries that cannot are among what stays.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> print(find_groups(model, torch.randn(2, 8)))
        group  units  written by        read by
        0      16     0.bias, 0.weight  2.weight
        <BLANKLINE>
        stays                         size  because
        0.weight (in)                 8     0: linear: reads channels that cannot be removed
        2.bias (out), 2.weight (out)  4     2: output: the model returns it

    Raises:
        GateError: gates were inserted into the model already.
        ArgumentError: `model` is no module, it does not run on the example, or `readers` is neither True nor False.
        ShapeError: a hand-placed gate does not fit the tensor that it meets, by its path.
        TraceError: `torch.export` can trace neither the model nor a part of it.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"find_groups: a model must be a torch.nn.Module, not {type(model).__name__}")
    if gated_parts(model, "find_groups"):
        raise GateError(
            f"find_groups: gates were inserted into this {type(model).__name__}, by a plan of its own; status(model) "
            "shows them, and find_groups takes the network before, or after remove_gates_(model)"
        )
    return planned(model, Example.of(example), true_or_false("find_groups: readers", readers), "find_groups")


def planned(model: nn.Module, example: Example, readers: bool, operation: str) -> Plan:
    """The plan in the name of the operation that needs it."""
    return proven(model, example, writable(model, analysed(model, example, readers, operation)))


def writable(model: nn.Module, plan: Plan) -> Plan:
    """The plan with only those branches whose last layer is a module that can write back, and that share nothing."""
    uses = Counter(axis for branch in plan.branches for axis in branch.sliced)
    kept = []
    for branch in plan.branches:
        module = model.get_submodule(branch.path)
        own = all(name.rpartition(".")[0] == branch.path for name, _ in branch.masked)
        if own and can_write_back(module) and all(uses[axis] == 1 for axis in branch.sliced):
            kept.append(branch)
    return replace(plan, branches=tuple(kept))
