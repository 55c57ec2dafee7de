"""What surgery does to a network, as plain frozen data: enough to do it again to a fresh network of the same class.

A recipe names what goes, and nothing that runs: indices kept along axes of named tensors, size attributes from a fixed
list, layers that pick or write back, blocks that became their shortcut, hand-placed gates that became fixed scales. It
begins with the names and shapes of the network it is for, its fingerprint, so that it is never applied to another one.
`then` joins two recipes into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgate.errors import RecipeError

# Where a smaller model carries its recipe.
RECIPE = "headgate_recipe"

# The attributes of torch's modules that a recipe may set, all of them sizes, besides those that are named like one,
# `may_be_size`; of a user's own modules it may set any whole number.
SIZES = frozenset({
    "in_channels", "out_channels", "groups", "num_features", "num_channels", "num_groups", "in_features",
    "out_features", "embedding_dim", "num_parameters", "in1_features", "in2_features",
})  # fmt: skip

Shape = tuple[int, ...]
# Ascending half-open ranges.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Cut:
    """Which indices of one axis of a named tensor are kept. Every name of a tied tensor has its own, equal cut."""

    name: str
    axis: int
    kept: Ranges


@dataclass(frozen=True)
class Resize:
    """The new value of a size attribute of the module at `path`."""

    path: str
    attribute: str
    value: int


@dataclass(frozen=True)
class Write:
    """The layer at `path` writes its outputs into `places` among `width` channels."""

    path: str
    places: Ranges
    width: int


@dataclass(frozen=True)
class Read:
    """The layer at `path` picks its inputs at `places` among `width` channels."""

    path: str
    places: Ranges
    width: int


@dataclass(frozen=True)
class Empty:
    """The layer at `path` returns `width` channels of zeros, or, where that is 0, as many as it is given."""

    path: str
    width: int


@dataclass(frozen=True)
class Recipe:
    """From the network whose tensors have the shapes `dense` to a smaller one.

    `dense` holds the parameters, the persistent buffers, and whatever else is cut. The gates in `scales` become fixed
    scales before anything else: of their tensors only `gain` remains. Then come cuts, sizes, layers that pick their
    inputs or write back, layers that only return zeros from now on, and at last the blocks in `gone` become
    `nn.Identity`.
    """

    dense: tuple[tuple[str, Shape], ...]
    cuts: tuple[Cut, ...] = ()
    sizes: tuple[Resize, ...] = ()
    writes: tuple[Write, ...] = ()
    gone: tuple[str, ...] = ()
    reads: tuple[Read, ...] = ()
    scales: tuple[str, ...] = ()
    emptied: tuple[Empty, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        return self

    def cut_shapes(self) -> dict[str, Shape]:
        """The shape of every tensor in `dense` after the cuts."""
        shapes = {name: list(shape) for name, shape in self.dense}
        for cut in self.cuts:
            shapes[cut.name][cut.axis] = count(cut.kept)
        return {name: tuple(shape) for name, shape in shapes.items()}

    def outcome(self) -> dict[str, Shape]:
        """Names and shapes of what is left: without what lay in the blocks that are gone."""
        return {name: shape for name, shape in self.cut_shapes().items() if self.leaves(name)}

    def leaves(self, name: str) -> bool:
        """Whether a tensor of this name is still there afterwards, cut or not."""
        path, _, leaf = name.rpartition(".")
        if within(name, self.gone) or any(path == empty.path for empty in self.emptied):
            return False
        return leaf == "gain" or path not in self.scales

    def fixes(self, gate: str) -> bool:
        """Whether the hand-placed gate of this name is a gate no more afterwards."""
        return gate in self.scales or within(gate, self.gone)

    def then(self, later: Recipe) -> Recipe:
        """One recipe for this and then `later`, which is for what this one leaves.

        Raises:
            RecipeError: `later` cuts what a layer picks or writes back, whose places would no longer be right.
        """
        self._check_picked(later)
        rows = {(f"{write.path}.{leaf}", 0): write.path for write in self.writes for leaf in ("weight", "places")}
        kept = {(cut.name, cut.axis): cut.kept for cut in self.cuts}
        widths = {f"{empty.path}.zeros": empty for empty in self.emptied}
        for cut in later.cuts:
            key = (cut.name, cut.axis)
            if cut.name in widths:
                widths[cut.name] = Empty(widths[cut.name].path, count(cut.kept))
                continue
            if key in rows:
                raise RecipeError(f"{rows[key]}: its outputs are written back into a wider stream: they cannot be cut")
            first = kept.get(key)
            kept[key] = cut.kept if first is None else ranges_of(indices_of(first)[indices_of(cut.kept)])
        known = dict(self.dense)
        new = {cut.name for cut in later.cuts} - set(known) - set(widths)
        sizes = {(size.path, size.attribute): size for size in (*self.sizes, *later.sizes)}
        gone = {*self.gone, *later.gone}
        return Recipe(
            (*self.dense, *((name, shape) for name, shape in later.dense if name in new)),
            tuple(Cut(name, axis, ranges) for (name, axis), ranges in kept.items()),
            tuple(sizes.values()),
            (*self.writes, *later.writes),
            tuple(sorted(path for path in gone if not within(path, gone - {path}))),
            (*self.reads, *later.reads),
            (*self.scales, *later.scales),
            (*widths.values(), *later.emptied),
        )

    def _check_picked(self, later: Recipe) -> None:
        """What a layer picks is not cut again, along the only axis of its weight or the second."""
        paths = {read.path for read in self.reads}
        for cut in later.cuts:
            path, _, leaf = cut.name.rpartition(".")
            if path in paths and leaf != "bias" and cut.axis == min(1, len(dict(later.dense)[cut.name]) - 1):
                raise RecipeError(f"{path}: its inputs are picked from a wider stream: they cannot be cut")


def recipe_on(model: nn.Module) -> Recipe | None:
    """The recipe a model carries, as long as it still describes the model."""
    recipe = getattr(model, RECIPE, None)
    return recipe if isinstance(recipe, Recipe) and unlike(model, recipe.outcome()) is None else None


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model by name, under every name it has: parameters, buffers, plain attributes."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for leaf, value in (*module._parameters.items(), *module._buffers.items(), *vars(module).items()):
            if isinstance(value, Tensor):
                found[f"{path}.{leaf}" if path else leaf] = value
    return found


def fingerprint(model: nn.Module, others: Iterable[str] = ()) -> tuple[tuple[str, Shape], ...]:
    """Names and shapes of the parameters, the persistent buffers, and of `others` by name."""
    tensors, names = named_tensors(model), dict.fromkeys((*_lasting(model), *others))
    return tuple((name, tuple(tensors[name].shape)) for name in names)


def _lasting(model: nn.Module) -> list[str]:
    """The names of parameters and persistent buffers: of what a checkpoint holds."""
    return [
        f"{path}.{leaf}" if path else leaf
        for path, module in model.named_modules(remove_duplicate=False)
        for leaf, value in (*module._parameters.items(), *module._buffers.items())
        if value is not None and leaf not in module._non_persistent_buffers_set
    ]


def unlike(model: nn.Module, shapes: Mapping[str, Shape]) -> str | None:
    """In words, the first tensor in which the model differs from these shapes, or None."""
    tensors = named_tensors(model)
    for name, shape in shapes.items():
        if name not in tensors:
            return f"{name} of shape {list(shape)} is missing"
        if tuple(tensors[name].shape) != tuple(shape):
            return f"{name} has shape {list(tensors[name].shape)} instead of {list(shape)}"
    extra = next((name for name in _lasting(model) if name not in shapes), None)
    return None if extra is None else f"{extra} of shape {list(tensors[extra].shape)} should not be there"


def within(name: str, paths: Iterable[str]) -> bool:
    """Whether a dotted name is, or lies below, one of the paths."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def ranges_of(indices: Tensor) -> Ranges:
    """Ascending indices as ranges.

    Example:
        >>> ranges_of(torch.tensor([0, 1, 2, 5]))
        ((0, 3), (5, 6))
    """
    if not len(indices):
        return ()
    gaps = (indices.diff() != 1).nonzero().squeeze(1)
    starts = torch.cat([indices[:1], indices[gaps + 1]])
    stops = torch.cat([indices[gaps], indices[-1:]]) + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def indices_of(ranges: Ranges) -> Tensor:
    """The indices in the ranges."""
    return torch.tensor([index for start, stop in ranges for index in range(start, stop)])


def count(ranges: Ranges) -> int:
    """How many indices there are in the ranges, without writing them out."""
    return sum(stop - start for start, stop in ranges)
