"""Questions about a gated model, and the two things that can be done to its gates: freezing and baking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import torch
from torch import nn

from headgate.bank import BANK, Bank, InsertedGate, bank_of
from headgate.errors import ArgumentError, GateError
from headgate.gate import Gate, require_finite
from headgate.masked_weight import MaskedWeight
from headgate.unmask import bake_inserted_

AnyGate: TypeAlias = Gate | InsertedGate
# What holds a parameter of offsets: a hand-placed gate its one, a bank those of all inserted gates.
OffsetOwner: TypeAlias = Gate | Bank

_SHARDED = frozenset({"FullyShardedDataParallel", "FSDPModule"})


def unwrap(model: nn.Module, operation: str) -> nn.Module:
    """The user's own module inside DistributedDataParallel, DataParallel and torch.compile wrappers.

    Errors are told in the name of `operation`.

    Raises:
        ArgumentError: what was given is no module.
        GateError: the model or a part of it is sharded by FSDP, where no rank holds the gates whole.
    """
    return _seen(model, operation).root


@dataclass(frozen=True)
class _Seen:
    """The user's own module, the classes of all modules in it, and those modules that gates were inserted into."""

    root: nn.Module
    kinds: set[type[nn.Module]]
    gated: list[nn.Module]

    def placed(self) -> dict[str, Gate]:
        """The hand-placed gates, by path. The classes of all modules tell if there are any."""
        if not any(issubclass(kind, Gate) for kind in self.kinds):
            return {}
        return {path: module for path, module in _paths(self.root) if isinstance(module, Gate)}

    def banks(self) -> dict[str, Bank]:
        """The inserted gates of the model, or of parts of it that were gated by themselves, by the path of the part."""
        if not self.gated:
            return {}
        named = [("", self.root)] if self.gated == [self.root] else _paths(self.root)
        return {path: bank for path, module in named if (bank := _own_bank(module)) is not None}


def _seen(model: nn.Module, operation: str) -> _Seen:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"{operation}: a model must be a torch.nn.Module, not {type(model).__name__}")
    modules = _modules(model)
    kinds = set(map(type, modules))
    for kind in kinds:
        if any(base.__name__ in _SHARDED for base in kind.__mro__):
            raise GateError(
                f"{operation}: {kind.__name__} shards its parameters, which gates do not support yet; use DDP"
            )
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return _Seen(model, kinds, [module for module in modules if BANK in module.__dict__])


def _modules(root: nn.Module) -> set[nn.Module]:
    """All modules. `penalty` asks for them in every step, so this is faster than `modules`."""
    seen, waiting = {root}, [root]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                if not isinstance(child, MaskedWeight):  # a leaf: there may be hundreds
                    waiting.append(child)
    return seen


def _paths(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once with its path; a compiled part counts as the part itself."""
    for path, module in root.named_modules():
        yield ".".join(part for part in path.split(".") if part != "_orig_mod"), module


def _own_bank(module: nn.Module) -> Bank | None:
    """Not that of a module inside, which a compiled one would hand out as its own."""
    return bank_of(module) if BANK in module.__dict__ else None


def gates(model: nn.Module) -> dict[str, AnyGate]:
    """The model's gates by module path, each once, in the order of `named_modules`.

    Parts of the model that gates were inserted into by themselves count too, under their paths in the whole. A compiled
    part counts as the part itself: its wrapper does not show in the path.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), Gate(4), nn.Linear(4, 2))
        >>> gates(model)
        {'1': Gate(4, dim=1, fn='relu_tanh', scale='plain', floor=0)}
    """
    return _gates(model, "gates")


def _gates(model: nn.Module, operation: str) -> dict[str, AnyGate]:
    seen = _seen(model, operation)
    found: dict[str, AnyGate] = {**seen.placed()}
    for path, bank in seen.banks().items():
        found.update({f"{path}.{name}" if path else name: gate for name, gate in bank.views().items()})
    return found


def require_gates(model: nn.Module, operation: str) -> dict[str, AnyGate]:
    """`gates(model)`, or an error that names the operation that needs them."""
    return _gates(model, operation) or _no_gates(unwrap(model, operation), operation)


def require_owners(model: nn.Module, operation: str) -> dict[str, OffsetOwner]:
    """What holds the model's offsets: hand-placed gates by path, and the banks of inserted ones."""
    seen = _seen(model, operation)
    owners: dict[str, OffsetOwner] = {**seen.placed()}
    owners.update({f"inserted gates of {path}" if path else "inserted gates": b for path, b in seen.banks().items()})
    return owners or _no_gates(seen.root, operation)


def gated_parts(model: nn.Module, operation: str) -> dict[str, nn.Module]:
    """The modules that gates were inserted into, by path: the model itself is "", others are parts of it."""
    return {path: bank.root for path, bank in _seen(model, operation).banks().items()}


def refuse_gated_parts(model: nn.Module, operation: str, instead: str) -> None:
    """Raises where gates were inserted into a part of the model: what is known of them is known of that part."""
    inner = [path for path in gated_parts(model, operation) if path]
    if inner:
        name = type(unwrap(model, operation)).__name__
        raise GateError(
            f"{operation}: gates were inserted into the part {inner[0]!r} of this {name}, not into the whole: "
            + instead.format(f"model.get_submodule({inner[0]!r})")
        )


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
            # A baked gate does not listen to its offset, which may say something else than what is open.
            offset = "–" if gate.baked else f"{gate.offset:+.3f}"
            lines.append(f"{gate.name:<{width}}  {offset:<6}  {gate.open:>5}/{gate.total}{note}")
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
        raise ArgumentError(f"freeze_: frozen={frozen!r} must be True or False")
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
    owners = require_owners(model, "bake_").values()
    for owner in owners:  # first those that may refuse
        if isinstance(owner, Bank):
            bake_inserted_(owner)
    for owner in owners:
        if isinstance(owner, Gate):
            owner.gain.copy_(owner.mask())
            owner.baked.fill_(1)


def check_offsets(found: dict[str, AnyGate]) -> None:
    """Raises where an offset is not a finite number, naming the gates."""
    require_finite({name: gate.offset for name, gate in found.items()})
