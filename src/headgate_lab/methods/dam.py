"""DAM: gates inserted by `headgate`, or placed by the network's builder, closed by a penalty on their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.gated import Gated


@dataclass(frozen=True)
class Dam(Gated):
    """Gates closed by a penalty of one strength.

    Attributes:
        strength: λ, the weight of the penalty.
        cold_start: epochs at the beginning in which the offsets do not move.
        settle: the epoch at which the offsets are frozen for good and the masks move into the weights; None: never.
        offset_update: "bounded" as the library recommends, or "plain" as the paper: by the weights' optimizer.
        decay_offsets: with "plain", whether the weights' decay acts on the offsets too, as in the paper's code.
    """

    strength: float
    cold_start: int = 0
    settle: int | None = None
    offset_update: Literal["bounded", "plain"] = "bounded"
    offset_lr: float = 2e-3
    decay_offsets: bool = True

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights, and offsets in a group of their own."""
        if self.offset_update == "bounded":
            return hg.param_groups(model, offset_lr=self.offset_lr)
        groups = hg.param_groups(model, offset_update="plain")
        if not self.decay_offsets:
            groups[-1]["weight_decay"] = 0.0
        return groups

    def penalty(self, model: nn.Module) -> Tensor | None:
        """λ times the mean of the offsets."""
        return self.strength * hg.penalty(model) if self.strength else None

    def on_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Freezes before the cold start is over and after the network has settled."""
        settled = self.settle is not None and epoch >= self.settle
        hg.freeze_(model, epoch < self.cold_start or settled)
        if epoch == self.settle:
            hg.bake_(model)
        return epoch in (0, self.cold_start, self.settle)


def in_the_paper_s_way(strength: float, cold_start: int) -> Dam:
    """As its code has it: gates before BatchNorm, none on streams, moved and decayed by the weights' optimizer."""
    return Dam(
        strength,
        cold_start=cold_start,
        offset_update="plain",
        streams=False,
        scale="plain",
        before_norm=True,
        floor=1,
    )
