"""A recipe small enough to be run in a test: a line through points, learned epoch by epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from headgate_lab.engine.job import Job, Metrics, Recipe, Training
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines


@dataclass(frozen=True)
class StraightLine(Recipe):
    """Points of y = slope x with noise of the seed's own in every epoch."""

    experiment: ClassVar[str] = "line"

    slope: float
    lr: float = 0.1
    length: int = 5
    pause: float = 0.0

    @property
    def setting(self) -> str:
        return f"slope {self.slope:g}"

    @property
    def epochs(self) -> int:
        return self.length

    @property
    def cohort(self) -> float:
        return self.pause

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        return Lined(jobs)


class Lined:
    def __init__(self, jobs: Sequence[Job]) -> None:
        self.recipes: list[Any] = [job.recipe for job in jobs]
        self.generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
        self.slopes = torch.zeros(len(jobs), dtype=torch.float64)

    def epoch(self) -> list[Metrics]:
        time.sleep(self.recipes[0].pause)
        return [{"loss": self._step(number)} for number in range(len(self.recipes))]

    def _step(self, number: int) -> float:
        recipe = self.recipes[number]
        x = torch.randn(8, generator=self.generators[number], dtype=torch.float64)
        error = (self.slopes[number] - recipe.slope) * x
        self.slopes[number] -= recipe.lr * (error * x).mean()
        return float(error.square().mean())

    def finish(self) -> list[Metrics]:
        return [{"slope": float(slope)} for slope in self.slopes]

    def state_dict(self) -> dict[str, Any]:
        states: list[Tensor] = [generator.get_state() for generator in self.generators]
        return {"slopes": self.slopes.clone(), "random": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slopes.copy_(state["slopes"])
        for generator, random in zip(self.generators, state["random"], strict=True):
            generator.set_state(random)


def here(out: Path, between: float = 0.0) -> Place:
    return Place(out, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"}, between)


if __name__ == "__main__":
    # A program of its own, to be killed: folder, epochs, seconds an epoch.
    recipe = StraightLine(3.0, length=int(sys.argv[2]), pause=float(sys.argv[3]))
    run([Job(recipe, seed) for seed in range(2)], here(Path(sys.argv[1])), Lines(), together=2)
