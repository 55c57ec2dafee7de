"""The entries of residual branches: where one reader takes channels from a stream that others read too.

An entry is a layer of the branch, a BatchNorm, convolution or linear map, that reads what its shortcut reads. Of a
BatchNorm's outputs the channels go on, each by itself, to the layers that sum over them; if they go nowhere else, all
of that can do with fewer channels than the stream has, and the layer picks them from it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from headgate.channels.obstacle import Obstacle
from headgate.channels.rules import contraction, movement, norms, pointwise, reduction, rule_for, spatial
from headgate.channels.rules.step import module_paths
from headgate.channels.values import Value
from headgate.channels.walk import Walk, operation_of, path_of
from headgate.layers import can_gather

Axis = tuple[str, int]
Node = torch.fx.Node

_READERS = (contraction.convolution, contraction.linear)
# Rules of operations on a single tensor that leave every channel by itself, as far as they leave it at all.
_PASSING = (
    pointwise.pointwise, pointwise.copy, pointwise.dropout, reduction.reduction, movement.view, movement.permute,
    movement.transpose,
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """The layer at `path` that reads a stream along `axis` of a tensor of its own.

    `masked` are the axes that sum over what was read, `sliced` all axes that carry it.
    """

    path: str
    axis: Axis
    masked: tuple[Axis, ...]
    sliced: tuple[Axis, ...]


@dataclass
class View:
    """What one graph says: its entries and those that cannot gather, by path, and every tensor it uses."""

    entries: dict[str, Entry] = field(default_factory=dict)
    refused: dict[str, tuple[Axis, Obstacle]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


class _BlockedError(Exception):
    """What is read goes where it cannot be followed."""


def view_of(program: ExportedProgram, walk: Walk, model: nn.Module) -> View:
    """The entries of one graph that was walked."""
    return _Search(program, walk, model).view()


def agreed(views: Sequence[View]) -> tuple[list[Entry], list[tuple[Axis, Obstacle]]]:
    """Entries on which all graphs agree that use any of their tensors, and what stands in the way of the others."""
    entries, refused = [], {}
    for view in views:
        refused.update(view.refused)
    for path, entry in {path: entry for view in views for path, entry in view.entries.items()}.items():
        names = {name for name, _ in entry.sliced}
        if all(view.entries.get(path) == entry or names.isdisjoint(view.used) for view in views):
            entries.append(entry)
        else:
            why = "is read otherwise in training than in evaluation"
            refused.setdefault(path, (entry.axis, Obstacle(path, "gather", why)))
    return entries, [refused[path] for path in refused if all(entry.path != path for entry in entries)]


class _Search:
    """Looks for entries in one graph, in its order: what follows an entry belongs to it."""

    def __init__(self, program: ExportedProgram, walk: Walk, model: nn.Module) -> None:
        self._walk, self._model, self._graph = walk, model, program.graph
        self._stored = set(walk.names.values())
        targets = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs if spec.target}
        self._names = {
            node: walk.names.get(targets[node.name], targets[node.name])
            for node in self._graph.nodes
            if node.op == "placeholder" and node.name in targets
        }
        self._uses = Counter(dict.fromkeys(self._names.values(), 0))
        for node, name in self._names.items():
            self._uses[name] += len(node.users)

    def view(self) -> View:
        """All entries of the graph."""
        view, covered = View(used={name for name, uses in self._uses.items() if uses}), set[Axis]()
        for node in self._graph.nodes:
            own = self._own_axis(node)
            if own is None or own in covered or not self._opens_a_branch(node):
                continue
            path = path_of(node)
            try:
                entry = self._entry(node, path, own)
            except _BlockedError as blocked:
                view.refused[path] = (own, Obstacle(path, "gather", str(blocked)))
            else:
                view.entries[path] = entry
                covered.update(entry.sliced)
        return view

    def _own_axis(self, node: Node) -> Axis | None:
        """The axis along which a layer of its own parameters or statistics meets the channels it reads."""
        rule = _rule(node)
        if rule is norms.batch_norm:
            named = [self._names[one] for one in node.all_input_nodes[1:] if one in self._names]
            return (named[0], 0) if named else None
        if rule in _READERS and len(node.all_input_nodes) > 1:
            weight = node.all_input_nodes[1]
            axis = 1 if int(self._walk.bound(node).get("groups", 1)) == 1 else 0
            if weight in self._names and self._walk.values[weight].shape[axis] > 1:
                return self._names[weight], axis
        return None

    def _opens_a_branch(self, node: Node) -> bool:
        """Whether the layer is one of a residual branch's own, and reads units from before the branch."""
        x = self._walk.values.get(node.all_input_nodes[0])
        if not isinstance(x, Value) or not x.fields:
            return False
        return any(self._walk.bits.get(node, 0) & own and not x.history & own for own in self._walk.residuals)

    def _entry(self, node: Node, path: str, own: Axis) -> Entry:
        source = node.all_input_nodes[0]
        if not can_gather(self._model.get_submodule(path)):
            raise _BlockedError("is no layer that can pick channels from a wider stream")
        if path in module_paths(source) or any(path in module_paths(user) for user in source.users if user is not node):
            raise _BlockedError("does more with its input than to read it")
        masked: list[Axis] = []
        sliced: list[Axis] = []
        labels = set(_labels(self._walk.values[source]))
        for axis, reads in self._read(node, source, labels):
            sliced.append(axis)
            masked += [axis] if reads else []
        if not masked or own not in sliced:
            raise _BlockedError("no layer reads what it passes on")
        return Entry(path, own, tuple(sorted(masked)), tuple(sorted(sliced)))

    def _read(self, node: Node, source: Node, labels: set[int]) -> Iterator[tuple[Axis, bool]]:
        """The axes of tensors that carry what `node` takes from `source`, and whether they sum over it."""
        rule = _rule(node)
        if rule in _READERS:
            yield self._summed(node, source), True
        elif rule is norms.batch_norm:
            for tensor in node.all_input_nodes[1:]:
                yield (self._only_here(tensor), 0), False
            yield from self._passed_on(node, labels)
        elif self._passes(node):
            yield from self._passed_on(node, labels)
        else:
            where = path_of(node) or "the model's own code"
            raise _BlockedError(f"what it passes on goes through {operation_of(node)} in {where}")

    def _passed_on(self, node: Node, labels: set[int]) -> Iterator[tuple[Axis, bool]]:
        """What happens to the first output; the others of a BatchNorm are statistics that the module keeps."""
        if isinstance(node.meta.get("val"), (tuple, list)):
            others = [user for user in node.users if user.args[1] != 0]
            if any(user.op != "output" for other in others for user in other.users):
                raise _BlockedError(f"the code uses another result of {operation_of(node)}")
            outputs = [user for user in node.users if user.args[1] == 0]
        else:
            outputs = [node]
        for output in outputs:
            if set(_labels(self._walk.values[output])) != labels:
                raise _BlockedError(f"{operation_of(node)} takes its channels apart")
            for user in output.users:
                if user.op == "output":
                    raise _BlockedError("the model returns what it passes on")
                yield from self._read(user, output, labels)

    def _passes(self, node: Node) -> bool:
        name = operation_of(node)
        known = name in spatial.RULES or _rule(node) in _PASSING
        return known and node.target is not operator.getitem and len(node.all_input_nodes) == 1

    def _summed(self, node: Node, source: Node) -> Axis:
        name, arguments = operation_of(node), self._walk.bound(node)
        alone = node.all_input_nodes[0] is source and int(arguments.get("groups", 1)) == 1
        if not alone or "transpose" in name or arguments.get("transposed", False) or len(node.all_input_nodes) < 2:
            raise _BlockedError(f"{name} in {path_of(node) or 'the model'} groups channels or is transposed")
        return self._only_here(node.all_input_nodes[1]), 1

    def _only_here(self, tensor: Node) -> str:
        """The name of a parameter or buffer that nothing else uses."""
        name = self._names.get(tensor)
        if name is None or name not in self._stored:
            raise _BlockedError("computes its weight, or takes it from elsewhere")
        if self._uses[name] != 1:
            raise _BlockedError(f"{name} is used in several places")
        return name


def _rule(node: Node) -> Any:
    return rule_for(node.target, operation_of(node)) if node.op == "call_function" else None


def _labels(value: Any) -> list[int]:
    """All labels of a value with one field; none where it has several or none."""
    if not isinstance(value, Value) or len(value.fields) != 1:
        return []
    return value.fields[0].unique().tolist()  # type: ignore[no-any-return]
