"""What compaction would leave of a gated model, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import nn

from headgate.bank import bank_of
from headgate.channels.groups import Plan
from headgate.channels.trace import aliases, with_same_tensors
from headgate.count import Call, count
from headgate.errors import ArgumentError, GateError, TraceError
from headgate.gated import require_gates, status, unwrap
from headgate.surgery.compact import insertion_of, open_units
from headgate.surgery.hand import placed_gates
from headgate.surgery.insert import Insertion, discard_gates_
from headgate.surgery.keep import Keep, chosen, idle_modules, kept_masks, random_vectors, sites
from headgate.surgery.recipe import within
from headgate.surgery.shrink import shrink_

Of = Literal["channels", "params", "macs"]
Shape = tuple[int, ...]


@torch.no_grad()
def kept(model: nn.Module, of: Of = "channels") -> float:
    """The fraction of a gated model that `compact` would leave.

    Args:
        model: a model with gates; wrapped is fine. It is left as it is.
        of: "channels": of the gated units, those that stay; works for hand-placed gates too. "params": of the
            parameters of the network without its gates, exactly. "macs": of its multiply-accumulates in evaluation
            mode, on the example the gates were inserted with, exactly as `cost` counts them. The first call traces the
            model; later ones only look at the gates, unless the work is not in the model's parameters alone (attention
            between activations, for instance): then every call traces a compacted copy.

    Example:
        >>> kept(nn.Sequential(nn.Linear(8, 4), Gate(4, offset=-2.0)))
        0.75

    Raises:
        ArgumentError: an unknown `of`.
        GateError: no gates, a gate whose offset is NaN, by name, or "params" or "macs" of a model with
            gates placed by hand: nobody knows what reads them.
        TraceError: "macs" of a compacted model that torch.export cannot trace.
    """
    if of not in get_args(Of):
        raise ArgumentError(f"kept: of={of!r} is unknown; use one of {', '.join(map(repr, get_args(Of)))}")
    require_gates(model, "kept")
    now, root = status(model), unwrap(model)
    if of != "channels" and (by_hand := placed_gates(root)):
        raise GateError(
            f"kept: of={of!r} needs gates that insert_gates_ has placed; {', '.join(sorted(by_hand))} of "
            f"{type(root).__name__} were placed by hand, and only of='channels' is known for them"
        )
    if bank_of(root) is None:
        return now.open / now.total
    insertion = insertion_of(root, "kept")
    units = open_units(root, insertion)
    if of == "channels":
        return sum(int(units[g.name].sum()) if g.name in units else g.open for g in now.gates) / now.total
    keep = chosen(insertion.plan, units, "kept")
    return _of_params(root, insertion.plan, keep) if of == "params" else _of_macs(root, insertion, keep)


def _without_gates(root: nn.Module) -> nn.Module:
    """The network without its gates: modules of its own, but the very same tensors."""
    dense = with_same_tensors(root)
    discard_gates_(dense)
    return dense


def _of_params(root: nn.Module, plan: Plan, keep: Keep) -> float:
    dense = _without_gates(root)
    shapes = {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}
    gone = dict.fromkeys(shapes, True)
    idle = idle_modules(plan, keep)
    for alias, name in aliases(dense).items():
        if name in gone:
            gone[name] &= within(alias, idle)
    left = _elements_left(shapes, plan, keep)
    return sum(left[name] for name in shapes if not gone[name]) / sum(map(prod, shapes.values()))


def _elements_left(shapes: Mapping[str, Shape], plan: Plan, keep: Keep) -> dict[str, int]:
    """How many entries tensors of these names and shapes would have."""
    sizes = {name: list(shape) for name, shape in shapes.items()}
    for (name, axis), mask in kept_masks(plan, keep).items():
        if name in sizes:
            sizes[name][axis] = int(mask.sum())
    return {name: prod(sizes[name]) for name in sizes}


@dataclass(frozen=True)
class _Work:
    """The multiply-accumulates of the network without gates, and whether the plan can tell what is left of them.

    A call on parameters alone uses each of their elements the same number of times. Whether that number stays the same
    in a smaller network (another axis of the activations may shrink too) is tried once, on a copy cut at random.
    """

    insertion: Insertion
    macs: int
    calls: tuple[Call, ...]
    shapes: Mapping[str, Shape]
    told_by_plan: bool = False

    def left(self, keep: Keep) -> int:
        """The multiply-accumulates of the calls that remain, by what remains of their weights."""
        plan = self.insertion.plan
        now, idle = _elements_left(self.shapes, plan, keep), idle_modules(plan, keep)
        return sum(
            call.macs // sum(prod(self.shapes[name]) for name in call.weights) * sum(now[name] for name in call.weights)
            for call in self.calls
            if idle.isdisjoint(call.modules)
        )


# A constant of every gated model, found when it is first asked for.
_KNOWN: WeakKeyDictionary[nn.Module, _Work] = WeakKeyDictionary()


def _of_macs(root: nn.Module, insertion: Insertion, keep: Keep) -> float:
    work = _KNOWN.get(root)
    if work is None or work.insertion is not insertion:
        work = _KNOWN[root] = _work(root, insertion)
    if not work.macs:
        raise GateError(f"kept: of='macs': {type(root).__name__} does no multiply-accumulates on its example")
    left = work.left(keep) if work.told_by_plan else _macs_after(root, insertion, keep)
    return left / work.macs


def _work(root: nn.Module, insertion: Insertion) -> _Work:
    dense = _without_gates(root)
    counted = count(dense, insertion.example, "kept")
    calls = tuple(call for call in counted.calls if call.macs)
    shapes = {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}
    work = _Work(insertion, counted.macs, calls, shapes)
    return replace(work, told_by_plan=all(call.weights for call in calls) and _foretells(work, root))


def _foretells(work: _Work, root: nn.Module) -> bool:
    trial = _trial(work.insertion.plan)
    try:
        return work.left(trial) == _macs_after(root, work.insertion, trial)
    except TraceError:
        return False


def _macs_after(root: nn.Module, insertion: Insertion, keep: Keep) -> int:
    small = _without_gates(root)
    shrink_(small, insertion.plan, keep)
    return count(small, insertion.example, "kept").macs


def _trial(plan: Plan) -> Keep:
    """About half of all units; of the branches that can leave altogether, every other one."""
    vectors = random_vectors(sites(plan).values(), seed=0)
    for branch in [branch for branch in plan.branches if branch.block is not None or branch.inner][::2]:
        vectors[branch.name] = torch.zeros_like(vectors[branch.name])
    return chosen(plan, vectors)
