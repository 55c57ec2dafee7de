"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes import (
    ablation,
    autoencoder,
    budget,
    cifar,
    dimension,
    lenet,
    link_prediction,
    pretrained,
    sensitivity,
    sweep,
)
from headgate_lab.recipes.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment
    for experiment in (
        dimension.EXPERIMENT,
        sensitivity.EXPERIMENT,
        link_prediction.EXPERIMENT,
        autoencoder.EXPERIMENT,
        lenet.EXPERIMENT,
        ablation.EXPERIMENT,
        cifar.EXPERIMENT,
        sweep.EXPERIMENT,
        budget.EXPERIMENT,
        pretrained.EXPERIMENT,
    )
}
