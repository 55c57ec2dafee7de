"""How offsets move: safely, under any optimizer and any schedule.

Left to the user's optimizer, offsets jump at larger strengths and whole layers die; schedulers rewrite their rate and
momentum. So the optimizer only *carries* the offsets' group. A hook before its step, which sees gradients after
accumulation, all-reduce, unscaling and clipping, moves each offset itself: by the first over the root of the second
moment of its gradient (decay 0.9 and 0.99, ε = 1e-6, bias-corrected), never by more than the group's `offset_lr`, and
never outside [`Gate.lowest`, `Gate.start`]. While the optimizer steps, the gradients are hidden from it.

The moments live in the optimizer's state and are saved with it. With `offset_update="plain"` the optimizer moves the
offsets as it moves the weights, decay included, without bound or floor: what the paper's code does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import ASGD, NAdam, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from headgate.errors import ArgumentError, OptimizerError
from headgate.gate import Gate
from headgate.gated import require_gates, unwrap

OffsetUpdate: TypeAlias = Literal["bounded", "plain"]
ParamGroup: TypeAlias = dict[str, Any]

FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
# Gradients far below this are noise and must not be normalised into steps.
EPSILON = 1e-6

# Gates whose offset was handed out in a group, by the offset's id. A deep copy of a model is not among them until it
# gets groups of its own.
_gate_of: WeakValueDictionary[int, Gate] = WeakValueDictionary()
_hidden: WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()


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
    given = {"lr": lr, "weight_decay": weight_decay}
    options = {name: value for name, value in given.items() if value is not None}
    offsets = offset_group(model, offset_lr=offset_lr, offset_update=offset_update)
    if offset_update == "plain":
        offsets.update(options)
    held = {id(offset) for offset in offsets["params"]}
    weights = [parameter for parameter in unwrap(model).parameters() if id(parameter) not in held]
    return [{"params": weights, **options}, offsets] if weights else [offsets]


def offset_group(model: nn.Module, *, offset_lr: float = 2e-3, offset_update: OffsetUpdate = "bounded") -> ParamGroup:
    """The offsets' group alone, to add to groups of your own. Leave the offsets out of the others.

    With `offset_update="plain"` the group holds no rate: the optimizer's defaults apply, or what you add to the dict.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), Gate(4), nn.Linear(4, 2))
        >>> optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, offset_group(model)])
    """
    if offset_update not in get_args(OffsetUpdate):
        raise ArgumentError(
            f"offset_update={offset_update!r} is unknown; use one of {', '.join(get_args(OffsetUpdate))}"
        )
    if not offset_lr > 0:
        raise ArgumentError(f"offset_lr={offset_lr} must be above 0; to hold offsets still use freeze_(model)")
    found = require_gates(model, "offset_group").values()
    _install_hooks()
    _gate_of.update({id(gate.offset): gate for gate in found})
    group: ParamGroup = {"params": [gate.offset for gate in found], "offset_update": offset_update}
    if offset_update == "bounded":
        group.update(offset_lr=offset_lr, lr=offset_lr, weight_decay=0.0)
    return group


def is_in_a_group(gate: Gate) -> bool:
    """Whether the gate's offset was handed out by `param_groups` or `offset_group`."""
    return _owner(gate.offset) is gate


def _owner(parameter: Tensor) -> Gate | None:
    """The gate whose offset was handed out as this parameter; ids alone may have been reused."""
    gate = _gate_of.get(id(parameter))
    return gate if gate is not None and gate.offset is parameter else None


@functools.cache
def _install_hooks() -> None:
    """Once per process, and only when there are offsets to look after."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    if not any(_holds_offsets(group) for group in optimizer.param_groups):
        return None
    closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    if not callable(closure):
        _move_offsets_(optimizer)
        return None
    # The gradients do not exist before the closure has run.
    moving = _then_move_offsets(closure, optimizer)
    return (args, {**kwargs, "closure": moving}) if "closure" in kwargs else ((args[0], moving, *args[2:]), kwargs)


def _then_move_offsets(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    def moving() -> Any:
        loss = closure()
        _move_offsets_(optimizer)
        return loss

    return moving


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Gives the hidden gradients back: a captured graph keeps writing into them."""
    for offset, gradient in _hidden.pop(optimizer, ()):
        offset.grad = gradient


def _holds_offsets(group: ParamGroup) -> bool:
    """Whether the group says so or, should a loaded checkpoint have dropped the words, its first parameter does."""
    return "offset_update" in group or (bool(group["params"]) and _owner(group["params"][0]) is not None)


@torch.no_grad()
def _move_offsets_(optimizer: Optimizer) -> None:
    """Moves the offsets of all bounded groups, and hides from the optimizer what it must not move."""
    hidden = _hidden.setdefault(optimizer, [])
    for group in optimizer.param_groups:
        if not _holds_offsets(group):
            continue
        bounded = _update_rule(optimizer, group) == "bounded"
        for offset in group["params"]:
            gate = _gate_of_offset(optimizer, offset)
            if offset.grad is None:
                continue
            if bounded and not gate.frozen:
                _step_bounded_(optimizer, gate, group["offset_lr"])
            if bounded or gate.frozen:
                hidden.append((offset, offset.grad))
                offset.grad = None


def _update_rule(optimizer: Optimizer, group: ParamGroup) -> str:
    rule = group.get("offset_update")
    if rule not in get_args(OffsetUpdate) or (rule == "bounded" and "offset_lr" not in group):
        raise OptimizerError(
            f"a group of this {type(optimizer).__name__} holds offsets, but not how to move them (offset_update, "
            "offset_lr): was a checkpoint loaded that was made without gates? Use groups from headgate.param_groups"
        )
    return str(rule)


def _gate_of_offset(optimizer: Optimizer, offset: Tensor) -> Gate:
    gate = _owner(offset)
    if gate is None:
        raise OptimizerError(
            f"the offsets' group of this {type(optimizer).__name__} holds a parameter that is no gate's offset (any "
            "more): after copying a model, build a new optimizer from headgate.param_groups(copy)"
        )
    return gate


def _step_bounded_(optimizer: Optimizer, gate: Gate, rate: float) -> None:
    """One bounded step. All on the device: no value is read back, so it can be captured in a CUDA graph."""
    offset = gate.offset
    gradient, sound = _true_gradient(optimizer, offset)
    moves = sound & ~gate.baked
    state = _moments(optimizer, offset)
    count = state["step"] + moves
    first = state["first"].lerp(gradient, 1 - FIRST_DECAY)
    second = state["second"].lerp(gradient.square(), 1 - SECOND_DECAY)
    ratio = (first / (1 - FIRST_DECAY**count)) / ((second / (1 - SECOND_DECAY**count)).sqrt() + EPSILON)
    target = offset - rate * ratio.clamp(-1, 1)
    bounded = torch.minimum(torch.maximum(target, gate.lowest), gate.start)
    for tensor, value in ((offset, bounded), (state["first"], first), (state["second"], second)):
        tensor.copy_(torch.where(moves, value, tensor))
    state["step"].copy_(count)


def _true_gradient(optimizer: Optimizer, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient without loss scaling, and whether it may be used.

    Fused optimizers unscale inside their kernel and are stepped even after an overflow: GradScaler leaves both facts
    on the optimizer.
    """
    assert offset.grad is not None
    gradient = offset.grad.to(offset.dtype)
    scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if scale is not None:
        gradient = gradient / scale.to(offset.device)
    sound = gradient.isfinite()
    return gradient, sound if overflow is None else sound & (overflow.to(offset.device) == 0)


def _moments(optimizer: Optimizer, offset: Tensor) -> dict[str, Tensor]:
    """The offset's moments in the optimizer's state, made at its first step."""
    state: dict[str, Tensor] = optimizer.state[offset]
    if "first" not in state:
        state["first"], state["second"] = torch.zeros_like(offset), torch.zeros_like(offset)
        # Optimizers look these up in every state when they load one.
        looked_up = {NAdam: ("step", "mu_product"), ASGD: ("step", "eta", "mu")}.get(type(optimizer), ("step",))
        state.update({name: torch.zeros_like(offset) for name in looked_up})
    if state["step"].device != offset.device:
        state["step"] = state["step"].to(offset.device)
    return state
