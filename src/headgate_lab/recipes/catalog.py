"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes import (
    ablation,
    autoencoder,
    budget,
    cifar,
    dimension,
    lenet,
    pretrained,
    recommender,
    sensitivity,
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
        sweep.EXPERIMENT,
        budget.EXPERIMENT,
        pretrained.EXPERIMENT,
        recommender.EXPERIMENT,
    )
}
