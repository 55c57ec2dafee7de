"""An experiment: recipes that belong together, under the id that tables and figures use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate_lab.engine.job import Recipe


@dataclass(frozen=True)
class Experiment:
    """`recipes` returns all of them; `seeds` of each, from 0, are what its tables are made of."""

    id: str
    title: str
    place: str
    seeds: int
    recipes: Callable[[], Sequence[Recipe]]
    together: int = 1
