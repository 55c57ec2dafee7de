"""From a module and an example to the graph of its operations, by `torch.export`."""

from __future__ import annotations

import copy
import io
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import FrameType

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from headgate.channels.example import Example
from headgate.channels.functional import without_writes
from headgate.errors import TraceError


def aliases(model: nn.Module) -> dict[str, str]:
    """Every parameter, buffer and tensor attribute with the first name of the same tensor: ties go by identity."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    attributes = (
        (f"{path}.{key}" if path else key, value)
        for path, module in model.named_modules(remove_duplicate=False)
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    )
    for name, tensor in [
        *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False), *attributes,
    ]:  # fmt: skip
        names[name] = first.setdefault(id(tensor), name)
    return names


def with_same_tensors(model: nn.Module) -> nn.Module:
    """A copy with modules of its own, but the very same parameters and buffers."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def export(model: nn.Module, example: Example, training: bool, operation: str) -> ExportedProgram:
    """The model as a functional ATen graph, in one mode. The model itself is left as it was.

    Raises:
        TraceError: `torch.export` cannot follow the model's code.
    """
    try:
        twin = with_same_tensors(model).train(training)
        for module in twin.modules():
            # Averaging over all batches reads a counter back to the host, which cannot be traced; units do not mind.
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
                module.momentum = 0.1
        with warnings.catch_warnings(), _without_logging(), _interrupts_waiting():
            warnings.simplefilter("ignore")
            return without_writes(torch.export.export(twin, example.args, example.kwargs))
    except Exception as error:
        mode = "training" if training else "evaluation"
        first = (str(error).strip().splitlines() or [""])[0]
        raise TraceError(
            f"{operation}: torch.export cannot trace {type(model).__name__} in {mode} mode "
            f"({type(error).__name__}: {first})"
        ) from error


def uses_everything(program: ExportedProgram, model: nn.Module) -> bool:
    """Whether the graph reads every parameter of the model, so that no other mode can have a layer more."""
    names = aliases(model)
    users = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    used = {
        names.get(str(users[node.name]), "")
        for node in program.graph.nodes
        if node.op == "placeholder" and node.users and users.get(node.name)
    }
    return all(name in used for name, _ in model.named_parameters())


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """A first Ctrl-C has its effect afterwards: in the midst of a tracing it may end the process, or have none.

    torch calls Python from C++ there, which does not expect it. A second one does not wait.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[FrameType | None] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            before(number, frame)
        waiting.append(frame)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(signal.SIGINT, waiting[0])


@contextmanager
def _without_logging() -> Iterator[None]:
    """A failing export prints the whole graph; the error says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
