"""Five random orders of the channels (tab:permutation_invariance): PreResNet-164 on CIFAR-10, strength 0.4.

A seed draws an order for every gate; weights and batches are those of seed 0 in all runs, as the paper's text has it.
Beside it stand the same network with the channels in their own order and weights and batches of every seed (what
permutations are to be compared with), ours at the paper's size, and the uniformly narrower network. The paper trained
for 200 epochs; these have 60. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch

from headgate_lab.engine.job import Job, Training
from headgate_lab.methods.contract import Method
from headgate_lab.methods.gated import Gated
from headgate_lab.recipes.compared import Compared, MethodName, compared
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.stability import SIZE, STRENGTH

# What draws weights and batches where the seed draws orders.
SEED = 0


@dataclass(frozen=True)
class Permutation(Compared):
    """One network.

    Attributes:
        order: "random": the seed draws orders and nothing else. "index": it draws everything but them.
    """

    experiment: ClassVar[str] = "permutation"

    order: Literal["random", "index"] = "random"

    @property
    def setting(self) -> str:
        """As of any network, and its order."""
        return f"{super().setting}, {self.order} order"

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """Each as what its seed makes of it."""
        return super().start([_drawn(job) for job in jobs], device)


@dataclass(frozen=True)
class Drawn(Permutation):
    """What is trained when orders have been drawn; it is never recorded under its own name."""

    permutation: int = 0

    def pruning(self) -> Method:
        """With an order for every gate."""
        method = super().pruning()
        assert isinstance(method, Gated)
        return replace(method, permutation=self.permutation)


def _drawn(job: Job) -> Job:
    recipe = job.recipe
    assert isinstance(recipe, Permutation)
    if recipe.order == "index":
        return job
    known = {one.name: getattr(recipe, one.name) for one in fields(recipe)}
    return Job(Drawn(**known, permutation=job.seed), SEED)


def recipes() -> Sequence[Permutation]:
    """The paper's way in random orders and in their own, ours in random orders, and the control."""
    return [
        _network("paper", strength=STRENGTH),
        _network("ours", params=SIZE),
        _network("paper", strength=STRENGTH, order="index"),
        _network("narrower", params=SIZE, order="index"),
    ]


def _network(method: MethodName, **much: Any) -> Permutation:
    return compared(Permutation, "preresnet164", "cifar10", method, **much)


EXPERIMENT = Experiment(
    "permutation", "five random orders of the channels", "tab:permutation_invariance", 5, recipes, together=5
)
