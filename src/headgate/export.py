"""Shipping a small model as ONNX, checked in onnxruntime against the model itself."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headgate.channels.example import Example
from headgate.channels.running import first_calls, not_running
from headgate.errors import ExportError, GateError, MissingPackageError
from headgate.files import a_path, whole_file
from headgate.gated import gates, unwrap
from headgate.surgery.evaluation import evaluating

# Largest allowed difference relative to the largest output: another program, with its own kernels and fusions.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2}

# What one protobuf file can hold.
_LARGEST_FILE = 2**31 - 2**20


@torch.no_grad()
def export_onnx(
    small: nn.Module, example: Any, path: str | os.PathLike[str], *, dynamic_shapes: Any = None
) -> float | None:
    """Writes a model without gates to one ONNX file, in evaluation mode, whole or not at all.

    Args:
        small: what `compact` returned (or any other module without gates); wrapped is fine. It is left as it is.
        example: what to call it with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        path: where to write; a file that is there is replaced in one step.
        dynamic_shapes: which sizes may vary, as `torch.export` takes it; by default all are the example's.

    Returns:
        The largest difference between the file run in onnxruntime and the model, relative to the largest output, or
        None where onnxruntime is not installed and nothing could be checked.

    Raises:
        ArgumentError: the model does not run on the example.
        GateError: the model still has gates.
        MissingPackageError: onnx or onnxscript is not installed; `pip install 'headgate[export]'`.
        ExportError: the model cannot be exported, or onnxruntime does not run the file or gives other outputs (by more
            than 1e-6 in float64, 1e-3 in float32, 5e-2 in float16).
    """
    root = unwrap(small, "export_onnx")
    _check_exportable(root)
    file = a_path("export_onnx", path)
    given = _in_order(root, Example.of(example))
    with evaluating(root):
        program = _exported(root, given, dynamic_shapes)
        expected = [leaf for leaf in tree_leaves(root(*given.args, **given.kwargs)) if isinstance(leaf, Tensor)]
    with whole_file(file) as part:
        program.save(part, external_data=False)
        if importlib.util.find_spec("onnxruntime") is None:
            return None
        inputs = [leaf for leaf in tree_leaves((given.args, given.kwargs)) if isinstance(leaf, Tensor)]
        return _checked(expected, _run(part, inputs), root)


def _check_exportable(root: nn.Module) -> None:
    name = type(root).__name__
    if gates(root):
        raise GateError(f"export_onnx: {name} still has gates; compact first, then export the small model")
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(f"export_onnx needs {package}: pip install 'headgate[export]'", name=package)
    size = sum(tensor.nbytes for tensor in (*root.parameters(), *root.buffers()))
    if size > _LARGEST_FILE:
        raise ExportError(f"export_onnx: {name} has {size / 2**30:.1f} GiB of tensors; one ONNX file holds 2 GiB")


def _in_order(root: nn.Module, example: Example) -> Example:
    """The example in the order of the forward's parameters, which is then the order of the file's inputs."""
    try:
        bound = inspect.signature(root.forward).bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise not_running(root, example, "export_onnx", error) from None
    return Example(bound.args, bound.kwargs)


def _exported(root: nn.Module, example: Example, dynamic_shapes: Any) -> torch.onnx.ONNXProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                root, example.args, kwargs=example.kwargs, dynamic_shapes=dynamic_shapes, dynamo=True, verbose=False
            )
        except Exception as error:
            first_calls(root, example, "export_onnx")
            raise ExportError(f"export_onnx: {type(root).__name__} cannot be exported: {error}") from error
    assert program is not None
    return program


def _run(part: Path, inputs: list[Tensor]) -> list[Tensor]:
    """The file's outputs in onnxruntime, on the CPU."""
    runtime: Any = importlib.import_module("onnxruntime")
    try:
        session = runtime.InferenceSession(os.fspath(part), providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]
        if len(names) != len(inputs):
            raise ExportError(f"the file takes {len(names)} inputs, the example has {len(inputs)}")
        feed = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.as_tensor(output) for output in session.run(None, feed)]
    except Exception as error:
        raise ExportError(f"export_onnx: onnxruntime does not run the exported model: {error}") from error


def _checked(expected: list[Tensor], got: list[Tensor], root: nn.Module) -> float:
    """The largest relative difference over all outputs, or an error where it is too large."""
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in got]:
        shapes = [[list(tensor.shape) for tensor in outputs] for outputs in (got, expected)]
        raise ExportError(f"export_onnx: the exported model returns shapes {shapes[0]} instead of {shapes[1]}")
    dtypes = {tensor.dtype for tensor in (*root.parameters(), *expected)}
    allowed = max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=TOLERANCES[torch.float32])
    largest = 0.0
    for left, right in zip(expected, got, strict=True):
        if not left.numel():
            continue
        left, right = left.detach().cpu().double(), right.double()
        error = float((left - right).abs().max() / left.abs().max().clamp_min(1e-30))
        if not error <= allowed:
            raise ExportError(
                f"export_onnx: the exported {type(root).__name__} computes something else: outputs differ by "
                f"{error:.1e} of their size (allowed: {allowed:g})"
            )
        largest = max(largest, error)
    return largest
