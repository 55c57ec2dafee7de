"""Counting on an exported graph: multiply-accumulates, call by call, and the bytes of activations alive at once."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from headgate.channels.example import Example
from headgate.channels.rules.step import module_paths
from headgate.channels.running import first_calls
from headgate.channels.trace import aliases, export
from headgate.errors import TraceError
from headgate.macs import RULES, Arguments, elements

# Operations whose work is no plain sum of products; named in the result instead of being passed over.
_HEAVY = ("linalg_", "fft_", "stft", "istft", "cdist", "_cdist", "geqrf", "ormqr", "cholesky", "_transformer_encoder")


@dataclass(frozen=True)
class Call:
    """One operation that multiplies and adds.

    Where `weights` names parameters, `macs` is the number of their elements times how often each is used.
    """

    operation: str
    modules: tuple[str, ...]
    macs: int
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Count:
    """What was counted in the evaluation view of a model."""

    calls: tuple[Call, ...]
    peak_activation_bytes: int
    uncounted: tuple[str, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one forward pass."""
        return sum(call.macs for call in self.calls)


def count(model: nn.Module, example: Example, operation: str) -> Count:
    """Exports the model in evaluation mode and counts.

    Raises:
        ArgumentError: the model does not run on the example.
        TraceError: torch.export cannot trace the model, or sizes in it depend on values; names model and reason.
    """
    try:
        program = export(model, example, training=False, operation=operation)
    except TraceError:
        first_calls(model, example, operation)
        raise
    # Whether a result that nobody reads is still in the graph is by accident: torch drops it where it rewrites a graph.
    program.graph.eliminate_dead_code()
    unknown = _unknown_size(program)
    if unknown is not None:
        raise TraceError(
            f"{operation}: {type(model).__name__} has no fixed cost: the size of {unknown} depends on values"
        )
    calls, uncounted = _calls(program, aliases(model))
    return Count(calls, _peak(program), uncounted)


def _unknown_size(program: ExportedProgram) -> str | None:
    """The first operation whose result has a size that is no number, and its module."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            return f"{node.target} in module {(module_paths(node) or [''])[-1] or 'root'}"
    return None


def _calls(program: ExportedProgram, names: dict[str, str]) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    specs = program.graph_signature.input_specs
    parameters = {spec.arg.name: str(spec.target) for spec in specs if spec.kind is InputKind.PARAMETER}
    calls: list[Call] = []
    uncounted: dict[str, None] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        space, _, name = str(node.target).partition(".")
        name = name.partition(".")[0]
        if space == "aten" and name in RULES:
            macs, weights = RULES[name](node, _bind(node))
            named = [parameters[weight.name] for weight in weights if weight.name in parameters]
            whole = tuple(names.get(name, name) for name in named) if len(named) == len(weights) else ()
            calls.append(Call(name, tuple(module_paths(node)), macs, whole))
        elif _may_multiply(node, space, name):
            uncounted[f"{space}.{name}" if name else space] = None
    return tuple(calls), tuple(uncounted)


def _may_multiply(node: Node, space: str, name: str) -> bool:
    """Whether the operation is one that the rules should know but do not: an expensive one, or not of ATen."""
    if isinstance(node.target, torch._ops.OpOverload):
        return name.startswith(_HEAVY) if space in ("aten", "prims") else True
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _bind(node: Node) -> Arguments:
    """Arguments by name, as nodes and plain values."""
    schema = node.target._schema  # type: ignore[union-attr]
    return {**dict(zip((a.name for a in schema.arguments), node.args, strict=False)), **node.kwargs}


def _peak(program: ExportedProgram) -> int:
    """The most bytes of activations alive at once, each from the operation that makes it to the last that uses it."""
    nodes = list(program.graph.nodes)
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    owner: dict[Node, Node] = {}
    last: dict[Node, int] = {}
    for place, node in enumerate(nodes):
        owner[node] = owner[node.all_input_nodes[0]] if _is_view(node) else node
        for used in (node, *node.all_input_nodes):
            last[owner[used]] = place
    ends: dict[int, list[Node]] = {}
    for node, place in last.items():
        ends.setdefault(place, []).append(node)
    sizes = {node: _bytes(node) for node in last if node.name in inputs or node.op == "call_function"}
    alive = sum(size for node, size in sizes.items() if node.op == "placeholder")
    highest = alive
    for place, node in enumerate(nodes):
        alive += sizes.get(node, 0) if node.op == "call_function" else 0
        highest = max(highest, alive)
        alive -= sum(sizes.get(ended, 0) for ended in ends.get(place, []))
    return highest


def _is_view(node: Node) -> bool:
    """Whether the result lies in its first input's memory: by the operation's signature, or since nothing happens."""
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    if node.target is operator.getitem or node.target is torch.ops.aten._unsafe_view.default:
        return True
    if node.target is torch.ops.aten.clone.default:
        # In evaluation mode dropout hands its input on; the graph holds a copy in its place.
        return "dropout" in str(node.meta.get("torch_fn", ""))
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    tensors = value if isinstance(value, (tuple, list)) else [value]
    return sum(elements(tensor) * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))
