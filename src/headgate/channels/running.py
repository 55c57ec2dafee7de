"""Whether a model runs on an example at all; if not, which of its modules fails, and on what.

Asked only where something has failed already: a tracer's words about a wrong shape help nobody.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headgate.channels.example import Example
from headgate.errors import ArgumentError, ShapeError


def first_calls(model: nn.Module, example: Example, operation: str) -> dict[str, Example]:
    """What each submodule is first called with when the model runs on the example, in evaluation mode, on a copy.

    Nothing if the model cannot be copied.

    Raises:
        ShapeError: a hand-placed gate does not fit the tensor that it meets; names its path.
        ArgumentError: the model does not run on the example; names the module that fails.
    """
    calls: dict[str, Example] = {}
    running: list[str] = []
    try:
        _run(model, example, calls, running)
    except _CopyError:
        return {}
    except Exception as error:
        raise _complaint(model, example, operation, running[-1] if running else "", error) from error
    return calls


def failing_module(model: nn.Module, example: Example) -> str:
    """The path of the innermost module that was running when the model failed on the example; "" for its own code."""
    running: list[str] = []
    with suppress(Exception):
        _run(model, example, {}, running)
    return running[-1] if running else ""


class _CopyError(Exception):
    """The model cannot be copied."""


def _run(model: nn.Module, example: Example, calls: dict[str, Example], running: list[str]) -> None:
    """Runs a copy and notes first calls; `running` are the paths of the modules that have not returned."""
    try:
        twin = copy.deepcopy(model).eval()
    except Exception as error:
        raise _CopyError from error

    def enter(path: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            running.append(path)
            calls.setdefault(path, Example(args, kwargs))

        return note

    def leave(path: str) -> Any:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            # What failed within it, and was caught there, never returned.
            while running and running.pop() != path:
                pass

        return note

    for path, module in twin.named_modules():
        module.register_forward_pre_hook(enter(path), with_kwargs=True)
        module.register_forward_hook(leave(path))
    given = example.fresh()
    with torch.no_grad():
        twin(*given.args, **given.kwargs)


def not_running(model: nn.Module, example: Example, operation: str, error: Exception) -> Exception:
    """What to raise after a model failed with `error` on an example: the same with the path of the culprit.

    The model runs once more, on a copy, to find it; should it run there, all that is known is the error itself.
    """
    try:
        first_calls(model, example, operation)
    except (ArgumentError, ShapeError) as found:
        return found
    return _complaint(model, example, operation, None, error)


def _complaint(model: nn.Module, example: Example, operation: str, path: str | None, error: Exception) -> Exception:
    if isinstance(error, ShapeError) and path is not None:
        first = _first_line(error)
        return ShapeError(f"{operation}: gate {path!r}: {first}" if path else f"{operation}: {first}")
    where = f"module {path!r}: " if path else ""
    return ArgumentError(
        f"{operation}: {type(model).__name__} does not run on the example ({_described(example)}): {where}"
        f"{said_by(error)}. Give it what the model is called with: a tensor, a tuple of arguments or a "
        "dict of keyword arguments, of the model's dtype and on its device"
    )


def said_by(error: Exception) -> str:
    """An error in one line: its kind, and what it says first."""
    return f"{type(error).__name__}: {_first_line(error)}".removesuffix(": ")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300].rstrip(" .:!")


def _described(example: Example) -> str:
    """The tensors of an example, in few words."""
    leaves = tree_leaves((example.args, example.kwargs))
    shown = [_leaf(leaf) for leaf in leaves[:4]] + ["…"] * (len(leaves) > 4)
    return ", ".join(shown) or "no arguments"


def _leaf(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)} on {leaf.device}"
    return type(leaf).__name__
