"""Models that cannot be traced as a whole: their largest parts that can, as graphs in the model's own names.

Detectors, for instance, choose boxes by their values, which no graph can follow; their backbones are ordinary. What
goes into a part and what comes out of it stays.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from headgate.channels.trace import Example, export, uses_everything
from headgate.errors import TraceError


def graphs(model: nn.Module, example: Example) -> Iterator[ExportedProgram]:
    """The graphs of the model in both modes or, where it cannot be traced, those of its largest parts that can.

    Raises:
        TraceError: not even a part can be traced.
    """
    try:
        yield from list(views(model, example))
    except TraceError as whole:
        found = False
        for program in _of_parts(model, "", _first_calls(model, example, whole)):
            found = True
            yield program
        if not found:
            raise


def views(model: nn.Module, example: Example) -> Iterator[ExportedProgram]:
    """Both modes. Where training cannot be traced, evaluation alone will do if it uses every parameter."""
    evaluation = export(model, example, training=False)
    try:
        yield export(model, example, training=True)
    except TraceError:
        if not uses_everything(evaluation, model):
            raise
    yield evaluation


def _first_calls(model: nn.Module, example: Example, whole: TraceError) -> dict[str, Example]:
    """What each submodule is first called with when the model runs on the example."""
    calls: dict[str, Example] = {}

    def note(path: str) -> Any:
        return lambda module, args, kwargs: calls.setdefault(path, Example(args, kwargs)) and None

    try:
        twin = copy.deepcopy(model).eval()
        for path, module in twin.named_modules():
            module.register_forward_pre_hook(note(path), with_kwargs=True)
        with torch.no_grad():
            twin(*example.args, **example.kwargs)
    except Exception as error:
        raise whole from error
    return calls


def _of_parts(module: nn.Module, path: str, calls: dict[str, Example]) -> Iterator[ExportedProgram]:
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if below not in calls or next(child.parameters(), None) is None:
            yield from _of_parts(child, below, calls)
            continue
        try:
            programs = list(views(child, calls[below]))
        except TraceError:
            yield from _of_parts(child, below, calls)
        else:
            yield from (_renamed(program, below) for program in programs)


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
