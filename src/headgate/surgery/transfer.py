"""Training on with the small network: the same optimizer, its state cut as the weights were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headgate.bank import OFFSETS
from headgate.errors import GateError, OptimizerError
from headgate.gated import gates, refuse_gated_parts, unwrap
from headgate.surgery.apply import sliced
from headgate.surgery.recipe import RECIPE, Ranges, Recipe, indices_of, recipe_on

# Their state, or what they do to a matrix, is not element by element.
_NOT_BY_ELEMENT = frozenset({"Adafactor", "LBFGS", "Muon", "SOAP", "Shampoo"})

Indices = Mapping[int, Tensor]


@torch.no_grad()
def transfer_(optimizer: Optimizer, model: nn.Module, small: nn.Module) -> None:
    """Lets the optimizer of a gated model go on with the compacted one, as if nothing had happened.

    Groups, rates and step counts stay, and so do schedulers, which know the optimizer by its groups. Momenta and
    moments are cut as the weights were; what belonged to removed parameters is dropped. The offsets' group stays in its
    place, but empty. Masks must have moved into the weights before (`bake_`; a `Budget` does it when it is met): else
    the weights of the small model are other numbers than those the optimizer has been moving.

    Example:
        >>> import headgate
        >>> model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(8, 4)
        >>> gates = headgate.insert_gates_(model, x)
        >>> optimizer = torch.optim.SGD(headgate.param_groups(model, lr=0.1), momentum=0.9)
        >>> model(x).square().mean().backward()
        >>> optimizer.step()
        >>> _ = gates["0"].offset.data.fill_(-3.0)
        >>> headgate.bake_(model)
        >>> small = headgate.compact(model)
        >>> transfer_(optimizer, model, small)
        >>> optimizer.state[small[0].weight]["momentum_buffer"].shape, optimizer.param_groups[1]["params"]
        (torch.Size([7, 4]), [])

    Raises:
        GateError: a gate that is not baked, or a model that is not what `small` was compacted from.
        OptimizerError: an optimizer whose state is not element by element, by name; or one that holds no parameter of
            the model. It is as it was.
    """
    root, cut = unwrap(model, "transfer_"), unwrap(small, "transfer_")
    if not hasattr(optimizer, "param_groups"):
        raise OptimizerError(
            f"transfer_: {type(optimizer).__name__} is no optimizer; transfer_(optimizer, model, small)"
        )
    refuse_gated_parts(root, "transfer_", "transfer_(optimizer, {}, small) goes by the part and its smaller twin")
    _check_baked(root)
    if type(optimizer).__name__ in _NOT_BY_ELEMENT:
        raise OptimizerError(
            f"transfer_: the state of {type(optimizer).__name__} is not element by element; make a new optimizer"
        )
    names, parameters, kept = _names(root), dict(cut.named_parameters()), _kept(root, cut)
    state: defaultdict[Any, Any] = defaultdict(dict)
    groups: list[list[Any]] = []
    for group in optimizer.param_groups:
        held = []
        for old in group["params"]:
            new = _successor(old, names, parameters)
            if new is not None:
                held.append(new)
                if old in optimizer.state:
                    indices = {} if new is old else kept.get(names[id(old)], {})
                    state[new] = {key: _cut(value, old, indices) for key, value in optimizer.state[old].items()}
        groups.append(held)
    if not any(id(old) in names for group in optimizer.param_groups for old in group["params"]):
        raise OptimizerError(f"transfer_: this {type(optimizer).__name__} holds no parameter of {type(root).__name__}")
    for group, held in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = held
    optimizer.state = state


def _check_baked(root: nn.Module) -> None:
    loose = [name or "root" for name, gate in gates(root).items() if not bool(gate.baked)]
    if loose:
        raise GateError(
            f"transfer_: the masks of {', '.join(loose[:3])}{' and more' if len(loose) > 3 else ''} have not moved "
            "into the weights: bake_(model) before compact, or wait until the budget is met"
        )


def _names(root: nn.Module) -> dict[int, str]:
    """The name that each parameter has without gates, by its id; tied ones have their first."""
    found: dict[int, str] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        path, marked, leaf = name.rpartition("parametrizations.")
        plain = f"{path}{leaf.removesuffix('.original')}" if marked else name
        found.setdefault(id(parameter), plain)
    return found


def _kept(root: nn.Module, small: nn.Module) -> dict[str, dict[int, Tensor]]:
    """By parameter and axis, which indices of the gated model's own tensors the small one has."""
    recipe = recipe_on(small)
    if recipe is None:
        raise GateError(f"transfer_: {type(small).__name__} was not made by compact")
    # A model that was compacted before it was gated carries what that left: what counts is what was cut since.
    earlier = getattr(root, RECIPE, None)
    cuts = earlier.cuts if isinstance(earlier, Recipe) else ()
    before: dict[tuple[str, int], Ranges] = {(one.name, one.axis): one.kept for one in cuts}
    kept: dict[str, dict[int, Tensor]] = {}
    for one in recipe.cuts:
        indices = indices_of(one.kept)
        first = before.get((one.name, one.axis))
        if first is not None:
            indices = torch.searchsorted(indices_of(first), indices)
        kept.setdefault(one.name, {})[one.axis] = indices
    return kept


def _successor(old: Tensor, names: Mapping[int, str], parameters: Mapping[str, nn.Parameter]) -> Any:
    """The small model's parameter, the very same one if it is not the model's, or None if it is gone."""
    name = names.get(id(old))
    if name is None:
        return old
    return None if name.rpartition(".")[2] == OFFSETS else parameters.get(name)


def _cut(value: Any, like: Tensor, indices: Indices) -> Any:
    """One entry of a parameter's state: cut if it has the parameter's shape, kept if it is a number."""
    if not isinstance(value, Tensor) or (value.numel() == 1 and like.numel() != 1):
        return value
    if value.shape != like.shape:
        raise OptimizerError(
            f"transfer_: the optimizer keeps a state of shape {tuple(value.shape)} for a parameter of shape "
            f"{tuple(like.shape)}, which is not element by element; make a new optimizer"
        )
    return sliced(value, indices) if indices else value.clone()
