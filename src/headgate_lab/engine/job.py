"""What a run is: a recipe and a seed. Both together name it; where and in which numbers it learned is recorded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch

T = TypeVar("T")

# One number a name; a list where a final result is a curve; None where there is nothing to say.
Metric = float | int | None | Sequence[Any]
Metrics = Mapping[str, Metric]

# The name under which results say, instead of anything else, why there are none.
FAILED = "failed"

_LATER = "later"


def later(default: T) -> T:
    """A field that a recipe was given after records of it existed: at its default it is not part of the config.

    So a run from before the field and one from after it have the same name and the same config.
    """
    field: T = dataclasses.field(default=default, metadata={_LATER: True})
    return field


@dataclass(frozen=True)
class Recipe(ABC):
    """Everything that an experiment decides, but for the seed. Subclasses add fields: numbers, strings, tuples of them.

    `takes_precision` tells whether its networks learn in the numbers that `learning_in` asks for.
    """

    experiment: ClassVar[str]
    takes_precision: ClassVar[bool] = False

    @property
    @abstractmethod
    def setting(self) -> str:
        """In a few words, what sets this recipe apart from the others of its experiment."""

    @property
    @abstractmethod
    def epochs(self) -> int:
        """How many epochs a training of it has."""

    @property
    def cohort(self) -> Hashable:
        """Jobs whose cohorts are equal may be trained side by side. By default those that differ in their seed only."""
        return self

    @classmethod
    @abstractmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """A training of these jobs, of one cohort, side by side, before its first epoch."""

    def config(self) -> dict[str, Any]:
        """The fields, as JSON knows them, without those added `later` that are at their default."""
        known: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        for field in dataclasses.fields(self):
            if field.metadata.get(_LATER) and getattr(self, field.name) == field.default:
                del known[field.name]
        return known


class Training(Protocol):
    """Jobs in training side by side; every method speaks of all of them, in their order.

    What comes next must follow from the recipe, the seed and `state_dict` alone: whoever loads the state into a fresh
    training goes on as if nothing had happened.
    """

    def epoch(self) -> list[Metrics]:
        """Trains one epoch. `loss` among the metrics tells whether a job is still alive."""

    def finish(self) -> list[Metrics]:
        """After the last epoch: the results; where a job has none, why not, as `FAILED`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes in an epoch: tensors, numbers, strings, and lists and dicts of them."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a training that has just been started where `state_dict` was taken."""


@runtime_checkable
class InStages(Training, Protocol):
    """A training of several stages, whose seconds are recorded one by one."""

    @property
    def stage(self) -> str:
        """The name of the stage that the next epoch is in."""

    @property
    def side_by_side(self) -> int:
        """How many networks the next epoch trains; fewer than there are jobs where jobs share them."""

    def turn(self) -> None:
        """Makes what a stage begins with, if the next epoch is its first; else nothing."""


@dataclass(frozen=True)
class Job:
    """One run."""

    recipe: Recipe
    seed: int

    @property
    def name(self) -> str:
        """The run's name: a hash of the recipe and the seed."""
        recipe, fields = self.recipe, self.recipe.config()
        known = {"experiment": recipe.experiment, "recipe": type(recipe).__name__, "seed": self.seed, "fields": fields}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]

    def folder(self, out: Path) -> Path:
        """Where the run lives below `out`."""
        return out / self.recipe.experiment / self.name

    def __str__(self) -> str:
        return f"{self.recipe.experiment} ({self.recipe.setting}), seed {self.seed}"
