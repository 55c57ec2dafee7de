"""From a graph to the ledger: a walk with the rules.

Both views, training and evaluation, write into one ledger, since a unit must be removable in both: heads that exist
only in training protect what they read.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from headgate.channels.attributes import SIZED, Length
from headgate.channels.ledger import NO_UNIT, Ledger
from headgate.channels.obstacle import Obstacle
from headgate.channels.rules import contraction, rule_for
from headgate.channels.rules.step import Step, module_paths
from headgate.channels.values import INPUT, Value, on_axis

# Operations that send 0 to 0, channel by channel: a branch that was silenced stays silent through them.
ZERO_TO_ZERO = frozenset({
    "relu", "relu6", "leaky_relu", "gelu", "silu", "hardswish", "mish", "elu", "celu", "selu", "tanh", "mul", "neg",
    "abs", "clone", "alias", "detach", "_to_copy", "to", "type_as", "dropout", "native_dropout", "div", "prelu",
    "permute", "transpose", "feature_dropout", "hardtanh", "softsign", "tanhshrink", "softshrink", "hardshrink",
})  # fmt: skip

# Those of them that change the shape, and nothing else.
MOVES = ("permute", "transpose")

# The operation of an obstacle that is the end of a part which can be traced.
BORDER = "border"

# Those that take channels elsewhere, whole.
_MOVES_CHANNELS = frozenset({
    "view", "reshape", "_unsafe_view", "unflatten", "flatten", "contiguous", "expand", "squeeze", "unsqueeze", "slice",
    "select", "split", "split_with_sizes", "chunk", "unbind", "repeat_interleave",
})  # fmt: skip

# Overloads that reduce nothing, unlike the others of their name.
_OF_TWO_TENSORS = {"aten.max.other": "maximum", "aten.min.other": "minimum"}


class Walk:
    """Carries values through one exported graph, writing entries into a ledger shared by several walks.

    `values` holds what is known of every node. With `narrow`, what the model returns may lose channels too. `part` is
    the path of what was traced, if that is not the whole model.
    """

    def __init__(
        self,
        ledger: Ledger,
        names: dict[str, str],
        parameters: frozenset[str],
        widths: dict[str, Tensor],
        narrow: bool = False,
        part: str = "",
    ) -> None:
        self._ledger = ledger
        self._parameters = parameters
        self._widths = widths
        self._narrow = narrow
        self._part = part
        self.names = names
        self.values: dict[torch.fx.Node, Any] = {}
        # The bit of each layer in histories, and the own layers of every residual branch.
        self.bits: dict[torch.fx.Node, int] = {}
        self.residuals: list[int] = []
        self._layers = 0
        # Axes of units whose sizes the code gives.
        self.lengths: list[Length] = []

    def run(self, program: ExportedProgram) -> None:
        """Walks the graph and protects what the model returns, unless that may become narrower."""
        inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node, inputs[node.name])
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = None
        outputs = next(node for node in program.graph.nodes if node.op == "output").args[0]
        for spec, node in zip(program.graph_signature.output_specs, outputs, strict=True):
            self._finish(spec, node)

    def _input(self, node: torch.fx.Node, spec: Any) -> Any:
        shape = _shape(node.meta.get("val"))
        named = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        if shape is None or not named or spec.target is None:
            return None if shape is None else Value(shape, history=INPUT if spec.kind is InputKind.USER_INPUT else 0)
        name = self.names.get(spec.target, spec.target)
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.target not in self.names:
            return Value(shape)
        return self._named(name, shape)

    def _named(self, name: str, shape: tuple[int, ...]) -> Value:
        fields = (
            on_axis(self._ledger.labels(name, axis, size), axis, len(shape))
            for axis, size in enumerate(shape)
            if size > 1
        )
        return Value(shape, tuple(fields), source=name)

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            container, number = self.values[cast(torch.fx.Node, node.args[0])], cast(int, node.args[1])
            value = container[number] if isinstance(container, (tuple, list)) else None
            return replace(value, shared=len(node.users) > 1) if isinstance(value, Value) else value
        name = operation_of(node)
        rule = rule_for(node.target, name)
        result = node.meta.get("val")
        shapes = tuple(map(_shape, result)) if isinstance(result, (tuple, list)) else (_shape(result),)
        step = Step(
            self._ledger, name, path_of(node), self.bound(node), shapes, self._widths, node, self._parameters,
            self.residuals,
        )  # fmt: skip
        value = rule(step)
        values = tuple(self._aged(one, step) for one in (value if isinstance(value, tuple) else (value,)))
        if name in SIZED:
            around = tuple(reversed(module_paths(node)))
            self.lengths += [(around, field.unique()) for one in values for field in one.fields]
        if isinstance(result, (tuple, list)):
            return values
        return replace(values[0], shared=len(node.users) > 1)

    def _aged(self, value: Value, step: Step) -> Value:
        """The value with what all operations do to history and origin."""
        arguments = step.values()
        history = 0
        for argument in arguments:
            history |= argument.history
        if any(argument.source is not None for argument in arguments):
            self._layers += 1
            history |= 1 << self._layers
            self.bits.setdefault(step.node, 1 << self._layers)
        origin = value.origin
        if origin is None and step.operation in ZERO_TO_ZERO:
            origins = [a.origin for a in arguments if a.origin is not None]
            whole = all(a.shape == value.shape or step.operation in MOVES for a in arguments if a.origin is not None)
            origin = origins[0] if len(origins) == 1 and whole else None
        rows = value.silenced_by or (value.origin.masked if value.origin is not None else self._still_silent(step))
        heard = "" if rows else self._heard_after(step)
        return replace(value, history=history, origin=origin, silenced_by=rows, heard_after=heard)

    @staticmethod
    def _heard_after(step: Step) -> str:
        """Which operation, this one or one since the last linear map, no longer leaves a silent unit silent."""
        values = [] if step.operation in contraction.RULES else step.values()
        if any(value.silenced_by for value in values):
            return f"{step.operation} in {step.path or 'the model'}"
        return next((value.heard_after for value in values if value.heard_after), "")

    def _still_silent(self, step: Step) -> tuple[tuple[str, int], ...]:
        """The rows that silence what goes in, where each channel by itself goes on and zeros stay zeros."""
        if step.operation not in ZERO_TO_ZERO and step.operation not in _MOVES_CHANNELS:
            return ()
        values = step.values()[:1] if step.operation == "div" else step.values()
        return next((value.silenced_by for value in values if value.silenced_by), ())

    def bound(self, node: torch.fx.Node) -> dict[str, Any]:
        """Arguments by name, nodes replaced by their values, defaults filled in."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return {str(i): self._resolve(a) for i, a in enumerate(node.args)}
        bound = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        bound.update(zip((a.name for a in schema.arguments), node.args, strict=False))
        bound.update(node.kwargs)
        return {name: self._resolve(argument) for name, argument in bound.items()}

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return [self._resolve(item) for item in argument]
        return argument

    def _finish(self, spec: Any, node: Any) -> None:
        value = self.values.get(node) if isinstance(node, torch.fx.Node) else None
        if not isinstance(value, Value):
            return
        if spec.kind is OutputKind.BUFFER_MUTATION:
            self._overwritten(self.names.get(spec.target, spec.target), value)
            return
        obstacle = returned_by(node, self._part)
        for field in value.fields:
            if self._narrow:
                # Whoever calls the model reads it.
                self._ledger.read(field[field != NO_UNIT])
            else:
                self._ledger.stay(field, obstacle)

    def _overwritten(self, name: str, value: Value) -> None:
        """A buffer that takes a new value at every call has the units of that value."""
        obstacle = Obstacle(name.rpartition(".")[0], name, "is overwritten with a tensor of fixed size")
        for axis, size in enumerate(value.shape):
            if size > 1:
                mine, theirs = self._ledger.labels(name, axis, size), value.field_on(axis)
                if theirs is None:
                    self._ledger.stay(mine, obstacle)
                else:
                    self._ledger.join(on_axis(mine, axis, value.ndim), theirs, obstacle)


def returned_by(node: torch.fx.Node, part: str) -> Obstacle:
    """Why channels stay that the model returns, or a part of it that was traced alone."""
    if not part:
        return Obstacle(path_of(node), "output", "the model returns it")
    return Obstacle(path_of(node), BORDER, f"{part} returns it to code that torch.export cannot trace")


def _shape(result: Any) -> tuple[int, ...] | None:
    return tuple(int(size) for size in result.shape) if isinstance(result, Tensor) else None


def operation_of(node: torch.fx.Node) -> str:
    """The bare name of an ATen operation; others keep their full name, which no rule has."""
    if node.target is operator.getitem:
        return "getitem"
    name = str(node.target)
    if name in _OF_TWO_TENSORS:
        return _OF_TWO_TENSORS[name]
    return name.split(".")[1] if name.startswith("aten.") else name


def path_of(node: torch.fx.Node) -> str:
    """The path of the innermost module whose forward made this node."""
    return (module_paths(node) or [""])[-1]
