"""Where a model that was cut computes something else than the whole one: the module to name, of all that there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headgate.channels.example import Example
from headgate.channels.running import failing_module
from headgate.layers import without_fast_paths

# How reasons begin.
DIFFERS = "outputs differ"
DOES_NOT_RUN = "the model's own code does not run on fewer channels"

# Of every tensor that a call of a module returned: its shape, sum and norm.
Marks = tuple[tuple[tuple[int, ...], float, float], ...]


def where_it_differs(whole: nn.Module, small: nn.Module, example: Example, tolerance: float) -> str:
    """In words, the first module to return something else in the small model, where that is as wide as in the whole."""
    ours, theirs = _marks(whole, example), _marks(small, example)
    for call, marks in theirs.items():
        if call in ours and _differ(ours[call], marks, tolerance):
            path = call[0]
            kind = type(small.get_submodule(path)).__name__
            if not path:
                return "; all layers compute the same, the code that joins them does not"
            return f"; the first to compute something else is {path} ({kind}), or the code that leads to it"
    return ""


def where_it_fails(small: nn.Module, example: Example, error: Exception) -> str:
    """In words, that the model's code fails after the cut, and in which module."""
    path = failing_module(small, example)
    first = (str(error).strip().splitlines() or [""])[0][:200]
    where = f"{path}: " if path else ""
    advice = (
        "it would if each size were taken from the tensor that has it, as `view(…, -1)` does, or from an attribute of "
        "the module itself, a whole number that counts nothing else"
    )
    return f"{DOES_NOT_RUN} ({where}{type(error).__name__}: {first}); {advice}"


def _marks(model: nn.Module, example: Example) -> dict[tuple[str, int], Marks]:
    """By path and number of the call, in the order in which they return."""
    found: dict[tuple[str, int], Marks] = {}
    calls: Counter[str] = Counter()

    def note(path: str) -> Any:
        def take(module: nn.Module, args: Any, output: Any) -> None:
            calls[path] += 1
            found[path, calls[path]] = tuple(_mark(leaf) for leaf in tree_leaves(output) if _counts(leaf))

        return take

    handles = [module.register_forward_hook(note(path)) for path, module in model.named_modules()]
    try:
        given = example.fresh()
        with torch.no_grad(), without_fast_paths():
            model(*given.args, **given.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _mark(tensor: Tensor) -> tuple[tuple[int, ...], float, float]:
    return tuple(tensor.shape), float(tensor.sum()), float(tensor.norm())


def _differ(ours: Marks, theirs: Marks, tolerance: float) -> bool:
    """Whether tensors of the same shapes hold other numbers; narrower ones say nothing."""
    if [shape for shape, *_ in ours] != [shape for shape, *_ in theirs]:
        return False
    return any(
        not abs(left - right) <= tolerance * max(norm, 1e-30)
        for (_, *numbers, norm), (_, *others, other) in zip(ours, theirs, strict=True)
        for left, right in zip((*numbers, norm), (*others, other), strict=True)
    )
