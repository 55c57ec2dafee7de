"""One operation of the traced graph as a rule sees it, and the entries that several families of rules share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headgate.channels.ledger import Ledger
from headgate.channels.obstacle import Obstacle
from headgate.channels.values import Value, aligned, as_vector, on_axis, varies

# Begins the name under which the ledger knows a tensor that the code makes anew at every call.
MADE = "@"


@dataclass(frozen=True)
class Step:
    """An operation: its arguments by schema name (tensors as Values), the shapes it returns, and where it stands.

    `about` says, in words of the user's code, what part of the operation reasons are told of, if only one is.
    """

    ledger: Ledger
    operation: str
    path: str
    arguments: dict[str, Any]
    shapes: tuple[tuple[int, ...] | None, ...]
    widths: dict[str, Tensor]
    node: torch.fx.Node
    parameters: frozenset[str]
    residuals: list[int]
    about: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first tensor it returns."""
        shape = self.shapes[0]
        assert shape is not None
        return shape

    def obstacle(self, reason: str) -> Obstacle:
        """This operation as what stands in the way."""
        return Obstacle(self.path, self.operation, f"{reason} ({self.about})" if self.about else reason)

    def value(self, name: str) -> Value:
        """A tensor argument that is always there."""
        value = self.arguments[name]
        assert isinstance(value, Value)
        return value

    def optional(self, name: str) -> Value | None:
        """A tensor argument that may be missing."""
        value = self.arguments.get(name)
        return value if isinstance(value, Value) else None

    def values(self) -> list[Value]:
        """All tensor arguments, also those in lists."""
        return list(_values_in(self.arguments.values()))

    @property
    def first(self) -> Value:
        """The first tensor argument, whatever its name."""
        return next(iter(self.values()))

    def results(self, fields: tuple[Tensor, ...]) -> Value | tuple[Value, ...]:
        """The same fields on everything the operation returns."""
        values = tuple(Value(shape, fields) for shape in self.shapes if shape is not None)
        return values if len(self.shapes) > 1 else values[0]

    def made(self, axes: Iterable[int]) -> tuple[Tensor, ...]:
        """Fields for axes whose size the code gives, with labels of their own: perhaps it is taken from what they meet.

        If it is not, the model's code fails on fewer channels, and the trial finds out.
        """
        name, ndim = f"{MADE}{self.node.name} in {self.path or 'the model'}", len(self.shape)
        sizes = {axis: self.shape[axis] for axis in axes if self.shape[axis] > 1}
        return tuple(on_axis(self.ledger.labels(name, axis, size), axis, ndim) for axis, size in sizes.items())

    def maskable(self, value: Value, labels: Tensor | None) -> bool:
        """Whether these labels of a factor belong to a parameter, which a mask on it would silence."""
        if labels is None or value.source not in self.parameters:
            return False
        return self.ledger.owns(value.source, labels)

    def is_whole(self, value: Value) -> bool:
        """Whether the value is a parameter or buffer as it is stored, its axes in their own order."""
        if value.source is None:
            return False
        fields = {axis: size for axis, size in enumerate(value.shape) if size > 1}
        stored = [on_axis(self.ledger.labels(value.source, a, s), a, value.ndim) for a, s in fields.items()]
        return len(stored) == len(value.fields) and all(map(torch.equal, stored, value.fields))

    def dim(self, name: str, ndim: int) -> int:
        """An axis argument, counted from the front."""
        return int(self.arguments[name]) % ndim

    def width(self, labels: Tensor) -> None:
        """Notes how many channels this module normalises: some keep the number in an attribute and no parameter."""
        self.widths[self.path] = labels

    def residual(self, layers: int) -> None:
        """Notes the layers of a residual branch that its shortcut does not have, as bits of a history."""
        self.residuals.append(layers)

    def block_around(self, shortcut: int) -> str | None:
        """The module whose whole forward is this sum of its own input, the addend `shortcut`, and a branch."""
        enclosing = module_paths(self.node)
        addend = [argument for argument in self.node.args if isinstance(argument, torch.fx.Node)][shortcut]
        if not self.path or self.path in module_paths(addend):
            return None
        inside = any(self.path in module_paths(user) for user in self.node.users)
        return None if inside or self.path not in enclosing else self.path

    def stay(self, fields: Iterable[Tensor], reason: str) -> None:
        """All units of these fields must stay."""
        for field in fields:
            self.ledger.stay(field, self.obstacle(reason))

    def stays_on(self, value: Value, dims: Iterable[int], reason: str) -> tuple[Tensor, ...]:
        """Units along any of these axes must stay; the fields that are left alone are returned."""
        mixed = {dim % value.ndim for dim in dims}
        self.stay((field for field in value.fields if varies(field) & mixed), reason)
        return tuple(field for field in value.fields if not varies(field) & mixed)

    def stays_silently(self, value: Value, dims: Iterable[int]) -> None:
        """As `stays_on`, where it goes without saying: nobody expects a kernel's height to shrink."""
        for dim in dims:
            for field in value.fields:
                if field.shape[dim] > 1:
                    self.ledger.stay(field, None)

    def vector(self, value: Value, dim: int) -> Tensor | None:
        """The labels along one axis; where they depend on other axes too, those are tied together first."""
        fields = [field for field in value.fields if field.shape[dim] > 1]
        if not fields:
            return None
        vector, rows = as_vector(self.together(fields)[0], dim)
        if rows.shape[0] > 1:
            self.ledger.join(rows, vector, self.obstacle("meets a fixed channel"))
        return vector

    def settled(self, value: Value, dim: int) -> Value:
        """The value with units along one axis only: labels that also depend on positions are tied across these."""
        if not any(len(varies(field)) > 1 for field in value.fields):
            return value
        labels = self.vector(value, dim)
        others = tuple(field for field in value.fields if field.shape[dim] == 1)
        return value.with_fields(others if labels is None else (*others, on_axis(labels, dim, value.ndim)))

    def apart(self, field: Tensor) -> tuple[Tensor, ...]:
        """A field that varies along several axes as fields along one axis each: a view took an axis of channels apart.

        What lies at (i, j) goes where i or j goes. Which of the axes shrinks the ledger finds out in the end.
        """
        dims = sorted(varies(field))
        if len(dims) < 2:
            return (field,)
        axes = self.ledger.split(field.squeeze(), (self.path, self.operation))
        return tuple(on_axis(labels, dim, field.ndim) for labels, dim in zip(axes, dims, strict=True))

    def together(self, fields: list[Tensor]) -> list[Tensor]:
        """Fields of which no two vary along the same axis: those that do, since a view merged axes, become one."""
        found: list[Tensor] = []
        for field in fields:
            overlapping = [other for other in found if varies(other) & varies(field)]
            found = [other for other in found if not varies(other) & varies(field)]
            if overlapping:
                factors = torch.stack(torch.broadcast_tensors(*overlapping, field), -1)
                field = self.ledger.product(factors, (self.path, self.operation))
            found.append(field)
        return found

    def tie_pieces(self, value: Value, dim: int, length: int, stride: int = 1) -> Value:
        """Before channels are cut into pieces of equal length, or every stride-th is taken: the pieces shrink alike."""
        labels = self.vector(value, dim)
        if labels is None:
            return value
        if length == 0 or value.shape[dim] % (length * stride):
            self.stay([labels], "cuts channels into unequal pieces")
            return value
        rows = labels.reshape(-1, length if stride == 1 else stride)
        first = rows[:1] if stride == 1 else rows[:, :1]
        self.ledger.join(rows, first, self.obstacle("cuts it off from a channel that must stay"))
        return self.settled(value, dim)

    def join_vectors(self, left: Tensor | None, right: Tensor | None, reason: str) -> None:
        """Ties two axes; where one of them has no units, the other's must stay."""
        obstacle = self.obstacle(reason)
        if left is not None and right is not None:
            self.ledger.join(left, right, obstacle)
        else:
            for alone in (left, right):
                if alone is not None:
                    self.ledger.stay(alone, obstacle)

    def meet(self, values: list[Value], shape: tuple[int, ...], but: int | None = None) -> tuple[Tensor, ...]:
        """Fields of values that are combined element by element (broadcasting), tied where they overlap.

        `but` names an axis that is none of this rule's business.
        """
        met: list[tuple[int, Tensor]] = []
        ndim = len(shape)
        for number, value in enumerate(values):
            for field in (aligned(field, ndim) for field in value.fields):
                if but in varies(field):
                    continue
                for other in values[:number] + values[number + 1 :]:
                    self._tie(field, other, ndim)
                if not any(varies(known) & varies(field) and owner != number for owner, known in met):
                    met.append((number, field))
        return tuple(field for _, field in met)

    def _tie(self, field: Tensor, other: Value, ndim: int) -> None:
        sizes = (1,) * (ndim - other.ndim) + other.shape
        if all(sizes[dim] == 1 for dim in varies(field)):
            return
        partners = [g for f in other.fields if varies(g := aligned(f, ndim)) & varies(field)]
        if len(partners) == 1:
            self.ledger.join(field, partners[0], self.obstacle("combines it with a channel that must stay"))
        else:
            self.ledger.stay(field, self.obstacle("combines it with a tensor whose channels cannot be removed"))


def refused(step: Step, reason: str) -> Value:
    """Everything that goes in stays; nothing is known of what comes out."""
    for value in step.values():
        step.stay(value.fields, reason)
    return Value(step.shape)


def module_paths(node: torch.fx.Node) -> list[str]:
    """The paths of all modules whose forward encloses this node, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    return [str(path) for path, _ in stack.values()]


def module_kind(node: torch.fx.Node) -> str:
    """The full name of the class of the innermost module whose forward made this node."""
    kinds = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return str(kinds[-1]) if kinds else ""


def _values_in(arguments: Iterable[Any]) -> Iterable[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _values_in(argument)
