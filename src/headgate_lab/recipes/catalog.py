"""All experiments, by id."""

from __future__ import annotations

from headgate_lab.recipes import (
    ablation,
    architecture,
    autoencoder,
    beyond,
    budget,
    cifar,
    cka,
    curves,
    dimension,
    lenet,
    link_prediction,
    permutation,
    pretrained,
    recommender,
    sensitivity,
    slimming,
    stability,
    sweep,
    tinyimagenet,
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
        permutation.EXPERIMENT,
        cifar.EXPERIMENT,
        cka.EXPERIMENT,
        architecture.EXPERIMENT,
        tinyimagenet.EXPERIMENT,
        beyond.EXPERIMENT,
        curves.EXPERIMENT,
        stability.EXPERIMENT,
        slimming.EXPERIMENT,
        sweep.EXPERIMENT,
        budget.EXPERIMENT,
        pretrained.EXPERIMENT,
        recommender.EXPERIMENT,
    )
}
