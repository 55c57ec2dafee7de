"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes import (
    ablation,
    autoencoder,
    budget,
    cifar,
    curves,
    dimension,
    lenet,
    pretrained,
    sensitivity,
    slimming,
    stability,
    sweep,
)
from headgate_lab.recipes.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment
    for experiment in (
        dimension.EXPERIMENT,
        sensitivity.EXPERIMENT,
        autoencoder.EXPERIMENT,
        lenet.EXPERIMENT,
        ablation.EXPERIMENT,
        cifar.EXPERIMENT,
        curves.EXPERIMENT,
        stability.EXPERIMENT,
        slimming.EXPERIMENT,
        sweep.EXPERIMENT,
        budget.EXPERIMENT,
        pretrained.EXPERIMENT,
    )
}
