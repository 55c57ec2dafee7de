"""How offsets move: safely, under any optimizer and any schedule.

Left to the user's optimizer, offsets jump at larger strengths and whole layers die; schedulers rewrite their rate and
momentum. So the optimizer only *carries* the offsets' group. A hook before its step, which sees gradients after
accumulation, all-reduce, unscaling and clipping, moves each offset itself: by the first over the root of the second
moment of its gradient (decay 0.9 and 0.99, ε = 1e-6, bias-corrected), once a step, never by more than the group's
`offset_lr`, and never outside [`Gate.lowest`, `Gate.start`]; the other way if the optimizer maximises. While the
optimizer steps, the gradients are hidden from it.

The moments live in the optimizer's state and are saved with it. LBFGS cannot carry offsets and Muon takes matrices
only: beside them, give `offset_group` to a second optimizer. With `offset_update="plain"` the optimizer moves the
offsets as it moves the weights, decay included, without bound or floor: what the paper's code does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, NAdam, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from headgate.errors import ArgumentError, GateError, OptimizerError
from headgate.gated import OffsetOwner, require_owners, unwrap

OffsetUpdate: TypeAlias = Literal["bounded", "plain"]
ParamGroup: TypeAlias = dict[str, Any]

FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
# Gradients far below this are noise and must not be normalised into steps.
EPSILON = 1e-6

# Gates whose offset was handed out in a group, by the offset's id: not those of a deep copy without groups.
_gate_of: WeakValueDictionary[int, OffsetOwner] = WeakValueDictionary()
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
    options = {name: value for name, value in (("lr", lr), ("weight_decay", weight_decay)) if value is not None}
    offsets = offset_group(model, offset_lr=offset_lr, offset_update=offset_update)
    if offset_update == "plain":
        offsets.update(options)
    held = set(map(id, offsets["params"]))
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
        known = ", ".join(get_args(OffsetUpdate))
        raise ArgumentError(f"offset_update={offset_update!r} is unknown; use one of {known}")
    if not 0 < offset_lr < math.inf:
        raise ArgumentError(f"offset_lr={offset_lr} must be above 0 and finite; to hold offsets use freeze_(model)")
    found = require_owners(model, "offset_group")
    _refuse_shared_offsets(found)
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
    return gate if gate is not None and gate.offset is parameter else None


def _refuse_shared_offsets(found: dict[str, OffsetOwner]) -> None:
    first: dict[int, str] = {}
    for name, gate in found.items():
        if (other := first.setdefault(id(gate.offset), name)) != name:
            raise GateError(f"gates {other!r} and {name!r} share one offset: use one Gate in both places instead")


@functools.cache
def _install_hooks() -> None:
    """Once per process, and only when there are offsets to look after."""
    register_optimizer_step_pre_hook(_uncompiled(_before_step))
    register_optimizer_step_post_hook(_uncompiled(_after_step))


def _uncompiled(function: Callable[..., Any]) -> Any:
    """Compiled with an optimizer's step, it would take one gate's moments for another's (torch 2.13)."""
    return torch.compiler.disable(function, reason="headgate moves offsets eagerly; compile without fullgraph")


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    if not any(_holds_offsets(group) for group in optimizer.param_groups):
        return None
    if isinstance(optimizer, LBFGS):
        raise OptimizerError(
            "LBFGS evaluates its closure several times a step and moves all it holds along one line, so it cannot "
            "carry offsets: give it the weights, and headgate.offset_group(model) to a second optimizer such as SGD"
        )
    _hidden[optimizer] = []
    # With a closure there are no gradients yet.
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _then_move_offsets(kwargs["closure"], optimizer)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _then_move_offsets(args[1], optimizer), *args[2:]), kwargs
    _move_offsets_(optimizer)
    return None


def _then_move_offsets(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    moved, move = False, _uncompiled(_move_offsets_)

    def moving() -> Any:
        nonlocal moved
        loss = closure()
        move(optimizer, only_hide=moved)
        moved = True  # some optimizers evaluate the closure more than once a step
        return loss

    return moving


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Gives the hidden gradients back: a captured graph and DDP's buckets keep writing into them."""
    for offset, gradient in _hidden.pop(optimizer, ()):
        offset.grad = gradient


def _holds_offsets(group: ParamGroup) -> bool:
    """Whether the group says so or, should a loaded checkpoint have dropped the words, one of its parameters does."""
    return "offset_update" in group or any(_owner(parameter) is not None for parameter in group["params"])


@torch.no_grad()
def _move_offsets_(optimizer: Optimizer, only_hide: bool = False) -> None:
    """Moves the offsets of all bounded groups, and hides from the optimizer what it must not move."""
    for group in optimizer.param_groups:
        if not _holds_offsets(group):
            continue
        bounded = _update_rule(optimizer, group) == "bounded"
        for offset in group["params"]:
            gate = _gate_of_offset(optimizer, offset)
            if offset.grad is None:
                continue
            if bounded and not gate.frozen and not only_hide:
                _step_bounded_(optimizer, gate, group)
            if bounded or gate.frozen:
                _hidden[optimizer].append((offset, offset.grad))
                offset.grad = None


def _update_rule(optimizer: Optimizer, group: ParamGroup) -> str:
    rule = group.get("offset_update")
    if rule not in get_args(OffsetUpdate) or (rule == "bounded" and "offset_lr" not in group):
        raise OptimizerError(
            f"a group of this {type(optimizer).__name__} holds offsets, but not how to move them (offset_update, "
            "offset_lr): was a checkpoint loaded that was made without gates, or were offsets put into a group of "
            "your own? Use the groups from headgate.param_groups"
        )
    return str(rule)


def _gate_of_offset(optimizer: Optimizer, offset: Tensor) -> OffsetOwner:
    gate = _owner(offset)
    if gate is None:
        raise OptimizerError(
            f"the offsets' group of this {type(optimizer).__name__} holds a parameter that is no gate's offset (any "
            "more): after copying a model, build a new optimizer from headgate.param_groups(copy)"
        )
    return gate


def _step_bounded_(optimizer: Optimizer, gate: OffsetOwner, group: ParamGroup) -> None:
    """One bounded step. All on the device: no value is read back, so it can be captured in a CUDA graph."""
    offset, state = gate.offset, _moments(optimizer, gate.offset)
    gradient, sound = _true_gradient(optimizer, offset)
    gradient = -gradient if group.get("maximize", False) else gradient
    moves = sound & (gate.baked == 0)
    count = state["step"] + moves
    first = state["first"].lerp(gradient, 1 - FIRST_DECAY)
    second = state["second"].lerp(gradient.square(), 1 - SECOND_DECAY)
    ratio = (first / (1 - FIRST_DECAY**count)) / ((second / (1 - SECOND_DECAY**count)).sqrt() + EPSILON)
    target = offset - group["offset_lr"] * ratio.clamp(-1, 1)
    bounded = torch.maximum(target, gate.lowest).clamp(max=gate.start)
    for tensor, value in ((offset, bounded), (state["first"], first), (state["second"], second)):
        tensor.copy_(torch.where(moves, value, tensor))
    state["step"].copy_(count)


def _true_gradient(optimizer: Optimizer, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient without loss scaling, and whether it may be used.

    GradScaler leaves scale and overflow to a fused optimizer, as attributes, and steps it in any case.
    """
    assert offset.grad is not None
    gradient = offset.grad.to(offset.dtype)
    scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if scale is not None:
        gradient = gradient / scale.to(offset.device)
    sound = gradient.square().isfinite()
    return gradient, sound if overflow is None else sound & (overflow.to(offset.device) == 0)


def _moments(optimizer: Optimizer, offset: Tensor) -> dict[str, Tensor]:
    """The offset's moments in the optimizer's state, made at its first step."""
    state: dict[str, Tensor] = optimizer.state[offset]
    if "first" not in state:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise OptimizerError("step once before capturing a CUDA graph: replays would clear the offsets' moments")
        state["first"], state["second"] = torch.zeros_like(offset), torch.zeros_like(offset)
        # Optimizers look these up in every state when they load one, and some make the step float32.
        looked_up = ["mu_product"] * isinstance(optimizer, NAdam) + ["eta", "mu"] * isinstance(optimizer, ASGD)
        state.update({name: torch.zeros_like(offset, dtype=torch.float32) for name in ("step", *looked_up)})
    state["step"] = state["step"].to(offset.device)
    return state
