"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
