"""Training on with the small network: the same optimizer, its state cut as the weights were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headgate.errors import GateError, OptimizerError
from headgate.gated import gates, refuse_gated_parts, unwrap
from headgate.surgery.apply import sliced
from headgate.surgery.decided import carrying, open_units
from headgate.surgery.heirs import Heir, Indices, heirs_of
from headgate.surgery.insert import INSERTION, Insertion
from headgate.surgery.keep import first_names

# Their state, or what they do to a matrix, is not element by element.
_NOT_BY_ELEMENT = frozenset({"Adafactor", "LBFGS", "Muon", "SOAP", "Shampoo"})

# What an optimizer that was given named parameters lists beside them.
_LABELS = "param_names"


@torch.no_grad()
def transfer_(optimizer: Optimizer, model: nn.Module, small: nn.Module) -> None:
    """Lets the optimizer of a gated model go on with the compacted one, as if nothing had happened.

    Groups, rates and step counts stay, and so do schedulers, which know the optimizer by its groups. Momenta and
    moments are cut as the weights were; what belonged to removed parameters is dropped. Each group lists its parameters
    as `small.parameters()` does, so that an optimizer made over these can load its state. The offsets' group stays in
    its place, but empty. Masks must have moved into the weights before (`bake_`; a `Budget` does it when it is met):
    else the weights of the small model are other numbers than those the optimizer has been moving. For the same reason,
    compact right before: numbers are not compared, so a small model from before further steps is not noticed.

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
        GateError: a gate that is not baked, one before a norm that cut channels, or a small model that cannot be of
            this one: one without the recipe that `compact` and `shrink` leave, with other parameters, or that kept
            other units than the gates leave.
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
    _check_not_carried(root)
    if type(optimizer).__name__ in _NOT_BY_ELEMENT:
        raise OptimizerError(
            f"transfer_: the state of {type(optimizer).__name__} is not element by element; make a new optimizer"
        )
    heirs = heirs_of(root, cut, "transfer_")
    if not any(id(old) in heirs for group in optimizer.param_groups for old in group["params"]):
        raise OptimizerError(f"transfer_: this {type(optimizer).__name__} holds no parameter of {type(root).__name__}")
    state: defaultdict[Any, Any] = defaultdict(dict)
    for old, values in optimizer.state.items():
        if id(old) not in heirs:
            state[old] = values
        elif (heir := heirs[id(old)]) is not None:
            state[heir.parameter] = {key: _cut(value, old, heir.kept) for key, value in values.items()}
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    places = {id(parameter): place for place, parameter in enumerate(cut.parameters())}
    changed = [_inherited(group, heirs, names, places) for group in optimizer.param_groups]
    for group, lists in zip(optimizer.param_groups, changed, strict=True):
        group.update(lists)
    optimizer.state = state


def _check_baked(root: nn.Module) -> None:
    loose = [name or "root" for name, gate in gates(root).items() if not bool(gate.baked)]
    if loose:
        raise GateError(
            f"transfer_: the masks of {', '.join(loose[:3])}{' and more' if len(loose) > 3 else ''} have not moved "
            "into the weights: bake_(model) before compact, or wait until the budget is met"
        )


def _check_not_carried(root: nn.Module) -> None:
    insertion = getattr(root, INSERTION, None)
    if not isinstance(insertion, Insertion):
        return
    if closed := [one.group.name for one in carrying(root, insertion, open_units(root, insertion))]:
        raise GateError(
            f"transfer_: {first_names(closed)} closed channels before a norm, and compact has moved the constants that "
            "these left behind into other weights, which the optimizer does not know: make a new optimizer"
        )


def _inherited(
    group: Mapping[str, Any], heirs: Mapping[int, Heir | None], names: Mapping[int, str], places: Mapping[int, int]
) -> dict[str, list[Any]]:
    """What a group lists from now on: heirs as the small model lists them, whatever is not the model's where it was.

    Where the optimizer knows parameters by name too, those of the model lose what gates had added to them.
    """
    held = []
    for old, label in zip(group["params"], group.get(_LABELS) or [""] * len(group["params"]), strict=True):
        heir = heirs.get(id(old), Heir("", old, {}))
        if heir is not None:
            known = heir.name and label.endswith(names[id(old)])
            held.append((heir.parameter, label.removesuffix(names[id(old)]) + heir.name if known else label))
    ours = iter(sorted((one for one in held if id(one[0]) in places), key=lambda one: places[id(one[0])]))
    held = [next(ours) if id(one[0]) in places else one for one in held]
    lists: dict[str, list[Any]] = {"params": [parameter for parameter, _ in held]}
    return {**lists, _LABELS: [label for _, label in held]} if _LABELS in group else lists


def _cut(value: Any, like: Tensor, indices: Indices) -> Any:
    """One entry of a parameter's state: cut if it has the parameter's shape, kept if it is a number.

    A step count is a number for a parameter of a single element too, whose shape is as a rule another one.
    """
    if isinstance(value, Tensor) and value.shape == like.shape:
        return sliced(value, indices) if indices else value.clone()
    if not isinstance(value, Tensor) or value.numel() == 1:
        return value
    raise OptimizerError(
        f"transfer_: the optimizer keeps a state of shape {tuple(value.shape)} for a parameter of shape "
        f"{tuple(like.shape)}, which is not element by element; make a new optimizer"
    )
