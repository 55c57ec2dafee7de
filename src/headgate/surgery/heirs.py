"""Which parameter of a small model each parameter of the full one has become, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headgate.bank import OFFSETS, bank_of
from headgate.errors import GateError
from headgate.masked import gated_weights
from headgate.surgery.decided import decided
from headgate.surgery.hand import placed_gates
from headgate.surgery.insert import INSERTION, Insertion
from headgate.surgery.keep import kept_masks
from headgate.surgery.recipe import RECIPE, Ranges, Recipe, indices_of, recipe_on

# By axis, the indices that are kept of a parameter of the full model, ascending.
Indices = Mapping[int, Tensor]


@dataclass(frozen=True)
class Heir:
    """What a parameter has become: the small model's one of that name, and which of the old entries it holds."""

    name: str
    parameter: nn.Parameter
    kept: Indices


def heirs_of(root: nn.Module, small: nn.Module, operation: str) -> dict[int, Heir | None]:
    """By the id of every parameter of the full model, its heir; None for what is gone.

    Raises:
        GateError: the small model was not made by `compact` or `shrink`, or it cannot be of this model: it has other
            parameters, or has kept other units than the gates leave. Numbers are not compared.
    """
    recipe = recipe_on(small)
    if recipe is None:
        raise GateError(f"{operation}: {type(small).__name__} was not made by compact")
    names, theirs = plain_names(root), dict(small.named_parameters(remove_duplicate=False))
    own = {names[id(parameter)]: parameter for parameter in root.parameters()}
    kept = _kept(root, own, recipe)
    foreign = _foreign(own, theirs, kept, dict(recipe.dense)) or _undecided(root, own, theirs, kept, operation)
    if foreign is not None:
        raise GateError(
            f"{operation}: the small {type(small).__name__} is not what compact would make of this model: "
            f"{foreign}; give the model that it was compacted from"
        )
    return {
        id(parameter): Heir(name, theirs[name], kept.get(name, {})) if name in theirs else None
        for name, parameter in own.items()
    }


def plain_names(root: nn.Module) -> dict[int, str]:
    """The name that each parameter has without gates, by its id; tied ones have their first.

    Parametrizations of the user's own stay in the small model, and their names with them.
    """
    masked, found = {id(weight) for weight, _ in gated_weights(root)}, dict[int, str]()
    for name, parameter in root.named_parameters(remove_duplicate=False):
        path, marked, leaf = name.rpartition("parametrizations.")
        ours = marked and id(parameter) in masked
        found.setdefault(id(parameter), f"{path}{leaf.removesuffix('.original')}" if ours else name)
    return found


def _kept(root: nn.Module, own: Mapping[str, Tensor], recipe: Recipe) -> dict[str, dict[int, Tensor]]:
    """By parameter and axis, which indices of the full model's own tensors the small one has."""
    # A model that was compacted before it was gated carries what that left: what counts is what was cut since. If it
    # was changed in between, the small one's recipe begins with it as it is.
    earlier = getattr(root, RECIPE, None)
    cuts = earlier.cuts if isinstance(earlier, Recipe) else ()
    before: dict[tuple[str, int], Ranges] = {(one.name, one.axis): one.kept for one in cuts}
    kept: dict[str, dict[int, Tensor]] = {}
    shapes = dict(recipe.dense)
    for one in recipe.cuts:
        indices, first = indices_of(one.kept), before.get((one.name, one.axis))
        if one.name in own and first is not None and shapes[one.name][one.axis] != own[one.name].shape[one.axis]:
            indices = torch.searchsorted(indices_of(first), indices)
        kept.setdefault(one.name, {})[one.axis] = indices
    return kept


def _foreign(
    own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], kept: Mapping[str, Indices], known: Mapping[str, object]
) -> str | None:
    """In words, the first parameter that the small model cannot have from this one, or None."""
    for name, parameter in own.items():
        if name not in theirs:
            if name not in known and name.rpartition(".")[2] != OFFSETS:
                return f"it never had a {name}"
            continue
        shape = list(parameter.shape)
        for axis, indices in kept.get(name, {}).items():
            if axis >= len(shape) or int(indices[-1]) >= shape[axis]:
                return f"it keeps more of {name} than there is"
            shape[axis] = len(indices)
        if shape != list(theirs[name].shape):
            return f"its {name} is {list(theirs[name].shape)}, not {shape}"
    return None


def _undecided(
    root: nn.Module,
    own: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    kept: Mapping[str, Indices],
    operation: str,
) -> str | None:
    """In words, the first parameter of which other units are kept than the inserted gates leave, or None.

    Gates placed by hand may have closed more.
    """
    insertion = getattr(root, INSERTION, None)
    if bank_of(root) is None or not isinstance(insertion, Insertion):
        return None
    by_hand = bool(placed_gates(root))
    for (name, axis), mask in kept_masks(insertion.plan, decided(root, insertion, operation)[1]).items():
        if name not in own or name not in theirs:
            continue
        left = torch.zeros_like(mask)
        left[kept.get(name, {}).get(axis, slice(None))] = True
        if bool((left & ~mask).any() if by_hand else (left != mask).any()):
            return f"of {name} it keeps other units than the gates leave"
    return None
