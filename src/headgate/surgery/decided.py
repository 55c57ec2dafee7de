"""What the gates of a model have decided: which units compaction keeps, and which gates left it nothing to keep."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headgate.bank import FLOORS, Bank, bank_of
from headgate.channels.plan import Branch
from headgate.errors import GateError
from headgate.gated import gates as gates_of
from headgate.surgery.constants import Closed
from headgate.surgery.insert import Insertion
from headgate.surgery.keep import Keep, chosen, multiple_in_units, sites


def open_units(root: nn.Module, insertion: Insertion) -> dict[str, Tensor]:
    """Which units compaction keeps, by gate: the open ones, filled up to a multiple where that was asked for.

    Of what a gate before a norm has closed, one unit stays to pass on what all of it leaves behind (`constants`).
    Branches of full width are kept whole, unless one writes nothing and its block can go.
    """
    bank, plan = bank_of(root), insertion.plan
    assert bank is not None
    multiples = {name: multiple_in_units(plan, site, insertion.multiple_of) for name, site in sites(plan).items()}
    kept = {
        name: _filled_up(gate.keep().cpu(), bank.places(index).cpu(), multiples[name], name in insertion.before_norm)
        for index, (name, gate) in enumerate(bank.views().items())
    }
    if insertion.branches == "full":
        for branch in insertion.plan.branches:
            if branch.name in kept and (branch.block is None or bool(kept[branch.name].any())):
                kept[branch.name] = torch.ones_like(kept[branch.name])
    return kept


def decided(root: nn.Module, insertion: Insertion, operation: str) -> tuple[dict[str, Tensor], Keep]:
    """Which units compaction keeps, by gate, and what that means for the plan.

    Raises:
        GateError: a gate that must leave something open does not.
    """
    units, bank = open_units(root, insertion), bank_of(root)
    assert bank is not None
    known = sites(insertion.plan)
    for index, (name, kept) in enumerate(units.items()):
        if not bool(kept.any()) and not isinstance(known[name], Branch):
            raise GateError(f"{operation}: the gate {name!r} {_shut(bank, index)}")
    return units, chosen(insertion.plan, units, operation)


def _shut(bank: Bank, index: int) -> str:
    """In words, that a gate has closed everything, and from which offset on it would not have."""
    offset, lowest, floor = bank.offset[index], bank.lowest[index], bank.numbers(FLOORS)[index]
    shut = f"has closed all of its {bank.gates[index].n} units, of which one must stay"
    if bool(bank.baked[index]):
        return f"{shut}; masks were moved into the weights at an offset of {float(offset):.6g}"
    return (
        f"{shut}: its offset is {float(offset):.6g}, and the lowest that leaves its floor of {int(floor)} open is "
        f"{float(lowest):.6g}. Steps of the optimizer stop there (unless offset_update='plain'); an offset set by hand "
        "has to be above it too"
    )


def carrying(root: nn.Module, insertion: Insertion, units: Mapping[str, Tensor]) -> list[Closed]:
    """Of gates before a norm, which of the closed units stands for those that compaction, keeping these units, cuts."""
    groups, gates = {group.name: group for group in insertion.plan.groups}, gates_of(root)
    found = []
    for name in sorted(insertion.before_norm):
        going = (~units[name]).nonzero().flatten().tolist()
        if going:
            carrier = int((units[name] & ~gates[name].keep().cpu()).nonzero()[0])
            found.append(Closed(groups[name], carrier, tuple(going)))
    return found


def _filled_up(keep: Tensor, places: Tensor, multiple: int, with_carrier: bool) -> Tensor:
    """Closed units are kept too, those that closed last, until the count is a multiple (or all are kept)."""
    least = int(keep.sum()) + with_carrier
    wanted = min(-(-least // multiple) * multiple, len(keep))
    ranked = (places + keep * len(keep)).argsort(descending=True)
    filled = torch.zeros_like(keep)
    filled[ranked[:wanted]] = True
    return filled
