"""How large a gated network is, by how many units each gate keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headgate.bank import FLOORS, OWNER, PLACES, SIZES, Bank, bank_of
from headgate.channels.example import Example
from headgate.errors import GateError
from headgate.surgery.insert import Insertion
from headgate.surgery.keep import multiple_in_units, sites
from headgate.surgery.kept import call_sizes, parameter_sizes, without_gates
from headgate.surgery.sizes import Sizes
from headgate.surgery.times import module_times


@dataclass(frozen=True)
class Gauge:
    """Sizes of a gated network. Units close in one order, so that a state is one number of kept units for each gate.

    All tensors are on the gates' device. Only what returns a plain number or a decision reads from there.

    Attributes:
        bank: the gates.
        sizes_of: what states of all sites cost; None where channels are counted.
        columns: for every unit of every gate, its place in a state.
        units: how many places a state has, besides one that is always kept.
        multiple: for every gate, the number of units to whose multiples compaction fills up.
        carried: gates before a norm, of whose closed units one stays.
        whole: gates whose units stay, whatever is open; of these, `vanishing` ones go when nothing is open.
    """

    bank: Bank
    sizes_of: Sizes | None
    columns: Tensor
    units: int
    multiple: Tensor
    carried: Tensor
    whole: Tensor
    vanishing: Tensor

    def on(self, device: torch.device) -> Gauge:
        """The gauge of the same gates after their model was moved to a device."""
        if self.columns.device == device:
            return self
        return replace(
            self,
            sizes_of=None if self.sizes_of is None else self.sizes_of.to(device),
            columns=self.columns.to(device),
            multiple=self.multiple.to(device),
            carried=self.carried.to(device),
            whole=self.whole.to(device),
            vanishing=self.vanishing.to(device),
        )

    @property
    def sizes(self) -> Tensor:
        """Units of every gate."""
        return self.bank.numbers(SIZES)

    @property
    def most(self) -> Tensor:
        """All units of every gate."""
        return self.sizes

    @property
    def least(self) -> Tensor:
        """As many as the floors leave."""
        return self.bank.numbers(FLOORS)

    def kept(self) -> Tensor:
        """How many units of every gate are open now."""
        count = len(self.bank.gates)
        opened = (self.bank.masks(range(count)) > 0).to(torch.int64)
        return torch.zeros_like(self.sizes).index_add_(0, self.bank.numbers(OWNER), opened)

    def opened(self, kept: Tensor) -> Tensor:
        """For every unit of every gate whether it is open when each gate keeps so many: bool, (..., units of gates)."""
        return self.bank.numbers(PLACES) >= (self.sizes - kept)[..., self.bank.numbers(OWNER)]

    def left(self, kept: Tensor) -> dict[str, Tensor]:
        """Which units compaction would keep, by gate, when each gate has so many open; on the CPU."""
        opened = self.opened(self.filled(kept.to(self.columns.device))).cpu()
        return {gate.name: opened[gate.first : gate.first + gate.n] for gate in self.bank.gates}

    def size(self, kept: Tensor) -> int:
        """What compaction would leave when each gate keeps so many units."""
        return int(self._totals(kept[None]))

    def size_and_savings(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The size, and for every gate what each of the units saves that it would close next."""
        fewer = self._fewer(kept)
        totals = self._totals(torch.cat([kept[None], kept - torch.diag(fewer)]))
        return totals[0], (totals[0] - totals[1:]) / fewer.clamp_min(1)

    def _fewer(self, kept: Tensor) -> Tensor:
        """How many units of every gate close next: up to a multiple, or all where nothing goes until all do.

        Of the first ones that a gate before a norm closes one stays, so that it closes one more.
        """
        first = (self.carried & (kept == self.sizes)).to(kept.dtype)
        together = torch.where(self.whole & self.vanishing, kept, self.multiple + first)
        return torch.minimum(together, (kept - self.least).clamp_min(0))

    def by_name(self, kept: Tensor) -> dict[str, int]:
        """What is left by parameter, call or, of channels, by gate."""
        if self.sizes_of is None:
            left = self.filled(kept).tolist()
            return {gate.name: number for gate, number in zip(self.bank.gates, left, strict=True)}
        found: dict[str, int] = {}
        costs = self.sizes_of.by_term(self._states(kept[None]))[0].tolist()
        for term, cost in zip(self.sizes_of.terms, costs, strict=True):
            found[term.name] = found.get(term.name, 0) + cost
        return found

    def settled(self, kept: Tensor, target: int, masks: Tensor) -> Tensor:
        """Numbers of kept units whose size is at most `target`, if there are any, and as near as single units allow.

        Units close where the mask of the next one is smallest for what it saves, and reopen where most of what is left
        of the target is used.

        Args:
            kept: of every gate, how many are open now.
            target: the size.
            masks: of every unit of every gate.
        """
        kept = kept.clone()
        size, savings = self.size_and_savings(kept)
        while size > target and bool((kept > self.least).any()):
            loss = self._next_masks(kept, masks)
            worth = torch.where(savings > 0, loss / savings, torch.inf)
            if not bool(worth.isfinite().any()):
                worth = torch.where(kept > self.least, loss, torch.inf)
            chosen = int(worth.argmin())
            kept[chosen] -= self._fewer(kept)[chosen]
            size, savings = self.size_and_savings(kept)
        return self._grown(kept, int(size), target)

    def _next_masks(self, kept: Tensor, masks: Tensor) -> Tensor:
        """Of every gate that keeps so many units, the mask of the one that closes next; infinite where none is open.

        Where all units close together, the mean of their masks.
        """
        owner = self.bank.numbers(OWNER)
        following = self.bank.numbers(PLACES) == (self.sizes - kept)[owner]
        nothing = torch.full(kept.shape, torch.inf, dtype=masks.dtype, device=masks.device)
        smallest = nothing.index_put((owner[following],), masks[following])
        means = torch.zeros_like(smallest).index_add_(0, owner, masks * self.opened(kept)) / kept
        return torch.where(self.whole & self.vanishing & (kept > 0), means, smallest)

    def _grown(self, kept: Tensor, size: int, target: int) -> Tensor:
        while size < target:
            more = torch.minimum(self.multiple + self.carried, self.sizes - kept)
            more = torch.where(self.carried & (more < self.sizes - kept), self.multiple, more)
            totals = self._totals(kept + torch.diag(more))
            fitting = torch.where((totals <= target) & (totals > size), totals, -1)
            chosen = int(fitting.argmax())
            if fitting[chosen] < 0:
                break
            kept[chosen] += more[chosen]
            size = int(totals[chosen])
        return kept

    def _totals(self, kept: Tensor) -> Tensor:
        if self.sizes_of is None:
            return self.filled(kept).sum(1)
        return self.sizes_of.total(self._states(kept))

    def filled(self, kept: Tensor) -> Tensor:
        """With what compaction keeps besides: multiples, what carries constants, and branches of full width."""
        filled = torch.minimum(-(-(kept + self.carried) // self.multiple) * self.multiple, self.sizes)
        whole = self.whole & ~(self.vanishing & (kept == 0))
        return torch.where(whole, self.sizes, filled)

    def opened_at_rest(self, kept: Tensor) -> Tensor:
        """For every unit of every gate whether it may be open when each gate keeps so many, which cost as much.

        What compaction keeps besides is paid for, and learns in the small network too, but for what carries constants.
        """
        filled = self.filled(kept)
        return self.opened(filled - (self.carried & (filled < self.sizes)).to(filled.dtype))

    def _states(self, kept: Tensor) -> Tensor:
        states = torch.ones(len(kept), self.units + 1, dtype=torch.bool, device=kept.device)
        states[:, self.columns] = self.opened(self.filled(kept))
        return states


def gauge_of(root: nn.Module, insertion: Insertion, of: str, example: Example | None) -> Gauge:
    """The gauge of a gated model for parameters, multiply-accumulates, channels or milliseconds (yet to be learned).

    Raises:
        GateError: multiply-accumulates that the parameters alone do not tell.
    """
    bank = bank_of(root)
    assert bank is not None
    measures: dict[str, Callable[[], Sizes | None]] = {
        "channels": lambda: None,
        "params": lambda: parameter_sizes(root, insertion.plan),
        "macs": lambda: call_sizes(root, insertion, example),
        "latency_ms": lambda: module_times(without_gates(root), insertion.plan),
    }
    sizes = measures[of]()
    if of == "macs" and sizes is None:
        raise GateError(
            f"Budget: macs: what {type(root).__name__} computes between activations (attention, for instance) cannot "
            "be told from its parameters; give params=, channels= or latency_ms= instead"
        )
    layout = Sizes(insertion.plan, {}, ()) if sizes is None else sizes
    columns = torch.cat([torch.arange(one.start, one.stop) for one in (layout.columns[g.name] for g in bank.gates)])
    branches = {branch.name: branch for branch in insertion.plan.branches}
    full = [insertion.branches == "full" and gate.name in branches for gate in bank.gates]
    vanishing = [gate.name in branches and branches[gate.name].block is not None for gate in bank.gates]
    whole, goes = torch.tensor(full), torch.tensor(vanishing)
    known, channels = sites(insertion.plan), insertion.multiple_of
    multiple = torch.tensor([multiple_in_units(insertion.plan, known[gate.name], channels) for gate in bank.gates])
    carried = torch.tensor([gate.name in insertion.before_norm for gate in bank.gates])
    return Gauge(bank, sizes, columns, layout.units, multiple, carried, whole, goes).on(bank.offset.device)
