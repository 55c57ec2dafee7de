"""Numbers that a model's own code keeps: `self.num_heads`, `self.inner_dim`. They must shrink with what they count.

While a graph is walked, every operation that gives sizes by numbers (a view, a split, a new tensor) notes the axes of
units it deals with, and the modules whose code it is. An attribute that may be such a number is a whole number, as
large as one of these axes, and read by the module when it runs. If it is named like a size it is taken for one until a
trial fails; whatever its name is, it is tried where nothing else helps. It may fit several axes: trials then tell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# An axis by the labels along it, each once, and the modules around the operation, innermost first.
Length = tuple[tuple[str, ...], Tensor]

# The same by the plan's units, of which those that stay have a negative number.
Units = tuple[int, ...]
Lengths = Mapping[tuple[tuple[str, ...], Units], None]

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


def counted(model: nn.Module, example: Any, lengths: Lengths, places: Set[int]) -> dict[Attribute, tuple[Units, ...]]:
    """Attributes that may count units, with the axes they may count, the likeliest first; () stands for none of them.

    `lengths` are the units along axes, by the modules around; `places` are units that are places of heads.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    free = [(paths, units) for paths, units in lengths if any(unit >= 0 for unit in units)]
    wanted = {one for paths, units in free for path in paths for one in _of_size(modules, path, len(units))}
    read = _read_when_run(model, example, wanted) if wanted else set()
    found: dict[Attribute, dict[Units, None]] = {}
    for paths, units in free:
        for path in paths:
            here = [attribute for attribute in _of_size(modules, path, len(units)) if attribute in read]
            for attribute in here:
                found.setdefault(attribute, {})[units] = None
            if any(may_be_size(attribute.name) for attribute in here):
                break
    held = {(path, len(units)) for paths, units in lengths for path in paths if all(unit < 0 for unit in units)}
    others = {(one.path, len(next(iter(axes)))) for one, axes in found.items() if _may_be_number(one.name)}

    def options(attribute: Attribute, axes: list[Units]) -> tuple[Units, ...]:
        of_places = [axis for axis in axes if not places.isdisjoint(axis)]
        rest = [axis for axis in axes if places.isdisjoint(axis)]
        if not may_be_size(attribute.name):
            return (), *rest, *of_places
        if _may_be_number(attribute.name):
            return *rest, *of_places, ()
        # Where as many places must stay as there are heads, it counts those, if another attribute counts the heads.
        key = (attribute.path, len(axes[0]))
        return ((), *of_places, *rest) if key in held & others else (*of_places, *rest, ())

    return {attribute: options(attribute, list(axes)) for attribute, axes in found.items()}


def _may_be_number(name: str) -> bool:
    """Whether an attribute of this name may count heads: it is named like a size, and not like a width."""
    return may_be_size(name) and _WIDTHS.isdisjoint(name.lower().split("_"))


def _of_size(modules: Mapping[str, nn.Module], path: str, size: int) -> list[Attribute]:
    """The attributes that may be this number. The sizes of torch's own modules are known, and ours are fixed."""
    module = modules.get(path)
    if module is None or type(module).__module__.startswith(("torch.nn.", "headgate.")):
        return []
    return [Attribute(path, name) for name, value in vars(module).items() if type(value) is int and value == size]


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
