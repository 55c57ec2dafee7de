"""The gates of a model that were inserted, not placed by hand: one flat vector of offsets on the root module.

The root itself holds the tensors, under the names below; a child module would be called by an `nn.Sequential`. The
`Bank` holds what is not a tensor and a way back to the root. `InsertedGate` is the view of one gate, and answers what a
hand-placed `Gate` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headgate.curve import Scale, mask_values
from headgate.errors import GateError

OFFSETS = "headgate_offsets"
PLACES = "headgate_places"
BAKED = "headgate_baked"
OPEN = "headgate_open"
SIZES = "headgate_sizes"
FLOORS = "headgate_floors"
BANK = "headgate_bank"


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
    frozen: bool = False

    @property
    def offset(self) -> Tensor:
        """The flat parameter, one offset per gate."""
        return getattr(self.root, OFFSETS)  # type: ignore[no-any-return]

    @property
    def baked(self) -> Tensor:
        """Whether each gate is baked."""
        return getattr(self.root, BAKED)  # type: ignore[no-any-return]

    @property
    def lowest(self) -> Tensor:
        """The lowest offset of each gate that leaves its floor open, half a unit from the next one's closing."""
        sizes, floors = getattr(self.root, SIZES), getattr(self.root, FLOORS)
        # At floor 0 the half unit goes the other way: all closed, at -span.
        open_units = (floors - 0.5).clamp_min(0).to(self.offset.dtype) + (1 - self.count_from) * (floors > 0)
        lowest: Tensor = self.span * (open_units / sizes - 1)
        return lowest

    def order(self, index: int) -> Tensor:
        """The order numbers μ of one gate, computed from integer places, which no cast can blur."""
        gate = self.gates[index]
        places = getattr(self.root, PLACES)[gate.first : gate.first + gate.n]
        numbers: Tensor = (places + self.count_from).to(self.offset.dtype) * (self.span / gate.n)
        return numbers

    def mask(self, index: int) -> Tensor:
        """The mask of one gate: open units are 1 and closed ones 0 once it is baked."""
        gate = self.gates[index]
        mask = mask_values(self.order(index), self.offset[index], self.start, self.steepness, self.fn, self.scale)
        opened = getattr(self.root, OPEN)[gate.first : gate.first + gate.n]
        return torch.where(self.baked[index] != 0, opened.to(mask.dtype), mask)

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
        if not bool(self.offset.isfinite()):
            raise GateError(f"the offset of gate {self._spec.name!r} is {self.offset.item()}: its training diverged")
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
    root.register_parameter(OFFSETS, Offsets(torch.full((len(bank.gates),), bank.start, device=device)))
    root.register_buffer(PLACES, flat)
    root.register_buffer(BAKED, torch.zeros(len(bank.gates), dtype=torch.uint8, device=device))
    root.register_buffer(OPEN, torch.ones(len(flat), dtype=torch.uint8, device=device))
    # Whole numbers, so that casting the model leaves them alone.
    for name, numbers in ((SIZES, [gate.n for gate in bank.gates]), (FLOORS, [gate.floor for gate in bank.gates])):
        root.register_buffer(name, torch.tensor(numbers, device=device), persistent=False)
    setattr(root, BANK, bank)


def uninstall_bank_(root: nn.Module) -> None:
    """Takes everything off the root that `install_bank_` put there."""
    for name in (OFFSETS, PLACES, BAKED, OPEN, SIZES, FLOORS, BANK):
        if hasattr(root, name):
            delattr(root, name)


def bank_of(root: nn.Module) -> Bank | None:
    """The bank of a model, if gates were inserted into it."""
    bank = getattr(root, BANK, None)
    return bank if isinstance(bank, Bank) else None
