"""Activations by unit: where the units of a plan are read and written in a graph, and running the graph to see them.

What is seen is each use by itself. A tensor that a layer reads and a shortcut carries on is tapped where the layer
reads it, so that a derivative tells what this reading is worth and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves, tree_unflatten

from headgate.channels.example import Example
from headgate.channels.ledger import Ledger, Solution
from headgate.channels.plan import STAYS, Axis, Branch
from headgate.channels.rules import contraction, einsum, recurrent, rule_for
from headgate.channels.trace import aliases, export
from headgate.channels.values import INPUT, Value, on_axis
from headgate.channels.walk import Walk, operation_of, path_of

_RECURRENT = (recurrent.recurrent, recurrent.cell)
_READING = (
    contraction.linear, contraction.bilinear, contraction.matmul, contraction.convolution, einsum.einsum, *_RECURRENT,
)  # fmt: skip

# For every index of an axis its unit, counted within a site, or STAYS.
LocalAxes = Mapping[Axis, Sequence[int]]


@dataclass(frozen=True)
class Tap:
    """One activation that carries units of a site.

    It is what `node` reads from `source` or, where that is None, what `node` returns. `units` broadcasts against it:
    the unit of every entry, counted within the site, or STAYS.
    """

    site: str
    node: Node
    source: Node | None
    units: Tensor

    @property
    def path(self) -> str:
        """The module that reads or writes it."""
        return path_of(self.node) or "the model's own code"


class TappedGraph:
    """The evaluation graph of a model for inputs of one shape, tapped wherever sites are read or written.

    Args:
        model: it is left as it is; the graph computes with its very own tensors.
        example: what it is called with.
        reads: for sites that are read, by name, the axes that sum over them.
        branches: sites that are written.

    Raises:
        TraceError: torch.export cannot trace the model.
    """

    def __init__(
        self, model: nn.Module, example: Example, reads: Mapping[str, LocalAxes], branches: Sequence[Branch]
    ) -> None:
        self._program = export(model, example, training=False, operation="order_by")
        ledger = Ledger()
        walk = Walk(ledger, aliases(model), frozenset(name for name, _ in model.named_parameters()), {})
        walk.run(self._program)
        solution = ledger.solve()
        read = (tap for name, axes in reads.items() for tap in _reads(self._program, walk, solution, name, axes))
        written = (tap for branch in branches for tap in _writes(self._program, walk, branch))
        self.taps = (*read, *written)

    def run(self, example: Example, differentiable: bool) -> tuple[Any, list[Tensor]]:
        """What the model returns, and the activation at every tap: with `differentiable`, ready for `autograd.grad`."""
        uses = _Run(self._program, self.taps, differentiable)
        with torch.set_grad_enabled(differentiable):
            results = uses.run(*self._arguments(example))
        specs = self._program.graph_signature.output_specs
        returned = [result for spec, result in zip(specs, results, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
        spec = self._program.call_spec.out_spec
        return (returned if spec is None else tree_unflatten(returned, spec)), uses.seen

    def _arguments(self, example: Example) -> Iterator[Any]:
        """What the placeholders stand for: the model's tensors, and the leaves of the example."""
        leaves = iter(tree_leaves((example.args, example.kwargs), is_leaf=lambda leaf: leaf is None))
        for spec in self._program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                yield next(leaves)
            elif spec.target in self._program.state_dict:
                yield self._program.state_dict[spec.target]
            else:
                yield self._program.constants[str(spec.target)]


class _Run(Interpreter):
    """One run of a graph, in which every tapped use is a tensor of its own."""

    def __init__(self, program: ExportedProgram, taps: Sequence[Tap], differentiable: bool) -> None:
        super().__init__(program.graph_module)
        self._taps, self._differentiable = taps, differentiable
        self._sources: dict[Node, dict[Node, None]] = {}
        for tap in taps:
            if tap.source is not None:
                self._sources.setdefault(tap.node, {})[tap.source] = None
        self._written = {tap.node for tap in taps if tap.source is None}
        self._uses: dict[tuple[Node, Node | None], Tensor] = {}

    @property
    def seen(self) -> list[Tensor]:
        """The activation at every tap."""
        return [self._uses[tap.node, tap.source] for tap in self._taps]

    def run_node(self, n: Node) -> Any:
        """As usual, on tensors of its own where it is tapped."""
        before = {source: self.env[source] for source in self._sources.get(n, ())}
        for source, value in before.items():
            self.env[source] = self._uses[n, source] = self._use(value)
        result = super().run_node(n)
        self.env.update(before)
        if n in self._written:
            result = self._uses[n, None] = self._use(result)
        return result

    def _use(self, value: Tensor) -> Tensor:
        if not self._differentiable:
            return value
        return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()


def _reads(program: ExportedProgram, walk: Walk, solution: Solution, name: str, axes: LocalAxes) -> Iterator[Tap]:
    """Where weights sum over a site's units: the activations there, if the model's input has a part in them."""
    number = torch.full_like(solution.roots, STAYS)
    for axis in axes.keys() & solution.axes.keys():
        number[solution.axes[axis]] = torch.tensor(axes[axis])
    weights = {axis[0] for axis in axes}
    for node in program.graph.nodes:
        if node.op != "call_function" or (rule := rule_for(node.target, operation_of(node))) not in _READING:
            continue
        # States are carried on entry by entry too, so that the worth of reading them cannot be told.
        states = recurrent.states_given(node) if rule in _RECURRENT else []
        read = [one for one in node.all_input_nodes if one not in states]
        values = {one: walk.values[one] for one in read if isinstance(walk.values[one], Value)}
        if weights.isdisjoint(value.source for value in values.values()):
            continue
        for source, value in values.items():
            for field in value.fields if value.history & INPUT else ():
                units = number[solution.roots[field]]
                if bool((units != STAYS).any()):
                    yield Tap(name, node, source, units)


def _writes(program: ExportedProgram, walk: Walk, branch: Branch) -> Iterator[Tap]:
    """Where the last map of a branch returns what the branch adds to its stream."""

    def is_its(value: Any) -> bool:
        return isinstance(value, Value) and value.origin is not None and value.origin.masked == branch.masked

    for node in program.graph.nodes:
        value = walk.values.get(node)
        if (
            isinstance(value, Value)
            and is_its(value)
            and not any(is_its(walk.values[one]) for one in node.all_input_nodes)
        ):
            yield Tap(branch.name, node, None, on_axis(torch.tensor(branch.units), branch.dim, value.ndim))
