"""One bounded step of offsets, all of a group at once: a model may have hundreds, each a single number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import ASGD, NAdam, Optimizer

from headgate.errors import OptimizerError
from headgate.gate import Gate
from headgate.gated import OffsetOwner

FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
# Gradients far below this are noise and must not be normalised into steps.
EPSILON = 1e-6
# Steps do not depend on the size of gradients; squares of larger ones overflow.
LARGEST_GRADIENT = 1e15


@torch.no_grad()
def step_bounded_(optimizer: Optimizer, owners: Sequence[OffsetOwner], group: dict[str, Any]) -> None:
    """Moves the offsets of these owners, all of which have gradients, by the rule in `headgate.offsets`."""
    alike: dict[tuple[torch.device, torch.dtype, float], list[OffsetOwner]] = {}
    for owner in owners:
        own = None if isinstance(owner, Gate) else owner.rate
        rate = group["offset_lr"] if own is None else own
        alike.setdefault((owner.offset.device, owner.offset.dtype, rate), []).append(owner)
    for (_, _, rate), some in alike.items():
        _step_alike_(optimizer, some, rate, bool(group.get("maximize", False)))


def _step_alike_(optimizer: Optimizer, owners: list[OffsetOwner], rate: float, maximize: bool) -> None:
    """One step, laid end to end. All on the device: no value is read back, so it can be captured in a CUDA graph."""
    offsets = [owner.offset for owner in owners]
    states = [_moments(optimizer, offset) for offset in offsets]
    steps, firsts, seconds = ([state[name] for state in states] for name in ("step", "first", "second"))
    old, old_first, old_second = map(_flat, (offsets, firsts, seconds))
    gradient, sound = _true_gradient(optimizer, _flat([offset.grad for offset in offsets]).to(old.dtype))
    gradient = -gradient if maximize else gradient
    moves = sound & (_flat([owner.baked for owner in owners]) == 0)
    count = _flat(steps) + moves
    first = old_first.lerp(gradient, 1 - FIRST_DECAY)
    second = old_second.lerp(gradient.square(), 1 - SECOND_DECAY)
    ratio = (first / (1 - FIRST_DECAY**count)) / ((second / (1 - SECOND_DECAY**count)).sqrt() + EPSILON)
    target = torch.maximum(old - rate * ratio.clamp(-1, 1), _flat([owner.lowest for owner in owners]))
    bounded = torch.minimum(target, _flat([_start(owner) for owner in owners]))
    _write_(offsets, torch.where(moves, bounded, old))
    _write_(firsts, torch.where(moves, first, old_first))
    _write_(seconds, torch.where(moves, second, old_second))
    _write_(steps, count)


def _flat(tensors: Sequence[Tensor | None]) -> Tensor:
    """Laid end to end; a single one, the usual case, is not copied."""
    pieces = [tensor.reshape(-1) for tensor in tensors if tensor is not None]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _write_(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """The opposite of `_flat`: into the very same tensors."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_([tensor.view(-1) for tensor in tensors], pieces)


def _start(owner: OffsetOwner) -> Tensor:
    return owner.start if isinstance(owner, Gate) else torch.full_like(owner.offset, owner.start)


def _true_gradient(optimizer: Optimizer, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient without loss scaling, and where it may be used.

    GradScaler leaves scale and overflow to a fused optimizer, as attributes, and steps it in any case.
    """
    scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if scale is not None:
        gradient = gradient / scale.to(gradient.device)
    sound = gradient.isfinite()
    if overflow is not None:
        sound = sound & (overflow.to(gradient.device) == 0)
    return gradient.clamp(-LARGEST_GRADIENT, LARGEST_GRADIENT), sound


def _moments(optimizer: Optimizer, offset: Tensor) -> dict[str, Tensor]:
    """The offset's moments in the optimizer's state, made at its first step; they follow it to its device and dtype."""
    state: dict[str, Tensor] = optimizer.state[offset]
    if "first" not in state:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise OptimizerError("step once before capturing a CUDA graph: replays would clear the offsets' moments")
        state["first"], state["second"] = torch.zeros_like(offset), torch.zeros_like(offset)
        # Optimizers look these up in every state when they load one, and some make the step float32.
        looked_up = ["mu_product"] * isinstance(optimizer, NAdam) + ["eta", "mu"] * isinstance(optimizer, ASGD)
        state.update({name: torch.zeros_like(offset, dtype=torch.float32) for name in ("step", *looked_up)})
    state["first"], state["second"] = state["first"].to(offset), state["second"].to(offset)
    state["step"] = state["step"].to(offset.device)
    return state
