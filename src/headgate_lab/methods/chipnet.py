"""ChipNet (Tiwari et al. 2021): a free mask on every BatchNorm channel, driven to 0 or 1 and to a budget of channels.

A trained network gets the masks, learns with them for some epochs, and is cut to exactly the budget; fine-tuning
follows. As in the authors' code but for three things. The cut takes the largest of what is learned, not what is above a
threshold of at most 0.9, which may exceed the budget by far. It is physical, so that a branch loses all of its layers
when it loses one, also when an epoch is judged by its cut network. And where the pruning has fewer epochs than theirs,
what is learned for channels moves faster.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.chip_masks import CRISPNESS, SLOPE, Chipped
from headgate_lab.methods.contract import Method
from headgate_lab.methods.norm_channels import cut, silenced_, sites

# The authors' schedules have so many stages, an epoch each. Others go through the same stages in the same share of the
# time, and what is learned for channels moves as far in each: otherwise masks open faster than they could close.
EPOCHS = 20
SLOPE_STEP, SLOPE_MOST = 0.02, 6.0
STAGES_TO_DOUBLE, CRISPNESS_MOST = 2.0, 256.0
ROUNDING_STEP, ROUNDING_MOST = 5.0, 60.0


@dataclass(frozen=True)
class ChipNet(Method):
    """The pruning between training and fine-tuning.

    Attributes:
        share: the fraction of all BatchNorm channels that stays.
        epochs: how many the schedules are spread over.
        seed: of what is learned for the channels, at the start.
        budget_weight: on the squared distance from the share.
        crispness_weight: on the mean squared distance of masks before and after the step.
    """

    share: float
    epochs: int = EPOCHS
    seed: int = 0
    budget_weight: float = 30.0
    crispness_weight: float = 10.0

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network with masks on its BatchNorms."""
        return self.masked(model, hg.find_groups(model, example, readers=True))

    def masked(self, model: nn.Module, plan: hg.Plan) -> Chipped:
        """The same where the plan is known."""
        return Chipped(model, plan, self.seed, pace=EPOCHS / self.epochs)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights, and what is learned for the channels, which does not decay."""
        chipped = cast(Chipped, model)
        return [{"params": list(chipped.network.parameters())}, {"params": [chipped.psi], "weight_decay": 0.0}]

    def companion(self, model: nn.Module, steps: int) -> Chipping:
        """What counts ever more sharply."""
        return Chipping(cast(Chipped, model), self, steps)

    def on_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Masks are as the epoch begins with them; until then they are looked at as they were learned."""
        enter_(cast(Chipped, model), epoch * EPOCHS // self.epochs)
        return False

    def keep(self, model: nn.Module) -> dict[str, Tensor]:
        """By site, what a cut now would leave."""
        chipped = cast(Chipped, model)
        return dict(sites(chipped.plan, chipped.stays(self.share)).values())

    def hardened(self, model: nn.Module) -> nn.Module:
        """The network at its full size with masks of 0 and 1 in its weights; the one given is left as it is."""
        chipped = cast(Chipped, model)
        return silenced_(copy.deepcopy(chipped.network), chipped.stays(self.share))

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The same with what does not stay physically removed."""
        chipped = cast(Chipped, model)
        return cut(chipped.network, chipped.plan, chipped.stays(self.share))


def enter_(model: Chipped, stage: int) -> None:
    """Masks become as steep and crisp as in that stage, counted from 0; in place, so that a captured step sees it."""
    model.slope.fill_(min(SLOPE_MOST, SLOPE + SLOPE_STEP * stage))
    model.crispness.fill_(min(CRISPNESS_MOST, CRISPNESS * 2 ** (stage / STAGES_TO_DOUBLE)))


class Chipping:
    """Leads masks through the stages within an epoch, and counts channels ever more sharply, step by step.

    It reads nothing from the device.
    """

    def __init__(self, model: Chipped, method: ChipNet, steps: int) -> None:
        self.model, self.method, self.steps = model, method, steps
        self.sharper = ROUNDING_STEP * EPOCHS / steps
        self.done = 0

    def penalty(self) -> Tensor:
        """Of the distance from the budget, and of masks that are neither 0 nor 1."""
        distance = self.model.remaining() - self.method.share
        return self.method.budget_weight * distance.square() + self.method.crispness_weight * self.model.crisp()

    @torch.no_grad()
    def step(self) -> bool:
        """The training step stays the same."""
        self.model.rounding.add_(self.sharper).clamp_(max=ROUNDING_MOST)
        self.done += 1
        ends_epoch = self.done * self.method.epochs % self.steps == 0
        if not ends_epoch and self._stage(self.done) != self._stage(self.done - 1):
            enter_(self.model, self._stage(self.done))
        return False

    def _stage(self, done: int) -> int:
        """The one that follows so many steps."""
        return done * EPOCHS // self.steps

    @property
    def settled(self) -> bool:
        """The network stays as it is until it is cut."""
        return False

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """What counts as staying, and the mean of all masks."""
        return {"remaining": self.model.remaining().item(), "mask": self.model.masks()[1].mean().item()}

    def state_dict(self) -> dict[str, Any]:
        """How far it is; all else that changes is in the network."""
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Counts on from there."""
        self.done = state["done"]
