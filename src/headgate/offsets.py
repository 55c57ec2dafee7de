"""How offsets move: safely, under any optimizer and any schedule.

Left to the user's optimizer, offsets jump at larger strengths and whole layers die; schedulers rewrite their rate and
momentum. So the optimizer only *carries* the offsets' group. A hook before its step, which sees gradients after
accumulation, all-reduce, unscaling and clipping, moves each offset itself: by the first over the root of the second
moment of its gradient (decay 0.9 and 0.99, ε = 1e-6, bias-corrected), once a step, never by more than the group's
`offset_lr`, and never outside [`Gate.lowest`, `Gate.start`]; the other way if the optimizer maximises. While the
optimizer steps, the gradients are hidden from it. Should its step fail, those of the offsets are gone.

The moments live in the optimizer's state and are saved with it. LBFGS cannot carry offsets and Muon takes matrices
only: beside them, give `offset_group` to a second optimizer. With `offset_update="plain"` the optimizer moves the
offsets as it moves the weights, decay included, without bound or floor: what the paper's code does.

A pre-hook of your own (`register_step_pre_hook`) runs after this one: clip gradients before the step, not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from headgate.arguments import number
from headgate.errors import ArgumentError, GateError, OptimizerError
from headgate.gated import OffsetOwner, check_offsets, gates, require_owners, unwrap
from headgate.offset_step import step_bounded_

OffsetUpdate: TypeAlias = Literal["bounded", "plain"]
ParamGroup: TypeAlias = dict[str, Any]

# Gates whose offset was handed out in a group, by the offset's id: not those of a deep copy without groups.
_gate_of: WeakValueDictionary[int, OffsetOwner] = WeakValueDictionary()
_hidden: WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()
_installed = False


def param_groups(
    model: nn.Module,
    *,
    lr: float | Tensor | None = None,
    weight_decay: float | None = None,
    offset_lr: float = 2e-3,
    offset_update: OffsetUpdate = "bounded",
) -> list[ParamGroup]:
    """The model's parameters in two groups for any torch optimizer: all others first, the offsets second.

    `lr` and `weight_decay` are those of the weights; what is not given comes from the optimizer's own defaults.
    `offset_lr` is the most an offset moves in one step.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), Gate(4), nn.Linear(4, 2))
        >>> optimizer = torch.optim.SGD(param_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [4, 1]
    """
    options = {name: value for name, value in (("lr", lr), ("weight_decay", weight_decay)) if value is not None}
    offsets = offset_group(model, offset_lr=offset_lr, offset_update=offset_update)
    if offset_update == "plain":
        offsets.update(options)
    held = set(map(id, offsets["params"]))
    weights = [parameter for parameter in unwrap(model, "param_groups").parameters() if id(parameter) not in held]
    return [{"params": weights, **options}, offsets] if weights else [offsets]


def offset_group(model: nn.Module, *, offset_lr: float = 2e-3, offset_update: OffsetUpdate = "bounded") -> ParamGroup:
    """The offsets' group alone, to add to groups of your own. Leave the offsets out of the others.

    With `offset_update="plain"` the group holds no rate: the optimizer's defaults apply, or what you add to the dict.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), Gate(4), nn.Linear(4, 2))
        >>> optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, offset_group(model)])

    Raises:
        ArgumentError: a rate or an update that cannot be.
        GateError: no gates, two that share one offset, or one whose offset is NaN, by name.
    """
    if offset_update not in get_args(OffsetUpdate):
        known = ", ".join(get_args(OffsetUpdate))
        raise ArgumentError(f"offset_update={offset_update!r} is unknown; use one of {known}")
    offset_lr = _rate(offset_lr)
    found = require_owners(model, "offset_group")
    _refuse_shared_offsets(found)
    check_offsets(gates(model))
    _install_hooks()
    _gate_of.update({id(gate.offset): gate for gate in found.values()})
    group: ParamGroup = {"params": [gate.offset for gate in found.values()], "offset_update": offset_update}
    if offset_update == "bounded":
        group.update(offset_lr=offset_lr, lr=offset_lr, weight_decay=0.0)
    return group


def is_in_a_group(gate: OffsetOwner) -> bool:
    """Whether the gate's offset was handed out by `param_groups` or `offset_group`."""
    return _owner(gate.offset) is gate


def _owner(parameter: Tensor) -> OffsetOwner | None:
    """The gate whose offset was handed out as this parameter; ids alone may have been reused."""
    gate = _gate_of.get(id(parameter))
    return gate if gate is not None and _offset_of(gate) is parameter else None


def _offset_of(gate: OffsetOwner) -> Tensor | None:
    """None for the bank of a model whose gates were taken off: it may live on until garbage is collected."""
    return getattr(gate, "offset", None)


def _refuse_shared_offsets(found: dict[str, OffsetOwner]) -> None:
    first: dict[int, str] = {}
    for name, gate in found.items():
        if (other := first.setdefault(id(gate.offset), name)) != name:
            raise GateError(f"gates {other!r} and {name!r} share one offset: use one Gate in both places instead")


def _rate(offset_lr: Any) -> float:
    try:
        return number("offset_lr", offset_lr, above_zero=True)
    except ArgumentError as error:
        raise ArgumentError(f"{error}; to hold offsets use freeze_(model)") from None


def _install_hooks() -> None:
    """Once per process, and only when there are offsets to look after: torch.compiler takes seconds to import."""
    global _installed
    if not _installed:
        register_optimizer_step_pre_hook(_uncompiled(_before_step))
        register_optimizer_step_post_hook(_uncompiled(_after_step))
        _installed = True


def _before_any_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Meets optimizers that were unpickled in a process which has made no groups: they must not move offsets freely."""
    if not _installed and any("offset_update" in group for group in optimizer.param_groups):
        return _before_step(optimizer, args, kwargs)
    return None


register_optimizer_step_pre_hook(_before_any_step)


def _uncompiled(function: Callable[..., Any]) -> Any:
    """Compiled with an optimizer's step, it would take one gate's moments for another's (torch 2.13)."""
    return torch.compiler.disable(function, reason="headgate moves offsets eagerly; compile without fullgraph")


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    groups = [group for group in optimizer.param_groups if _holds_offsets(group)]
    if not groups:
        return None
    if isinstance(optimizer, LBFGS):
        raise OptimizerError(
            "LBFGS evaluates its closure several times a step and moves all it holds along one line, so it cannot "
            "carry offsets: give it the weights, and headgate.offset_group(model) to a second optimizer such as SGD"
        )
    _hidden.pop(optimizer, None)  # of a step that failed
    given = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(given):
        _move_offsets_(optimizer, groups)
        return None
    # The gradients to move by are not there yet; hidden all the same, since some (SAM) move parameters before they
    # call the closure.
    _move_offsets_(optimizer, groups, only_hide=True)
    closure = _then_move_offsets(given, optimizer, groups)
    return (args, {**kwargs, "closure": closure}) if "closure" in kwargs else ((args[0], closure, *args[2:]), kwargs)


def _then_move_offsets(closure: Callable[[], Any], optimizer: Optimizer, groups: list[ParamGroup]) -> Callable[[], Any]:
    moved, give_back, move = False, _uncompiled(_give_back_), _uncompiled(_move_offsets_)

    def moving() -> Any:
        nonlocal moved
        give_back(optimizer)
        loss = closure()
        move(optimizer, groups, only_hide=moved)
        moved = True  # some optimizers evaluate the closure more than once a step
        return loss

    return moving


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _give_back_(optimizer)


def _give_back_(optimizer: Optimizer) -> None:
    """Gives the hidden gradients back: a captured graph and DDP's buckets keep writing into them."""
    for offset, gradient in _hidden.pop(optimizer, ()):
        offset.grad = gradient


def _holds_offsets(group: ParamGroup) -> bool:
    """Whether the group says so or, should a loaded checkpoint have dropped the words, one of its parameters does."""
    if "offset_update" in group:
        return True
    held = set(map(id, group["params"]))
    return any(number in held and id(_offset_of(gate)) == number for number, gate in list(_gate_of.items()))


def _move_offsets_(optimizer: Optimizer, groups: list[ParamGroup], only_hide: bool = False) -> None:
    """Moves the offsets of those groups that are bounded, and hides from the optimizer what it must not move."""
    hidden = _hidden.setdefault(optimizer, [])
    for group in groups:
        bounded = _update_rule(optimizer, group) == "bounded"
        owners = [_owner_in_group(optimizer, offset) for offset in group["params"]]
        owners = [owner for owner in owners if owner.offset.grad is not None]
        if bounded and not only_hide:
            step_bounded_(optimizer, [owner for owner in owners if not owner.frozen], group)
        for owner in owners:
            if (bounded or owner.frozen) and owner.offset.grad is not None:
                hidden.append((owner.offset, owner.offset.grad))
                owner.offset.grad = None


def _update_rule(optimizer: Optimizer, group: ParamGroup) -> str:
    rule = group.get("offset_update")
    if rule not in get_args(OffsetUpdate) or (rule == "bounded" and "offset_lr" not in group):
        raise OptimizerError(
            f"a group of this {type(optimizer).__name__} holds offsets, but not how to move them (offset_update, "
            "offset_lr): was a checkpoint loaded that was made without gates, or were offsets put into a group of "
            "your own? Use the groups from headgate.param_groups"
        )
    return str(rule)


def _owner_in_group(optimizer: Optimizer, offset: Tensor) -> OffsetOwner:
    owner = _owner(offset)
    if owner is not None:
        return owner
    if id(offset) in _gate_of:
        what, cause = "an offset that its gate no longer has", "it was replaced, as load_state_dict(assign=True) does"
    else:
        what = "a parameter that is no gate's offset here"
        cause = "the model or the optimizer was copied or unpickled, or the gate has left the model"
    raise OptimizerError(
        f"the offsets' group of this {type(optimizer).__name__} holds {what}: {cause}. Build a new optimizer from "
        "headgate.param_groups(model) and load the old one's state_dict into it"
    )
