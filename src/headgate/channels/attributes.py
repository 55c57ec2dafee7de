"""Numbers that a model's own code keeps: `self.num_heads`, `self.inner_dim`. They must shrink with what they count.

While a graph is walked, every operation that gives sizes by numbers (a view, a split, a new tensor) notes the axes of
units it deals with, and the modules whose code it is. An attribute that may be such a number is a whole number, named
like a size, as large as one of these axes, and read by the module when it runs. Several may be: trials then tell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# An axis by the labels along it, each once, and the modules around the operation, innermost first.
Length = tuple[tuple[str, ...], Tensor]

# One of these is a word of a size's name.
_WORDS = frozenset({
    "channel", "channels", "chans", "d", "depth", "dim", "dims", "embd", "embed", "feature", "features", "group",
    "groups", "h", "head", "heads", "hidden", "inner", "kv", "n", "nf", "nhead", "nheads", "num", "nx", "planes",
    "size", "split", "units", "width",
})  # fmt: skip

# With one of these it counts something else, for which only longer inputs than the example might need all of it.
_OTHERS = frozenset({
    "batch", "block", "bucket", "buckets", "chunk", "distance", "image", "img", "kernel", "layers", "patch", "patches",
    "position", "positions", "stride", "window", "windows",
})  # fmt: skip

# Those among them that never count heads.
_WIDTHS = frozenset({"d", "depth", "dim", "dims", "embd", "embed", "hidden", "inner", "size", "width"})

# Operations that are given sizes.
SIZED = frozenset({
    "view", "reshape", "_unsafe_view", "unflatten", "expand", "repeat", "tile", "repeat_interleave", "split", "slice",
    "split_with_sizes", "chunk", "tensor_split", "full", "zeros", "ones", "empty", "rand", "randn", "new_zeros",
    "new_ones", "new_empty", "new_full", "arange",
})  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """A whole number that a module's code reads: `name` of the module at `path`."""

    path: str
    name: str


def may_be_size(name: str) -> bool:
    """Whether an attribute of this name may count channels or heads: one of its words says so, and none denies it."""
    words = {word.rstrip("0123456789") for word in name.lower().split("_")}
    return not name.startswith("_") and not words.isdisjoint(_WORDS) and words.isdisjoint(_OTHERS)


def counted(
    model: nn.Module, example: Any, lengths: Mapping[tuple[tuple[str, ...], tuple[int, ...]], None]
) -> dict[Attribute, tuple[int, ...]]:
    """Attributes that seem to count units, with the units they count, one for each.

    `lengths` are the units along axes, by the modules around; units that stay have a negative number.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    wanted = {
        Attribute(path, name)
        for paths, units in lengths
        for path in paths
        if path in modules and any(unit >= 0 for unit in units)
        for name in _of_size(modules[path], len(units))
    }
    read = _read_when_run(model, example, wanted) if wanted else set()
    found: dict[Attribute, tuple[int, ...]] = {}
    for paths, units in lengths:
        for path in paths if any(unit >= 0 for unit in units) else ():
            here = [Attribute(path, name) for name in _of_size(modules[path], len(units))] if path in modules else []
            if mine := [attribute for attribute in here if attribute in read]:
                for attribute in _likely(mine, units, lengths):
                    found.setdefault(attribute, units)
                break
    return found


def _likely(
    attributes: list[Attribute], units: tuple[int, ...], lengths: Iterable[tuple[tuple[str, ...], tuple[int, ...]]]
) -> list[Attribute]:
    """Where there are as many heads as places in a head, which must stay: not those named after a width."""
    path = attributes[0].path
    others = (paths for paths, those in lengths if len(those) == len(units) and all(unit < 0 for unit in those))
    if not any(path in paths for paths in others):
        return attributes
    counts = [attribute for attribute in attributes if _WIDTHS.isdisjoint(attribute.name.lower().split("_"))]
    return counts or attributes


def _of_size(module: nn.Module, size: int) -> list[str]:
    """The attributes that may be this number. The sizes of torch's own modules are known, and ours are fixed."""
    if type(module).__module__.startswith(("torch.nn.", "headgate.")):
        return []
    return [name for name, value in vars(module).items() if type(value) is int and value == size and may_be_size(name)]


def _read_when_run(model: nn.Module, example: Any, wanted: Iterable[Attribute]) -> set[Attribute]:
    """Which of these the model's code looks at when it runs on the example."""
    names: dict[str, set[str]] = {}
    for attribute in wanted:
        names.setdefault(attribute.path, set()).add(attribute.name)
    twin = copy.deepcopy(model).eval()
    seen: set[Attribute] = set()
    for path, asked in names.items():
        _watch_(twin.get_submodule(path), path, asked, seen)
    seen.clear()
    try:
        with torch.no_grad():
            twin(*copy.deepcopy(example.args), **copy.deepcopy(example.kwargs))
    except Exception:
        # A model that does not run by itself, such as one part of it, may read them all.
        return {*wanted}
    return seen


def _watch_(module: nn.Module, path: str, names: set[str], seen: set[Attribute]) -> None:
    """From now on `seen` is told when one of these attributes is read."""
    kind = type(module)

    def looked_up(self: nn.Module, name: str) -> Any:
        if name in names:
            seen.add(Attribute(path, name))
        return kind.__getattribute__(self, name)

    module.__class__ = type(kind.__name__, (kind,), {"__getattribute__": looked_up})
