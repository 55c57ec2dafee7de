"""Questions about a gated model, and the two things that can be done to its gates: freezing and baking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import torch
from torch import nn

from headgate.bank import Bank, InsertedGate, bank_of
from headgate.errors import ArgumentError, GateError
from headgate.gate import Gate, require_finite
from headgate.masked import MaskedWeight
from headgate.unmask import bake_inserted_

AnyGate: TypeAlias = Gate | InsertedGate
# What holds a parameter of offsets: a hand-placed gate its one, a bank those of all inserted gates.
OffsetOwner: TypeAlias = Gate | Bank

_SHARDED = frozenset({"FullyShardedDataParallel", "FSDPModule"})


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, DataParallel and torch.compile wrappers.

    Raises:
        ArgumentError: what was given is no module.
        GateError: the model or a part of it is sharded by FSDP, where no rank holds the gates whole.
    """
    return _unwrap(model)[0]


def _unwrap(model: nn.Module) -> tuple[nn.Module, set[type[nn.Module]]]:
    """The user's own module, and the classes of all modules in the model."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"a model must be a torch.nn.Module, not {type(model).__name__}")
    kinds = _kinds(model)
    for kind in kinds:
        if any(base.__name__ in _SHARDED for base in kind.__mro__):
            raise GateError(f"{kind.__name__} shards its parameters, which gates do not support yet; use DDP")
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model, kinds


def _kinds(root: nn.Module) -> set[type[nn.Module]]:
    """The classes of all modules. `penalty` asks for them in every step, so this is faster than `modules`."""
    seen, waiting = {root}, [root]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                if not isinstance(child, MaskedWeight):  # a leaf: there may be hundreds
                    waiting.append(child)
    return set(map(type, seen))


def gates(model: nn.Module) -> dict[str, AnyGate]:
    """The model's gates by module path, each once, in the order of `named_modules`.

    A compiled part of the model counts as the part itself: its wrapper does not show in the path.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), Gate(4), nn.Linear(4, 2))
        >>> gates(model)
        {'1': Gate(4, dim=1, fn='relu_tanh', scale='plain', floor=0)}
    """
    root, kinds = _unwrap(model)
    bank = bank_of(root)
    return {**_placed(root, kinds), **(bank.views() if bank else {})}


def _placed(root: nn.Module, kinds: set[type[nn.Module]]) -> dict[str, Gate]:
    """The hand-placed gates, by path. The classes of all modules tell if there are any."""
    if not any(issubclass(kind, Gate) for kind in kinds):
        return {}
    return {
        ".".join(part for part in path.split(".") if part != "_orig_mod"): module
        for path, module in root.named_modules()
        if isinstance(module, Gate)
    }


def require_gates(model: nn.Module, operation: str) -> dict[str, AnyGate]:
    """`gates(model)`, or an error that names the operation that needs them."""
    return gates(model) or _no_gates(unwrap(model), operation)


def require_owners(model: nn.Module, operation: str) -> dict[str, OffsetOwner]:
    """What holds the model's offsets: hand-placed gates by path, and the bank of inserted ones."""
    root, kinds = _unwrap(model)
    bank = bank_of(root)
    owners: dict[str, OffsetOwner] = {**_placed(root, kinds)}
    if bank is not None:
        owners["inserted gates"] = bank
    return owners or _no_gates(root, operation)


def _no_gates(root: nn.Module, operation: str) -> NoReturn:
    raise GateError(f"{operation}: {type(root).__name__} has no gates; insert_gates_(model, example) or place a Gate")


@dataclass(frozen=True)
class GateStatus:
    """One gate at one moment."""

    name: str
    offset: float
    open: int
    total: int
    frozen: bool
    baked: bool


@dataclass(frozen=True)
class Status:
    """All gates of a model at one moment; prints as a table."""

    gates: tuple[GateStatus, ...]

    @property
    def open(self) -> int:
        """Open units over all gates."""
        return sum(gate.open for gate in self.gates)

    @property
    def total(self) -> int:
        """Units over all gates."""
        return sum(gate.total for gate in self.gates)

    def __str__(self) -> str:
        width = max(len("gate"), *(len(gate.name) for gate in self.gates))
        lines = [f"{'gate':<{width}}  offset   open/total"]
        for gate in self.gates:
            note = "  baked" if gate.baked else "  frozen" if gate.frozen else ""
            lines.append(f"{gate.name:<{width}}  {gate.offset:+.3f}  {gate.open:>5}/{gate.total}{note}")
        lines.append(f"{'all':<{width}}          {self.open:>5}/{self.total}  {self.open / self.total:.1%}")
        return "\n".join(lines)


def status(model: nn.Module) -> Status:
    """Offset and open units of every gate.

    Example:
        >>> print(status(nn.Sequential(nn.Linear(8, 4), Gate(4, offset=-2.0))))
        gate  offset   open/total
        1     -2.000      3/4
        all               3/4  75.0%

    Raises:
        GateError: no gates, or a gate whose offset is NaN, by name.
    """
    found = require_gates(model, "status")
    check_offsets(found)
    return Status(
        tuple(
            GateStatus(name or "root", gate.offset.item(), gate.active, gate.n, gate.frozen, bool(gate.baked))
            for name, gate in found.items()
        )
    )


def freeze_(model: nn.Module, frozen: bool = True) -> None:
    """Holds all offsets where they are, or lets them move again: a cold start is `freeze_(model, epoch < 20)`.

    Gradients still flow and `requires_grad` is untouched, so it is safe under DistributedDataParallel; the optimizer
    step leaves a frozen offset alone. A captured CUDA graph has to be captured anew after a change. Not part of the
    state dict, like `requires_grad`.
    """
    if not isinstance(frozen, bool):
        raise ArgumentError(f"frozen={frozen!r} must be True or False")
    for owner in require_owners(model, "freeze_").values():
        owner.frozen = frozen


@torch.no_grad()
def bake_(model: nn.Module) -> None:
    """Fixes every gate's mask at its present values: the same function, but offsets no longer matter.

    The masks of inserted gates move into the weights: open units are 1 from then on, closed ones 0. A hand-placed
    gate does not know the weights that read it, so the values stay in the gate, as the buffer `gain`. Baking twice
    changes nothing. A baked offset moves no more, unless its group has `offset_update="plain"`: then the optimizer
    still moves it, to no effect. Bake a model and its moving average (EMA) together, each by its own call.

    Raises:
        GateError: no gates, or a gate whose offset is NaN, by name; nothing has been changed then.
    """
    found = require_gates(model, "bake_")
    check_offsets(found)
    for owner in require_owners(model, "bake_").values():
        if isinstance(owner, Gate):
            owner.gain.copy_(owner.mask())
            owner.baked.fill_(1)
        else:
            bake_inserted_(owner)


def check_offsets(found: dict[str, AnyGate]) -> None:
    """Raises where an offset is not a finite number, naming the gates."""
    require_finite({name: gate.offset for name, gate in found.items()})
