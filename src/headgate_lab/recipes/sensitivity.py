"""Appendix C: how the dimension found depends on learning rate, strength and initial offset.

For each problem of Figure 3 two maps of dimension and loss at the end: learning rate (0.0001 to 0.1) against
strength, and against initial offset; everything else as in the paper's settings of `dimension`. A map is one batched
run, all cells on the same data from the same weights. The paper shows the maps as pictures, without numbers, and does
not say for which r, nor which strengths and offsets: here r is 10. Ours (seed 0, an H200): at the problem's own
learning rate the dimension is 10 (neural: 10 or 11) for strengths over two decades and for every initial offset. At a
tenth of that rate or less the gate does not get there in the steps there are; far above it, or at strength 1, it
closes too many channels or the training diverges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from headgate_lab.engine.job import Job, Metrics
from headgate_lab.engine.stacked import Rates, Stack
from headgate_lab.recipes.bottleneck import PROBLEMS, Bottleneck, data_of, network_of
from headgate_lab.recipes.experiment import Experiment

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
OFFSETS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)


@dataclass(frozen=True)
class Sensitivity(Bottleneck):
    """One map of one problem.

    Attributes:
        problem: "linear", "quadratic" or "neural".
        map: what varies with the learning rate, "strength" or "offset".
        rates: learning rates, the rows of the map.
        values: strengths or initial offsets, its columns.
        weight_decay: of all cells.
        strength: where it does not vary.
        offset: likewise.
        factors: r.
    """

    experiment: ClassVar[str] = "sensitivity"

    problem: str
    map: str
    rates: tuple[float, ...]
    values: tuple[float, ...]
    weight_decay: float
    strength: float
    offset: float
    factors: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map not in ("strength", "offset"):
            raise ValueError(f"a map is over strength or offset, not {self.map}")

    @property
    def setting(self) -> str:
        """Problem and what varies."""
        return f"{self.problem}, learning rate and {self.map}"

    def cells(self) -> list[dict[str, float]]:
        """Learning rate, strength and offset of every cell, row by row."""
        fixed = {"strength": self.strength, "offset": self.offset}
        return [{**fixed, "lr": rate, self.map: value} for rate, value in product(self.rates, self.values)]

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Maps:
        """All cells of all jobs in one stack."""
        return Maps(jobs, device)


class Maps:
    """Maps that differ in their seed only. A cell that has diverged is None."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        recipe = jobs[0].recipe
        assert isinstance(recipe, Sensitivity)
        self.recipe, self.jobs, cells = recipe, len(jobs), recipe.cells()
        everywhere = cells * len(jobs)
        rates = Rates(
            [cell["lr"] for cell in everywhere],
            [recipe.weight_decay] * len(everywhere),
            [cell["strength"] for cell in everywhere],
            recipe.steps,
        )
        each = [data_of(recipe.problem, recipe.factors, recipe.sizes, job.seed).to(device) for job in jobs]
        self.data = torch.stack([data for data in each for _ in cells])
        copies = [
            network_of(recipe.problem, recipe.sizes, job.seed, offset=cell["offset"]) for job in jobs for cell in cells
        ]
        self.stack = Stack(copies, rates, lambda: (self.data,), device)

    def epoch(self) -> list[Metrics]:
        """Trains for an epoch's steps. `loss` is the median of the cells that are alive."""
        self.stack.run(self.recipe.steps // self.recipe.length)
        return [
            {"alive": len(alive), "loss": sorted(alive)[len(alive) // 2] if alive else None}
            for alive in ([value for value in loss if math.isfinite(value)] for loss, _ in self._measured())
        ]

    def finish(self) -> list[Metrics]:
        """Dimension and loss as matrices, a row for each learning rate."""
        results: list[Metrics] = []
        for loss, dimension in self._measured():
            alive = [math.isfinite(value) for value in loss]
            results.append({"dimension": self._matrix(dimension, alive), "loss": self._matrix(loss, alive)})
        return results

    def state_dict(self) -> dict[str, Any]:
        """The stack's."""
        return self.stack.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the stack."""
        self.stack.load_state_dict(state)

    def _measured(self) -> list[tuple[list[float], list[int]]]:
        """Loss and dimension of every cell, by job."""
        loss, _, opened = self.stack.measure(self.data)
        return list(zip(self._by_job(loss), self._by_job(opened), strict=True))

    def _by_job(self, values: Tensor) -> list[Any]:
        by_job: list[Any] = values.view(self.jobs, -1).tolist()
        return by_job

    def _matrix(self, values: Sequence[float], alive: Sequence[bool]) -> list[list[float | None]]:
        known = [value if living else None for value, living in zip(values, alive, strict=True)]
        width = len(self.recipe.values)
        return [known[start : start + width] for start in range(0, len(known), width)]


def recipe(problem: str, over: str) -> Sensitivity:
    """The map of a problem over learning rate and `over`, "strength" or "offset"."""
    known = PROBLEMS[problem]
    values = STRENGTHS if over == "strength" else OFFSETS
    fixed = known.weight_decay, known.strength, known.offset
    return Sensitivity(problem, over, RATES, values, *fixed, steps=known.steps)


def recipes() -> list[Sensitivity]:
    """Both maps of every problem."""
    return [recipe(problem, over) for problem in PROBLEMS for over in ("strength", "offset")]


EXPERIMENT = Experiment(
    id="sensitivity",
    title="dimension and loss over learning rate, strength and initial offset",
    place="App. C",
    seeds=1,
    recipes=recipes,
)
