"""Models that cannot be traced as a whole: their largest parts that can, as graphs in the model's own names.

Detectors, for instance, choose boxes by their values, which no graph can follow; their backbones are ordinary. What
goes into a part and what comes out of it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.export import ExportedProgram

from headgate.channels.example import Example
from headgate.channels.running import first_calls
from headgate.channels.trace import export, uses_everything
from headgate.errors import TraceError


@dataclass(frozen=True)
class Graph:
    """A traced model, or the part of one at the path `part`."""

    program: ExportedProgram
    part: str = ""


def graphs(model: nn.Module, example: Example, operation: str) -> Iterator[Graph]:
    """The graphs of the model in both modes or, where it cannot be traced, those of its largest parts that can.

    Raises:
        ArgumentError: the model does not even run on the example.
        ShapeError: nor does a gate that was placed by hand, by its path.
        TraceError: not even a part can be traced.
    """
    try:
        programs = list(views(model, example, operation))
    except TraceError:
        found = list(_of_parts(model, "", first_calls(model, example, operation)))
        if not found:
            raise
        yield from found
    else:
        yield from map(Graph, programs)


def views(model: nn.Module, example: Example, operation: str) -> Iterator[ExportedProgram]:
    """Both modes. Where training cannot be traced, evaluation alone will do if it uses every parameter."""
    evaluation = export(model, example, training=False, operation=operation)
    try:
        yield export(model, example, training=True, operation=operation)
    except TraceError:
        if not uses_everything(evaluation, model):
            raise
    yield evaluation


def _of_parts(module: nn.Module, path: str, calls: dict[str, Example]) -> Iterator[Graph]:
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if below not in calls or next(child.parameters(), None) is None:
            yield from _of_parts(child, below, calls)
            continue
        try:
            programs = list(views(child, calls[below], below))
        except TraceError:
            yield from _of_parts(child, below, calls)
        else:
            yield from (Graph(_renamed(program, below), below) for program in programs)


def _renamed(program: ExportedProgram, prefix: str) -> ExportedProgram:
    """The graph of a part with the names its modules and tensors have in the whole model."""
    signature = program.graph_signature
    for spec in [*signature.input_specs, *signature.output_specs]:
        if spec.target is not None:
            spec.target = f"{prefix}.{spec.target}"
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        node.meta["nn_module_stack"] = {
            key: (f"{prefix}.{path}" if path else prefix, kind) for key, (path, kind) in stack.items()
        }
    return program
