"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes import ablation, lenet
from headgate_lab.recipes.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment for experiment in (lenet.EXPERIMENT, ablation.EXPERIMENT)
}
