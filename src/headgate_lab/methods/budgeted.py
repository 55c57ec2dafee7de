"""DAM with a size instead of a strength: `headgate.Budget` closes the gates by a fraction of the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.gated import Gated


@dataclass(frozen=True)
class Budgeted(Gated):
    """Gates that leave at most so many parameters.

    Attributes:
        params: the parameters wanted.
        reach: the fraction of the training by which they are met.
        start: the fraction before which no gate moves.
        train_on: whether the rest of the training goes on with the small network, which is faster.
    """

    params: int
    reach: float = 0.5
    start: float = 0.1
    train_on: bool = False

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights, and offsets in a group of their own."""
        return hg.param_groups(model)

    def companion(self, model: nn.Module, steps: int) -> Steered:
        """The budget."""
        budget = hg.Budget(model, params=self.params, steps=steps, reach=self.reach, start=self.start)
        return Steered(budget, self.train_on)


class Steered:
    """A budget as the companion of a network."""

    def __init__(self, budget: hg.Budget, train_on: bool) -> None:
        self.budget, self.train_on = budget, train_on

    def penalty(self) -> Tensor:
        """The budget's."""
        return self.budget.penalty()

    def step(self) -> bool:
        """Steers; the training step becomes another one when gates begin to move.

        When they come to rest it does not: from then on a captured step leaves them alone by itself.
        """
        before = self.budget.stage
        self.budget.step()
        return before == "waiting" and self.budget.stage != "waiting"

    @property
    def settled(self) -> bool:
        """Once the budget is met, its masks are in the weights."""
        return self.train_on and self.budget.met

    def state_dict(self) -> dict[str, Any]:
        """The budget's."""
        return self.budget.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the budget."""
        self.budget.load_state_dict(state)
