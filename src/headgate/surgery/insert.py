"""Placing gates on a model by itself, and taking them off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headgate.arguments import whole_number
from headgate.bank import Bank, GateSpec, InsertedGate, bank_of, install_bank_
from headgate.channels.groups import Branch, Group, Plan, find_groups
from headgate.channels.trace import Example, aliases
from headgate.curve import Scale
from headgate.errors import ArgumentError, GateError
from headgate.gated import unwrap
from headgate.layers import can_write_back
from headgate.masked import attach_, put_mask_on_
from headgate.orders import Order, places_of
from headgate.surgery.keep import Site, sites
from headgate.surgery.rollback import undone_on_failure
from headgate.surgery.trial import proven
from headgate.unmask import take_masks_off_

INSERTION = "headgate_insertion"
START, SPAN, STEEPNESS, FUNCTION = 1.0, 5.0, 1.0, "relu_tanh"

Where = Callable[[str, nn.Module], bool]
Branches = Literal["narrow", "full"]


@dataclass(frozen=True)
class Insertion:
    """What was decided when gates were inserted, for everything that follows: plan, options, and the example."""

    plan: Plan
    branches: Branches
    multiple_of: int
    example: Example

    def __deepcopy__(self, memo: dict[int, Any]) -> Insertion:
        return self


def insert_gates_(
    model: nn.Module,
    example: Any,
    *,
    where: Where | None = None,
    streams: bool = True,
    order: Order = "index",
    scale: Scale = "relative",
    floor: int = 4,
    branches: Branches = "narrow",
    multiple_of: int = 1,
) -> dict[str, InsertedGate]:
    """Puts a gate on every group of channels that can be removed from `model`, and returns them by name.

    A group's mask multiplies the input slices of the weights that read it, so the model starts as exactly the network
    it was. The last layer of every residual branch gets a gate of its own on what it writes. Only what a trial on a
    randomised copy has proven removable is gated; `find_groups` says what is not, and why.

    Args:
        model: any module that `torch.export` can trace. Its parameters stay the same objects.
        example: what to call the model with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        where: picks groups by name and by the module of that name.
        streams: whether residual streams (groups that activations are added into) get a gate too.
        order: which units close first: a named order, or a permutation for models with one size of group.
        scale: "relative" starts with masks of ones; "plain" is the paper's Eq. 2.
        floor: how many units of each gate stay open whatever the strength; smaller groups get no gate.
        branches: "narrow" cuts what a residual branch does not write, and its last layer writes the rest into place.
            "full" keeps the outputs of branches at full width, zeros included, and needs no layer of ours; often
            faster where branches are thin. Either way a branch that writes nothing goes with its block, where all the
            block does is to add it; a narrow one also takes along what only feeds it where the block stays.
        multiple_of: compaction keeps widths at multiples of this, by keeping closed units where needed.

    Raises:
        ArgumentError: an argument that cannot be, by name.
        GateError: the model is wrapped, has inserted gates already, or nothing in it can be removed. It is as it was.
    """
    _check_insertable(model)
    floor, multiple_of = _at_least_one("floor", floor), _at_least_one("multiple_of", multiple_of)
    _check_options(order, scale, branches)
    given = Example.of(example)
    plan = proven(model, given, writable(model, find_groups(model, given)))
    chosen = [site for site in sites(plan).values() if _wanted(site, model, where, streams, floor)]
    if not chosen:
        raise GateError(f"insert_gates_: nothing in {type(model).__name__} can be gated:\n{plan}")
    places, count_from = _places(chosen, order)
    bank = Bank(model, _specs(chosen, floor), START, SPAN, STEEPNESS, FUNCTION, scale, count_from)
    with undone_on_failure(model):
        install_bank_(model, bank, places)
        setattr(model, INSERTION, Insertion(plan, branches, multiple_of, given))
        attach_(model)
        _put_masks_on_(model, bank, plan, chosen)
    return bank.views()


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


def _specs(chosen: list[Site], floor: int) -> tuple[GateSpec, ...]:
    """Read sides keep their floor; a branch may fall silent altogether, since its shortcut goes on."""
    specs, first = [], 0
    for site in chosen:
        specs.append(GateSpec(site.name, first, site.size, floor if isinstance(site, Group) else 0))
        first += site.size
    return tuple(specs)


def _places(chosen: list[Site], order: Order) -> tuple[list[Tensor], int]:
    """Every gate's places, and what they count from. A branch takes its stream's, so that both keep nested sets."""
    named = {site.name: places_of(order, site.size) for site in chosen}
    streams = {site.name: site.group for site in chosen if isinstance(site, Branch)}
    places = [named.get(streams.get(site.name) or "", named[site.name])[0] for site in chosen]
    return places, named[chosen[0].name][1]


def discard_gates_(model: nn.Module) -> None:
    """Takes everything off that `insert_gates_` put on; the weights are what they are without their masks."""
    take_masks_off_(model)
    if hasattr(model, INSERTION):
        delattr(model, INSERTION)


def _check_insertable(model: nn.Module) -> None:
    if unwrap(model) is not model:
        raise GateError(f"insert_gates_: insert gates before wrapping the model in {type(model).__name__}")
    if bank_of(model) is not None:
        raise GateError("insert_gates_: the model has inserted gates already; remove_gates_(model) takes them off")


def _at_least_one(name: str, value: Any) -> int:
    if (number := whole_number(name, value)) < 1:
        raise ArgumentError(f"insert_gates_: {name}={number} must be at least 1")
    return number


def _check_options(order: Order, scale: str, branches: str) -> None:
    """Before the analysis, which takes its time."""
    if isinstance(order, str):
        places_of(order, 1)
    for name, value, known in (("scale", scale, get_args(Scale)), ("branches", branches, get_args(Branches))):
        if value not in known:
            raise ArgumentError(f"insert_gates_: {name}={value!r} is unknown; use one of {', '.join(known)}")


def _wanted(site: Site, model: nn.Module, where: Where | None, streams: bool, floor: int) -> bool:
    if isinstance(site, Group) and (site.size <= floor or (site.stream and not streams)):
        return False
    if where is None:
        return True
    path = site.path if isinstance(site, Branch) else site.name.partition("#")[0]
    try:
        module = model.get_submodule(path)
    except AttributeError:
        module = model
    return bool(where(site.name, module))


def _put_masks_on_(model: nn.Module, bank: Bank, plan: Plan, chosen: list[Site]) -> None:
    """One mask per weight and axis that reads a gated group or writes a gated branch, under every alias."""
    names: dict[str, list[str]] = {}
    for alias, name in aliases(model).items():
        names.setdefault(name, []).append(alias)
    of_unit = {
        unit: (gate, unit - site.start)
        for gate, site in enumerate(chosen) if isinstance(site, Group)
        for unit in site.units
    }  # fmt: skip
    for name, axis in sorted({axis for site in chosen if isinstance(site, Group) for axis in site.readers}):
        gates, index = _gather_index(plan.axes[name, axis], of_unit, bank)
        for alias in names[name]:
            put_mask_on_(model, alias, bank, gates, index, axis)
    for gate, site in enumerate(chosen):
        if isinstance(site, Branch):
            for name, axis in site.masked:
                for alias in names[name]:
                    put_mask_on_(model, alias, bank, [gate], torch.tensor(site.units), axis)


def _gather_index(units: tuple[int, ...], of_unit: dict[int, tuple[int, int]], bank: Bank) -> tuple[list[int], Tensor]:
    """The gates along an axis, and every index's place in their masks laid end to end (the end itself: no gate)."""
    gates = sorted({of_unit[unit][0] for unit in units if unit in of_unit})
    ends = list(accumulate((bank.gates[gate].n for gate in gates), initial=0))
    starts = dict(zip(gates, ends, strict=False))
    index = [ends[-1] if unit not in of_unit else starts[of_unit[unit][0]] + of_unit[unit][1] for unit in units]
    return gates, torch.tensor(index)
