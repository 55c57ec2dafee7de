"""`headgate plan`: what can be removed from a user's own model, without a line of code."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headgate as hg

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")


class PlanError(Exception):
    """The model could not be built, run or analysed; the message is one line."""


def plan_of(spec: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> tuple[nn.Module, hg.Plan]:
    """The model that `spec` (MODULE:FACTORY) names, and its plan for inputs of these shapes.

    What the user's code prints goes to standard error, so that the plan stands alone on standard output.

    Raises:
        PlanError: with the culprit in one line.
    """
    with redirect_stdout(sys.stderr):
        model = build(spec)
        example = tuple(made_up(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        _try_out(model, example)
        try:
            return model, hg.find_groups(model, example, readers=True)
        except hg.HeadgateError as error:
            raise PlanError(f"{type(model).__name__} cannot be analysed: {_one_line(error)}") from error


def build(spec: str) -> nn.Module:
    """Imports MODULE from the current folder or the environment and calls FACTORY, unless it is a model already."""
    name, _, path = spec.partition(":")
    module = _imported(name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise PlanError(f"{name} has no {path}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise PlanError(f"{spec} is neither a model nor a function that makes one, but {type(found).__name__}")
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise PlanError(f"{path}() failed: {_one_line(error)}") from error
    if not isinstance(found, nn.Module):
        raise PlanError(f"{path}() must return a torch.nn.Module, but returned {type(found).__name__}")
    return found


def made_up(shape: Sequence[int], dtype: str) -> Tensor:
    """An input of that shape: random numbers, or zeros where whole numbers are asked for (a zero is a valid index)."""
    kind: torch.dtype = getattr(torch, dtype)
    try:
        return torch.randn(*shape).to(kind) if kind.is_floating_point else torch.zeros(*shape, dtype=kind)
    except (RuntimeError, MemoryError) as error:
        raise PlanError(f"there is no room for an input of shape {', '.join(map(str, shape))}") from error


def as_json(plan: hg.Plan) -> str:
    """The plan as JSON: groups, branches, readers, and what stays and why; a tensor's axis is [name, axis].

    A branch is written into groups by name, null for channels that stay; so is what a reader reads from.
    """
    return json.dumps(
        {
            "groups": [
                {
                    "name": group.name,
                    "units": group.size,
                    "stream": group.stream,
                    "written_by": _axes(group.writers),
                    "read_by": _axes(group.readers),
                }
                for group in plan.groups
            ],
            "branches": [
                {"name": branch.name, "units": branch.size, "written_into": list(plan.written_into(branch))}
                for branch in plan.branches
            ],
            "readers": [
                {"name": reader.name, "units": reader.size, "reads_from": reader.group, "through": _axes(reader.masked)}
                for reader in plan.readers
            ],
            "stays": [
                {
                    "axes": _axes(refusal.axes),
                    "what": refusal.what or "channels",
                    "size": refusal.size,
                    "because": [
                        {"module": why.path, "operation": why.operation, "reason": why.reason}
                        for why in refusal.obstacles
                    ],
                }
                for refusal in plan.refusals
            ],
        },
        indent=2,
    )


def as_text(model: nn.Module, plan: hg.Plan) -> str:
    """The plan as `print(plan)` shows it, under one line that sums it up."""
    streams = sum(group.stream for group in plan.groups)
    return (
        f"{type(model).__name__}: {plan.size:,} removable channels; groups: {len(plan.groups)} "
        f"({streams} of them residual streams), residual branches: {len(plan.branches)}, "
        f"their entries (readers=True): {len(plan.readers)}\n\n{plan}"
    )


def _imported(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise PlanError(f"no module {name} in this folder or the environment") from error
        raise PlanError(f"importing {name} failed: {_one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise PlanError(f"importing {name} failed: {_one_line(error)}") from error


def _try_out(model: nn.Module, example: tuple[Tensor, ...]) -> None:
    """One forward pass, so that a wrong shape is told in the model's own words and not in those of a tracer."""
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(*example)
    except Exception as error:
        shapes = " and ".join(",".join(map(str, tensor.shape)) for tensor in example)
        raise PlanError(f"{type(model).__name__} does not run on {shapes}: {_one_line(error)}") from error
    finally:
        for module, flag in training.items():
            module.training = flag


def _axes(axes: Iterable[tuple[str, int]]) -> list[list[str | int]]:
    return [[name, axis] for name, axis in axes]


def _one_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
