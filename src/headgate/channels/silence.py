"""Channels that are zero wherever they are read: they can go, and nothing changes. The law of gates placed by hand.

A group's units can be removed if every layer that reads them reads zeros. So the zeros that some named tensors hold
(a fixed scale, multiplied onto an activation) are followed through the graph: an operation in `KEEPS_ZERO` sends a
channel of zeros to a channel of zeros, a product is zero where one factor is, a sum where all addends are, a matrix
product along the axes that it does not sum over, and of anything else nothing is known. What the model returns counts
as read, where it may become narrower at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from headgate.channels.attributes import counted
from headgate.channels.example import Example
from headgate.channels.groups import in_units, plan_of, with_inner
from headgate.channels.ledger import Ledger, Solution
from headgate.channels.obstacle import Obstacle
from headgate.channels.parts import Graph, graphs, views
from headgate.channels.plan import STAYS, Plan
from headgate.channels.rules import contraction, einsum, recurrent
from headgate.channels.trace import aliases
from headgate.channels.values import Value, as_vector, varies
from headgate.channels.walk import MOVES, ZERO_TO_ZERO, Walk, operation_of, path_of, returned_by

_CURVES = (
    "sin", "sinh", "asin", "asinh", "tan", "atan", "atanh", "expm1", "log1p", "erf", "sign", "sqrt", "square", "round",
    "floor", "ceil", "trunc", "rrelu", "rrelu_with_noise", "rrelu_with_noise_functional",
    "_prelu_kernel", "glu",
)  # fmt: skip
_MOVEMENTS = (
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_copy", "t", "expand",
    "flip", "repeat", "tile", "repeat_interleave", "movedim", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "native_channel_shuffle", "roll", "slice", "select", "narrow", "unfold", "im2col", "contiguous", "lift_fresh_copy",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d",
)  # fmt: skip
_PIECES = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "split_copy"})
_POOLS = tuple(
    kind.format(rank)
    for rank in (1, 2, 3)
    for kind in (
        "avg_pool{}d", "max_pool{}d", "adaptive_avg_pool{}d", "adaptive_max_pool{}d", "max_pool{}d_with_indices",
        "_adaptive_avg_pool{}d", "lp_pool{}d", "upsample_nearest{}d", "_upsample_nearest_exact{}d",
    )
)  # fmt: skip
_RESIZES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
_REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "linalg_vector_norm", "prod")

# Operations on one tensor that send zeros to zeros, channel by channel.
KEEPS_ZERO = frozenset({
    *(ZERO_TO_ZERO - {"mul", "div"}), *MOVES, *_CURVES, *_MOVEMENTS, *_PIECES, *_POOLS, *_RESIZES, *_REDUCTIONS,
})  # fmt: skip
# What they do not sum over passes through them, as an embedding does when neighbours are averaged.
_MATRIX_PRODUCTS = ("matmul", "mm", "bmm")
_READS = frozenset({*contraction.RULES, *einsum.RULES, *recurrent.RULES})

Units = frozenset[int]
_NONE: Units = frozenset()


@dataclass(frozen=True)
class Silence:
    """A model's plan, and what is known of the units that some tensors set to zero.

    `silent` says of every unit of the plan whether it is zero wherever it is read, `obstacles` why another one is not.
    `returned` gives, for every tensor that the model returns, the units along its axes, where these may go. `ends`
    names the linear map whose output, and nothing else, a tensor scales: perhaps the end of a residual branch.
    """

    plan: Plan
    silent: Tensor
    obstacles: Mapping[int, Obstacle]
    returned: tuple[Mapping[int, tuple[int, ...]], ...]
    ends: Mapping[str, str]


def find_silence(model: nn.Module, example: Example, zeros: Mapping[str, Tensor], narrow: bool = False) -> Silence:
    """Which units can go since `zeros` (by name of a vector, True where it is zero) silences them for all readers.

    With `narrow`, units that the model returns may go as well.
    """
    names, ledger = aliases(model), Ledger()
    parameters = frozenset(name for name, _ in model.named_parameters())
    widths: dict[str, Tensor] = {}
    walks: list[tuple[Walk, Graph]] = []
    # What comes out of a mere part of the model must stay.
    found = map(Graph, views(model, example, "compact")) if narrow else graphs(model, example, "compact")
    for graph in found:
        walks.append((Walk(ledger, names, parameters, widths, narrow, graph.part), graph))
        walks[-1][0].run(graph.program)
    solution = ledger.solve()
    plan, numbers = plan_of(solution, widths, names)
    sized = in_units([length for walk, _ in walks for length in walk.lengths], solution, numbers)
    plan = with_inner(plan, model, [graph.program for _, graph in walks])
    plan = replace(plan, may_count=counted(model, example, sized, plan.places))
    start = {
        names[name]: frozenset(solution.axes[names[name], 0][closed].tolist())
        for name, closed in zeros.items()
        if (names[name], 0) in solution.axes
    }
    following = _Following(solution, parameters, start)
    for walk, graph in walks:
        following.run(walk.values, graph)
    closed = {numbers[root] for roots in start.values() for root in roots if root in numbers}
    exposed = {numbers[root]: why for root, why in following.exposed.items() if root in numbers}
    returned = _returned(walks[-1], solution, numbers) if narrow else ()
    return Silence(plan, _silent(plan, closed - exposed.keys(), exposed.keys()), exposed, returned, following.ends)


def _silent(plan: Plan, closed: Set[int], exposed: Set[int]) -> Tensor:
    """Which units are zero wherever they are read: a head whose places all are, a place that is zero in all heads."""
    silent = torch.zeros(plan.size, dtype=torch.bool)
    silent[[number for number in sorted(closed) if number < plan.size]] = True
    heard = {
        unit for number, factors in enumerate(plan.products, plan.size) if number not in closed for unit in factors
    }
    carried = {unit for factors in plan.products for unit in factors}
    silent[sorted(carried - heard - exposed)] = True
    return silent


def _returned(
    walk: tuple[Walk, Graph], solution: Solution, numbers: dict[int, int]
) -> tuple[dict[int, tuple[int, ...]], ...]:
    """For every tensor that the last walk's graph returns, the plan's units along each axis that has some."""
    found = []
    for node in _outputs(walk[1].program):
        value = walk[0].values.get(node) if isinstance(node, Node) else None
        fields = {dim: value.field_on(dim) for dim in range(value.ndim)} if isinstance(value, Value) else {}
        axes = {}
        for dim, labels in ((dim, as_vector(field, dim)[0]) for dim, field in fields.items() if field is not None):
            axes[dim] = tuple(numbers.get(root, STAYS) for root in solution.roots[labels].tolist())
        found.append(axes)
    return tuple(found)


def _outputs(program: ExportedProgram) -> list[Any]:
    """What the user's code returns, in order."""
    nodes = next(node for node in program.graph.nodes if node.op == "output").args[0]
    specs = program.graph_signature.output_specs
    return [node for spec, node in zip(specs, nodes, strict=True) if spec.kind is OutputKind.USER_OUTPUT]


class _Following:
    """Carries through a graph, for every value, the units whose entries are all zero in it."""

    def __init__(self, solution: Solution, parameters: frozenset[str], start: dict[str, Units]) -> None:
        self._roots = solution.roots
        self._parameters = parameters
        self._start = start
        self._lost: dict[int, Obstacle] = {}
        self.exposed: dict[int, Obstacle] = {}
        self.ends: dict[str, str] = {}

    def run(self, values: Mapping[Node, Any], graph: Graph) -> None:
        """Walks one graph; `values` is what an earlier walk found out about its nodes."""
        zeros: dict[Node, Units] = {}
        for node in graph.program.graph.nodes:
            if node.op == "placeholder":
                value = values.get(node)
                zeros[node] = self._start.get(getattr(value, "source", None) or "", _NONE)
            elif node.op == "call_function":
                self._read(node, values, zeros)
                zeros[node] = self._after(node, values, zeros)
                self._note_losses(node, values, zeros)
                self._note_end(node, values)
        for node in _outputs(graph.program):
            if isinstance(node, Node):
                self._expose(node, values, zeros, returned_by(node, graph.part))

    def _carried(self, value: Any) -> Units:
        parts = value if isinstance(value, tuple) else (value,)
        fields = [field for part in parts if isinstance(part, Value) for field in part.fields]
        return frozenset(self._roots[torch.cat([f.reshape(-1) for f in fields])].tolist()) if fields else _NONE

    def _read(self, node: Node, values: Mapping[Node, Any], zeros: dict[Node, Units]) -> None:
        """A linear map sums over its inputs: units that are not zero there cannot go."""
        name = operation_of(node)
        if name not in _READS or (name in contraction.CONVOLUTIONS and argument(node, "groups") not in (1, None)):
            return
        given = argument(node, "input")
        whole = given if isinstance(given, Node) else None
        for read in [whole] if whole is not None else node.all_input_nodes:
            if whole is not None or getattr(values.get(read), "source", None) not in self._parameters:
                why = "reads it where it is not closed, past the gate; let it read what the gate returns"
                passing = self._passing(node, values).get(read, _NONE)
                self._expose(read, values, zeros, Obstacle(path_of(node), name, why), but=passing)
        if name in recurrent.RULES:
            why = "reads its own units from step to step, past any gate; gates from insert_gates_ can close them"
            for unit in self._carried(values.get(node)):
                self.exposed.setdefault(unit, Obstacle(path_of(node), name, why))

    def _passing(self, node: Node, values: Mapping[Node, Any]) -> dict[Node, Units]:
        """For each factor of a matrix product, the units that it has along axes other than the summed one only."""
        found: dict[Node, Units] = {}
        if operation_of(node) not in _MATRIX_PRODUCTS or node.args[0] is node.args[1]:
            return found
        for place, factor in enumerate(node.all_input_nodes):
            value = values.get(factor)
            if isinstance(value, Value) and value.ndim > 1:
                summed = value.ndim - 1 - place
                free = tuple(field for field in value.fields if summed not in varies(field))
                over = tuple(field for field in value.fields if summed in varies(field))
                found[factor] = self._carried(value.with_fields(free)) - self._carried(value.with_fields(over))
        return found

    def _expose(
        self, node: Node, values: Mapping[Node, Any], zeros: dict[Node, Units], why: Obstacle, but: Units = _NONE
    ) -> None:
        for unit in self._carried(values.get(node)) - zeros.get(node, _NONE) - but:
            self.exposed.setdefault(unit, self._lost.get(unit, why))

    def _after(self, node: Node, values: Mapping[Node, Any], zeros: dict[Node, Units]) -> Units:
        """The units that are zero in what an operation returns."""
        name, given = operation_of(node), [zeros.get(each, _NONE) for each in node.all_input_nodes]
        if not given:
            return _NONE
        if name == "getitem":
            whole = operation_of(node.all_input_nodes[0]) in _PIECES
            return given[0] if whole or node.args[1] == 0 else _NONE
        if name == "mul":
            return frozenset().union(*given)
        if name == "div":
            return given[0] if isinstance(node.args[0], Node) else _NONE
        if name in ("add", "sub"):
            numbers = [each for each in node.args if not isinstance(each, Node) and each != 0]
            return _NONE if numbers else frozenset.intersection(*given)
        if name in ("cat", "stack"):
            return _zero_in_all(given, [self._carried(values.get(each)) for each in node.all_input_nodes])
        if name in _MATRIX_PRODUCTS:
            passing = self._passing(node, values)
            return _zero_in_all(given, [passing.get(each, _NONE) for each in node.all_input_nodes])
        if name in contraction.CONVOLUTIONS:
            grouped = argument(node, "groups") not in (1, None) and argument(node, "bias") is None
            return given[0] if grouped else _NONE
        if name in ("pad", "constant_pad_nd"):
            return given[0] if argument(node, "value") in (None, 0) else _NONE
        return given[0] if name in KEEPS_ZERO or _is_zero_at_zero(node, name) else _NONE

    def _note_losses(self, node: Node, values: Mapping[Node, Any], zeros: dict[Node, Units]) -> None:
        """Where zeros end although the channels go on: what to name, should somebody read them."""
        before = frozenset().union(*(zeros.get(each, _NONE) for each in node.all_input_nodes))
        for unit in (before - zeros[node]) & self._carried(values.get(node)):
            why = (
                "does not send zero to zero, so a channel closed before it is heard after it; place the gate behind it"
            )
            self._lost.setdefault(unit, Obstacle(path_of(node), operation_of(node), why))

    def _note_end(self, node: Node, values: Mapping[Node, Any]) -> None:
        """A scale on the unshared output of a linear map."""
        if operation_of(node) != "mul":
            return
        found = [value for each in node.all_input_nodes if isinstance(value := values.get(each), Value)]
        scales = [value.source for value in found if value.source in self._start]
        maps = [value.origin for value in found if value.origin is not None and not value.shared]
        if scales and maps:
            self.ends[str(scales[0])] = maps[0].path


def _zero_in_all(zeros: Sequence[Units], carried: Sequence[Units]) -> Units:
    """The units that are zero wherever they are carried, and carried somewhere."""
    return frozenset(
        unit
        for unit in frozenset().union(*carried)
        if all(unit in zero or unit not in units for zero, units in zip(zeros, carried, strict=True))
    )


def _is_zero_at_zero(node: Node, name: str) -> bool:
    """For operations where it depends on their numbers."""
    if name == "clamp":
        low, high = argument(node, "min"), argument(node, "max")
        return (low is None or low <= 0) and (high is None or high >= 0)
    exponent = argument(node, "exponent") if name == "pow" else None
    return isinstance(exponent, (int, float)) and exponent > 0


def argument(node: Node, name: str) -> Any:
    """An argument of an ATen operation by its name in the schema, or its default; None where there is none."""
    schema = getattr(node.target, "_schema", None)
    for place, each in enumerate(() if schema is None else schema.arguments):
        if each.name == name:
            if place < len(node.args):
                return node.args[place]
            return node.kwargs.get(name, each.default_value if each.has_default_value() else None)
    return None
