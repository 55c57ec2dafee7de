"""The penalty that pushes gates shut."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from headgate.errors import HeadgateWarning
from headgate.gated import OffsetOwner, require_owners
from headgate.offsets import is_in_a_group


def penalty(model: nn.Module) -> Tensor:
    """The mean over gates of max(offset, -span), one differentiable scalar to add to the loss, times a strength.

    This is the paper's Σβ/(l-1). Below -span, where a gate is shut altogether, nothing is left to push.

    Warns:
        HeadgateWarning: offsets that no group made by `param_groups` or `offset_group` holds; they would stay where
            they are, or be moved by the optimizer without bound or floor. Not noticed: a group that was made but
            never given to an optimizer, or to one that is never stepped.

    Example:
        >>> import headgate
        >>> model = nn.Sequential(nn.Linear(4, 4), headgate.Gate(4), nn.Linear(4, 4), headgate.Gate(4, offset=-2.0))
        >>> optimizer = torch.optim.Adam(headgate.param_groups(model, lr=1e-3))
        >>> penalty(model)
        tensor(-0.5000, grad_fn=<MeanBackward0>)
    """
    found = require_owners(model, "penalty")
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        warn_of_orphans(found)
    offsets = [owner.offset.clamp(min=-owner.span).reshape(-1) for owner in found.values()]
    return torch.cat(offsets).mean()


def warn_of_orphans(found: dict[str, OffsetOwner]) -> None:
    """Warns of leaf offsets in no group. Substituted ones (functional_call, vmap) are somebody else's to move."""
    orphans = [
        name or "root"
        for name, owner in found.items()
        if isinstance(owner.offset, nn.Parameter) and not is_in_a_group(owner)
    ]
    if orphans:
        warnings.warn(
            f"no optimizer group made by headgate holds the offsets of {', '.join(orphans)}: build the optimizer from "
            "headgate.param_groups(model, lr=…), or add headgate.offset_group(model) to your own groups",
            HeadgateWarning,
            stacklevel=3,
        )
