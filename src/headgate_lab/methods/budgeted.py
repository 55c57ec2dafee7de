"""DAM with a size instead of a strength: `headgate.Budget` closes the gates by a fraction of the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.gated import Gated


@dataclass(frozen=True)
class Budgeted(Gated):
    """Gates that leave at most so many parameters, or so large a fraction of the multiply-accumulates.

    The options are those of `headgate.Budget`.

    Attributes:
        params: the parameters wanted.
        macs: the multiply-accumulates wanted, instead.
        train_on: whether the rest of the training goes on with the small network, which is faster.
    """

    params: int | None = None
    macs: float | None = None
    reach: float = 0.5
    start: float = 0.1
    weigh: Literal["savings", "mean"] = "savings"
    bake: bool = True
    train_on: bool = False

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights, and offsets in a group of their own."""
        return hg.param_groups(model)

    def companion(self, model: nn.Module, steps: int) -> Steered:
        """The budget."""
        budget = hg.Budget(
            model,
            params=self.params,
            macs=self.macs,
            steps=steps,
            reach=self.reach,
            start=self.start,
            weigh=self.weigh,
            bake=self.bake,
        )
        return Steered(budget, self)


class Steered:
    """A budget as the companion of a network."""

    def __init__(self, budget: hg.Budget, method: Budgeted) -> None:
        self.budget, self.method = budget, method

    def penalty(self) -> Tensor:
        """The budget's."""
        return self.budget.penalty()

    def step(self) -> bool:
        """Steers; the training step becomes another one when gates begin to move and when they come to rest.

        Not in the latter case if they are baked: a captured step leaves baked gates alone by itself.
        """
        before = self.budget.stage
        self.budget.step()
        return before != self.budget.stage and (before == "waiting" or not self.method.bake)

    @property
    def settled(self) -> bool:
        """Once the budget is met, its masks are in the weights."""
        return self.method.train_on and self.budget.met

    def metrics(self) -> dict[str, float]:
        """Nothing: what is kept tells where the budget stands."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The budget's."""
        return self.budget.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the budget."""
        self.budget.load_state_dict(state)
