"""What a gate before a norm has closed leaves that norm as constants; one closed channel can pass on all of them.

Where `channels.constants` allows it, a closed channel is one number wherever its reader looks, but for the padding of a
convolution, which is the same for all. Each is therefore a multiple of any other one, and what a reader sums of them is
that one times a sum of weights. So one closed channel stays, the carrier: its norm makes 1 of everything, and its
weights in what reads it become those of all that go, each times its constant. That is exact, also at borders, and needs
no layer of ours.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgate.channels.example import Example
from headgate.channels.plan import STAYS, Axis, Group, Plan
from headgate.errors import HeadgateWarning
from headgate.layers import channel_axis
from headgate.surgery.keep import first_names
from headgate.surgery.recipe import named_tensors
from headgate.surgery.trial import TOLERANCE, difference, in_double, randomised, run_in_double

# By the name of a group, the rows of the layer that writes it, where the masks of its gate are.
Rows = Mapping[str, tuple[Axis, ...]]


@dataclass(frozen=True)
class Closed:
    """What a gate before a norm has closed: the carrier, by its number in the group, and the units that go."""

    group: Group
    carrier: int
    going: tuple[int, ...]


class CarrierError(Exception):
    """One channel cannot stand for others: not a multiple of each, or what reads them is not called just once."""


@torch.no_grad()
def carry_constants_(model: nn.Module, plan: Plan, closed: Sequence[Closed], example: Example) -> None:
    """Lets the carriers stand for the units that go, in a network without gates in which both are zero before a norm.

    Nothing reads what goes any more then, and in evaluation mode the network computes what it did.

    Raises:
        CarrierError: the network is as it was.
    """
    twin = copy.deepcopy(model).double().eval()
    carrying = _Carrying(twin, plan, closed)
    carrying.run_(in_double(example))
    theirs, ours = named_tensors(twin), named_tensors(model)
    for name in carrying.changed:
        ours[name].copy_(theirs[name])


@torch.no_grad()
def with_proven_carriers(
    model: nn.Module, plan: Plan, example: Example, rows: Rows, spread: frozenset[str] = frozenset()
) -> Rows:
    """Of these groups, those in which one channel can stand for others: tried, with every second unit closed.

    On a randomised copy, with all groups at once, and one after the other if that fails. Of those in `spread` the
    example has to show something wherever they are read: how much of it to pass on is not known otherwise.

    Warns:
        HeadgateWarning: by which groups it failed, since their gates are not where they were asked for then.
    """
    groups = {group.name: group for group in plan.groups}
    drawn, given = randomised(model, seed=0), in_double(example)

    def why_not(names: Sequence[str]) -> str:
        twin, closed = copy.deepcopy(drawn), []
        for name in names:
            shut = range(1, groups[name].size, 2)
            _silence_rows_(twin, plan, groups[name], rows[name], shut)
            closed.append(Closed(groups[name], shut[0], tuple(shut[1:])))
        try:
            _Carrying(twin, plan, closed, spread).run_(given)
        except CarrierError as error:
            return str(error)
        return ""

    if not why_not(list(rows)):
        return rows
    reasons = {name: why_not([name]) for name in rows}
    if failed := [name for name in rows if reasons[name]]:
        warnings.warn(
            f"insert_gates_: placement='before_norm' is not kept for {first_names(failed)}, whose gates are on what "
            f"reads them: in a trial, {reasons[failed[0]]}",
            HeadgateWarning,
            stacklevel=4,
        )
    return {name: axes for name, axes in rows.items() if not reasons[name]}


class _Carrying:
    """Two passes through a network in float64: what readers see of closed channels, and what they get for it."""

    def __init__(
        self, model: nn.Module, plan: Plan, closed: Sequence[Closed], spread: frozenset[str] = frozenset()
    ) -> None:
        self.model, self.plan, self.tensors, self.spread = model, plan, named_tensors(model), spread
        self.readers: dict[str, list[tuple[int, Closed]]] = {}
        for one in closed:
            for name, axis in one.group.readers:
                self.readers.setdefault(name, []).append((axis, one))
        norms = norms_of(plan)
        self.scales, self.shifts = (
            [(f"{path}.{leaf}", one) for one in closed for path in norms[one.group.name]] for leaf in ("weight", "bias")
        )
        self.seen: dict[str, Tensor] = {}

    @property
    def changed(self) -> list[str]:
        """The tensors that `run_` changes."""
        return [*(name for name, _ in (*self.scales, *self.shifts)), *self.readers]

    def run_(self, example: Example) -> None:
        before = self._pass(example, self._see)
        for tensors, value in ((self.scales, 0.0), (self.shifts, 1.0)):
            for name, one in tensors:
                self.tensors[name][self._places((name, 0), one.group, [one.carrier])] = value
        after = self._pass(example, self._give_)
        if (problem := difference(before, after, TOLERANCE)) is not None:
            raise CarrierError(f"{problem}; please report the model")

    def _pass(self, example: Example, look: Callable[[str, Tensor], None]) -> Any:
        """What the model returns. Each reader's input is looked at, channels first, just before it is read."""
        calls = dict.fromkeys(self.readers, 0)

        def looked(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[name] += 1
            x = args[0] if args else kwargs["input"]
            look(name, x.movedim(channel_axis(module), 0))

        handles = []
        try:
            for name in self.readers:
                module = self.model.get_submodule(name.rpartition(".")[0])
                hook = _before(name, looked)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            outputs = run_in_double(self.model, example)
        finally:
            for handle in handles:
                handle.remove()
        if odd := [name for name, count in calls.items() if count != 1]:
            raise CarrierError(f"the module of {odd[0]} is called {calls[odd[0]]} times, not once")
        return outputs

    def _see(self, name: str, x: Tensor) -> None:
        self.seen[name] = x.clone()

    def _give_(self, name: str, x: Tensor) -> None:
        """The carrier's weights become those of all that it stands for, itself included, each times its constant."""
        for axis, one in self.readers[name]:
            weights = self.tensors[name].movedim(axis, 0)
            places = self._places((name, axis), one.group, [one.carrier, *one.going])
            if one.group.name in self.spread and not bool(x[places[0]].flatten(1).any(1).all()):
                raise CarrierError(
                    f"some of what {name} reads of closed channels is zero, which it may not be elsewhere"
                )
            times = _multiples(name, self.seen[name][places], x[places[0]])
            carried = torch.einsum("up,up...->p...", times, weights[places])
            weights[places] = 0.0
            weights[places[0]] = carried

    def _places(self, axis: Axis, group: Group, units: Sequence[int]) -> Tensor:
        """Along an axis, the indices of these units: (units, indices of each)."""
        local = torch.tensor(self.plan.along(axis, group))
        return torch.stack([(local == unit).nonzero().squeeze(1) for unit in units]).to(self.tensors[axis[0]].device)


def _before(name: str, looked: Callable[..., None]) -> Callable[..., None]:
    return lambda module, args, kwargs: looked(name, module, args, kwargs)


def _multiples(name: str, constants: Tensor, of: Tensor) -> Tensor:
    """How many times each constant, (units, indices, ...), is another one, (indices, ...), whatever is padded around.

    Raises:
        CarrierError: one of them is no multiple.
    """
    constants, of = constants.flatten(2), of.flatten(1)
    if not bool(constants.isfinite().all()):
        raise CarrierError(f"what {name} reads of closed channels is not finite: weights or statistics have diverged")
    square = of.square().sum(-1)
    times = torch.where(square > 0, (constants * of).sum(-1) / square, 0.0)
    if not bool((constants - times[..., None] * of).abs().max() <= TOLERANCE * constants.abs().max()):
        raise CarrierError(f"what {name} reads of closed channels is not alike; please report the model")
    return times


def norms_of(plan: Plan) -> dict[str, list[str]]:
    """By the names of groups, the paths of the norms that they go through."""
    owner = {unit: group.name for group in plan.groups for unit in group.units}
    found: dict[str, list[str]] = {group.name: [] for group in plan.groups}
    for path, numbers in plan.widths.items():
        for name in sorted({owner[unit] for number in set(numbers) for unit in plan.units_at(number)}):
            found[name].append(path)
    return found


def _silence_rows_(model: nn.Module, plan: Plan, group: Group, rows: Sequence[Axis], units: Sequence[int]) -> None:
    tensors = named_tensors(model)
    for name, axis in rows:
        shut = torch.tensor([local != STAYS and local in units for local in plan.along((name, axis), group)])
        tensors[name].movedim(axis, 0)[shut.to(tensors[name].device)] = 0.0
