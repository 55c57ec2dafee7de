"""Figure 3: the gate on an autoencoder's code finds the dimension of synthetic data.

Data of 100 features is made from r hidden factors; a gate sits on a code of 50 channels. The paper: exactly r open
channels at the end, for r from 5 to 20, five runs each. Ours, r = 5, 10, 15, 20, seeds 0 to 4, on an H200 (linear: on
a CPU): by the paper's settings exactly r in 20 of 20 runs of the linear and of the neural problem and in 18 of 20 of
the quadratic one (6 instead of 5 twice); by our settings, chosen on seeds 10 to 14, in all 60 runs.

`settings="paper"` is the paper's Table 1 (Appendix D) with plain Adam on all parameters, decay on the offset
included. `settings="ours"` moves the offset by headgate's bounded update, and rests it for the last quarter of the
steps while the learning rate falls to 0. The order counts from 1, as the paper's text does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from headgate_lab.engine.job import Job, Metrics
from headgate_lab.engine.stacked import Rates, Stack
from headgate_lab.recipes.bottleneck import PROBLEMS, Bottleneck, data_of, network_of
from headgate_lab.recipes.experiment import Experiment

FACTORS = (5, 10, 15, 20)
# Ours. At the paper's strengths some runs end with a channel or two too many.
STRENGTHS = {"linear": 0.02, "quadratic": 0.1, "neural": 0.1}


@dataclass(frozen=True)
class Dimension(Bottleneck):
    """One problem with one number of hidden factors; see `Rates` for how it is trained.

    Attributes:
        problem: "linear", "quadratic" or "neural".
        factors: r.
        settings: whose numbers these are.
        offset: the gate's initial offset.
        floor: how many channels the bounded update leaves open at least.
    """

    experiment: ClassVar[str] = "dimension"

    problem: str
    factors: int
    settings: str
    lr: float
    weight_decay: float
    strength: float
    offset: float
    offset_lr: float = 0.0
    search: float = 1.0
    floor: int = 0

    @property
    def setting(self) -> str:
        """Problem, dimension and whose settings."""
        return f"{self.problem}, r = {self.factors}, {self.settings}"

    @property
    def cohort(self) -> Hashable:
        """One network and one schedule; what differs is in the data and in vectors with a number for each job."""
        return replace(self, factors=0, settings="", lr=0.0, weight_decay=0.0, strength=0.0, offset=0.0)

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Dimensions:
        """All jobs in one stack."""
        return Dimensions(jobs, device)


class Dimensions:
    """Jobs of one cohort, each with data of its own."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        recipes: list[Dimension] = [job.recipe for job in jobs if isinstance(job.recipe, Dimension)]
        first = recipes[0]
        seeded = [(recipe, job.seed) for recipe, job in zip(recipes, jobs, strict=True)]
        self.steps = first.steps // first.length
        self.data = torch.stack([data_of(one.problem, one.factors, one.sizes, seed) for one, seed in seeded]).to(device)
        rates = Rates(
            [recipe.lr for recipe in recipes],
            [recipe.weight_decay for recipe in recipes],
            [recipe.strength for recipe in recipes],
            first.steps,
            first.offset_lr,
            first.search,
        )
        copies = [network_of(one.problem, one.sizes, seed, offset=one.offset, floor=one.floor) for one, seed in seeded]
        self.stack = Stack(copies, rates, lambda: (self.data,), device)

    def epoch(self) -> list[Metrics]:
        """Trains for an epoch's steps; dimension and loss are those behind the last one."""
        self.stack.run(self.steps)
        return [{"dimension": dimension, "loss": loss} for dimension, loss in self._measured()]

    def finish(self) -> list[Metrics]:
        """Dimension and loss at the end, and the loss as a fraction of the data's mean square."""
        squares = self.data.square().mean((1, 2)).tolist()
        return [
            {"dimension": dimension, "loss": loss, "error": loss / square}
            for (dimension, loss), square in zip(self._measured(), squares, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The stack's."""
        return self.stack.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the stack."""
        self.stack.load_state_dict(state)

    def _measured(self) -> list[tuple[int, float]]:
        """Dimension and loss of each job."""
        loss, _, opened = self.stack.measure(self.data)
        return list(zip(opened.tolist(), loss.tolist(), strict=True))


def paper(problem: str, factors: int) -> Dimension:
    """The paper's settings."""
    known = PROBLEMS[problem]
    settings = known.lr, known.weight_decay, known.strength, known.offset
    return Dimension(problem, factors, "paper", *settings, steps=known.steps)


def ours(problem: str, factors: int) -> Dimension:
    """The paper's learning rates and steps; the offset from 1, by a bounded step, at rest for the last quarter."""
    return replace(
        paper(problem, factors),
        settings="ours",
        strength=STRENGTHS[problem],
        offset=1.0,
        offset_lr=0.01 if problem != "neural" else 0.001,
        search=0.75,
        floor=1,
    )


def recipes() -> list[Dimension]:
    """Both settings, every problem, every r."""
    return [make(problem, factors) for make in (paper, ours) for problem in PROBLEMS for factors in FACTORS]


EXPERIMENT = Experiment(
    id="dimension",
    title="the gate on an autoencoder's code finds the dimension of synthetic data",
    place="Fig. 3",
    seeds=5,
    recipes=recipes,
    together=20,
)
