"""The gates of a model that were inserted, not placed by hand: one flat vector of offsets on the root module.

The root itself holds the tensors, under the names below; a child module would be called by an `nn.Sequential`. The
`Bank` holds what is not a tensor and a way back to the root. `InsertedGate` is the view of one gate, and answers what a
hand-placed `Gate` answers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headgate.curve import Scale, mask_values
from headgate.gate import require_finite

OFFSETS = "headgate_offsets"
PLACES = "headgate_places"
BAKED = "headgate_baked"
OPEN = "headgate_open"
SIZES = "headgate_sizes"
FLOORS = "headgate_floors"
OWNER = "headgate_owner"
LAST = "headgate_last"
BANK = "headgate_bank"


def guarded(numbers: Tensor) -> Tensor:
    """Whole numbers in a form that averaging cannot damage; `unguarded` gives them back.

    A moving average of a model (AveragedModel with use_buffers) also averages equal whole numbers, in floats, and
    rounds down: 7 may become 6. Twice the number and one may lose that one.
    """
    return 2 * numbers.long() + 1


def unguarded(numbers: Tensor) -> Tensor:
    """What `guarded` was given."""
    return numbers >> 1


class Offsets(nn.Parameter):
    """A parameter that stays float32 (or becomes float64) when its model is cast to a shorter type."""

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """As `Tensor.to`, but a shorter dtype is passed over."""
        moved = torch.Tensor.to(self, *args, **kwargs)
        return moved if moved.dtype in (torch.float32, torch.float64) else torch.Tensor.to(self, moved.device)

    def half(self, *args: Any, **kwargs: Any) -> Tensor:
        """Itself: too short for an offset."""
        return self

    bfloat16 = half


@dataclass(frozen=True)
class GateSpec:
    """What one gate of the bank is: its name, where its units stand in the flat buffers, and its floor."""

    name: str
    first: int
    n: int
    floor: int


@dataclass
class Bank:
    """All inserted gates of one model."""

    root: nn.Module = field(repr=False)
    gates: tuple[GateSpec, ...]
    start: float
    span: float
    steepness: float
    fn: str
    scale: Scale
    count_from: int = 1
    asked_to_rest: bool = False
    # What a budget has decided: whether offsets rest, whatever else was asked, and the most one moves in a step.
    held: bool = False
    rate: float | None = None
    claim: object = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Bank:
        """The gates of a copied model. A budget that is still on its way steers the original alone.

        Its claim is copied, so that `compact` tells of gates that were cut on the way, but not its hold: nobody would
        ever let go of it. Gates that have come to rest for good do so in the copy too.
        """
        copied = copy.copy(self)
        memo[id(self)] = copied
        copied.root, copied.claim = copy.deepcopy((self.root, self.claim), memo)
        if not getattr(self.claim, "for_good", False):
            copied.held, copied.rate = False, None
        return copied

    @property
    def frozen(self) -> bool:
        """Whether offsets stay where they are."""
        return self.asked_to_rest or self.held

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self.asked_to_rest = frozen

    @property
    def offset(self) -> Tensor:
        """The flat parameter, one offset per gate."""
        return getattr(self.root, OFFSETS)  # type: ignore[no-any-return]

    @property
    def baked(self) -> Tensor:
        """Whether each gate is baked: 1 or 0."""
        return self.numbers(BAKED)

    def numbers(self, name: str) -> Tensor:
        """One of the root's buffers of whole numbers, which no cast of the model can blur."""
        return unguarded(getattr(self.root, name))

    @property
    def lowest(self) -> Tensor:
        """The lowest offset of each gate that leaves its floor open."""
        return self.offset_leaving(self.numbers(FLOORS))

    def offset_leaving(self, units: Tensor) -> Tensor:
        """The offset of each gate that leaves so many units open, half a unit from the next one's closing."""
        # At 0 the half unit goes the other way: all closed, at -span.
        open_units = (units - 0.5).clamp_min(0).to(self.offset.dtype) + (1 - self.count_from) * (units > 0)
        offset: Tensor = self.span * (open_units / self.numbers(SIZES) - 1)
        return offset

    def masks(self, gates: range, offset: Tensor | None = None) -> Tensor:
        """The masks of neighbouring gates laid end to end, differentiable in the offsets.

        Open units of a baked gate are 1 and closed ones 0. One formula for all gates at once, since a model may have
        hundreds and each operation on a small vector costs as much as one on a large one.
        """
        offset = self.offset if offset is None else offset
        units = slice(self.gates[gates.start].first, self.gates[gates.stop - 1].first + self.gates[gates.stop - 1].n)
        places, opened, owner = (self.numbers(name)[units] for name in (PLACES, OPEN, OWNER))
        own, local = slice(gates.start, gates.stop), owner - gates.start

        def largest(mask: Tensor) -> Tensor:
            """A mask grows with the order, so its largest entry is that of the last unit to close."""
            return mask.index_select(0, self.numbers(LAST)[own] - units.start).index_select(0, local)

        step = self.span / self.numbers(SIZES)[own].to(offset.dtype)
        order = (places + self.count_from).to(offset.dtype) * step.index_select(0, local)
        mask = mask_values(
            order, offset[own].index_select(0, local), self.start, self.steepness, self.fn, self.scale, largest
        )
        return torch.where(self.baked[own].index_select(0, local) != 0, opened.to(mask.dtype), mask)

    def places(self, index: int) -> Tensor:
        """The places of one gate's units; low ones close first."""
        gate = self.gates[index]
        return self.numbers(PLACES)[gate.first : gate.first + gate.n]

    def mask(self, index: int) -> Tensor:
        """The mask of one gate."""
        return self.masks(range(index, index + 1))

    def views(self) -> dict[str, InsertedGate]:
        """All gates by name."""
        return {gate.name: InsertedGate(self, index) for index, gate in enumerate(self.gates)}


class InsertedGate:
    """One gate of a bank; reads and writes the model's own tensors."""

    def __init__(self, bank: Bank, index: int) -> None:
        self._bank = bank
        self._index = index
        self._spec = bank.gates[index]

    @property
    def n(self) -> int:
        """Number of units."""
        return self._spec.n

    @property
    def floor(self) -> int:
        """How many units stay open whatever the strength."""
        return self._spec.floor

    @property
    def offset(self) -> Tensor:
        """A view of the model's flat offsets: writing in place under no_grad moves the gate."""
        return self._bank.offset[self._index]

    @property
    def frozen(self) -> bool:
        """Whether offsets are held where they are."""
        return self._bank.frozen

    @property
    def baked(self) -> Tensor:
        """Whether the mask has moved into the weights."""
        return self._bank.baked[self._index]

    def mask(self) -> Tensor:
        """The mask g, shape (n,), differentiable in the offset."""
        return self._bank.mask(self._index)

    def keep(self) -> Tensor:
        """Which units are open, bool, shape (n,)."""
        require_finite({self._spec.name: self.offset})
        return self.mask().detach() > 0

    @property
    def active(self) -> int:
        """How many units are open. Reads the offset back to the host."""
        return int(self.keep().sum())

    def __repr__(self) -> str:
        return f"InsertedGate({self._spec.name!r}, {self.n}, floor={self.floor})"


def install_bank_(root: nn.Module, bank: Bank, places: Sequence[Tensor]) -> None:
    """Puts the bank and its tensors on the root; all gates open, none baked."""
    device = next((p.device for p in root.parameters()), torch.device("cpu"))
    flat = torch.cat(list(places)).to(device)
    sizes, floors = torch.tensor([(gate.n, gate.floor) for gate in bank.gates], device=device).unbind(1)
    nothing = torch.zeros_like(sizes)
    root.register_parameter(OFFSETS, Offsets(torch.full((len(bank.gates),), bank.start, device=device)))
    for name, numbers in ((PLACES, flat), (BAKED, nothing), (OPEN, torch.ones_like(flat))):
        root.register_buffer(name, guarded(numbers))
    # What follows from the above: sizes and floors, every unit's gate, and every gate's last unit to close.
    owner = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
    for name, numbers in ((SIZES, sizes), (FLOORS, floors), (OWNER, owner), (LAST, nothing)):
        root.register_buffer(name, guarded(numbers), persistent=False)
    setattr(root, BANK, bank)
    find_last_(bank)


def find_last_(bank: Bank) -> None:
    """Notes the last unit of every gate to close; it follows from the places."""
    last = [gate.first + int(bank.places(index).argmax()) for index, gate in enumerate(bank.gates)]
    getattr(bank.root, LAST).copy_(guarded(torch.tensor(last)))


def uninstall_bank_(root: nn.Module) -> None:
    """Takes everything off the root that `install_bank_` put there."""
    for name in (OFFSETS, PLACES, BAKED, OPEN, SIZES, FLOORS, OWNER, LAST, BANK):
        if hasattr(root, name):
            delattr(root, name)


def bank_of(root: nn.Module) -> Bank | None:
    """The bank of a model, if gates were inserted into it."""
    bank = getattr(root, BANK, None)
    return bank if isinstance(bank, Bank) else None
