"""ChipNet (Tiwari et al. 2021): a free mask on every BatchNorm channel, driven to 0 or 1 and to a budget of channels.

A trained network gets the masks, learns with them for some epochs, and is cut to exactly the budget; fine-tuning
follows. As in the authors' code but for two things. The cut takes the largest of what is learned, not what is above a
threshold of at most 0.9, which may exceed the budget by far. And it is physical, so that a branch loses all of its
layers when it loses one, also when an epoch is judged by its cut network.
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

# The authors' schedules are for so many epochs; shorter and longer ones go through the same values.
EPOCHS = 20
SLOPE_STEP, SLOPE_MOST = 0.02, 6.0
EPOCHS_TO_DOUBLE, CRISPNESS_MOST = 2.0, 256.0
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
        return Chipped(model, plan, self.seed)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights, and what is learned for the channels, which does not decay."""
        chipped = cast(Chipped, model)
        return [{"params": list(chipped.network.parameters())}, {"params": [chipped.psi], "weight_decay": 0.0}]

    def companion(self, model: nn.Module, steps: int) -> Chipping:
        """What counts ever more sharply."""
        return Chipping(cast(Chipped, model), self, steps)

    def on_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Masks become steeper and crisper; in place, so that a captured step sees it."""
        past, chipped = epoch * EPOCHS / self.epochs, cast(Chipped, model)
        chipped.slope.fill_(min(SLOPE_MOST, SLOPE + SLOPE_STEP * past))
        chipped.crispness.fill_(min(CRISPNESS_MOST, CRISPNESS * 2 ** (past / EPOCHS_TO_DOUBLE)))
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


class Chipping:
    """Counts channels ever more sharply, step by step, without reading from the device."""

    def __init__(self, model: Chipped, method: ChipNet, steps: int) -> None:
        self.model, self.method = model, method
        self.sharper = ROUNDING_STEP * EPOCHS / steps

    def penalty(self) -> Tensor:
        """Of the distance from the budget, and of masks that are neither 0 nor 1."""
        distance = self.model.remaining() - self.method.share
        return self.method.budget_weight * distance.square() + self.method.crispness_weight * self.model.crisp()

    @torch.no_grad()
    def step(self) -> bool:
        """In place, so that a captured step sees it."""
        self.model.rounding.add_(self.sharper).clamp_(max=ROUNDING_MOST)
        return False

    @property
    def settled(self) -> bool:
        """The network stays as it is until it is cut."""
        return False

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """What counts as staying, and the mean of all masks."""
        return {"remaining": self.model.remaining().item(), "mask": self.model.masks()[1].mean().item()}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what changes is in the network."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""
