"""The control that asks what pruning finds, weights or widths: the widths that a budget found, with fresh weights.

A network is trained with its budget until the size is met. Then what is left is drawn anew and trained from scratch,
for as many epochs as any other network.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import nn

import headgate as hg
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Job, Metrics
from headgate_lab.engine.network import Network
from headgate_lab.engine.staged import Stage, Staged
from headgate_lab.methods.narrower import Narrower
from headgate_lab.recipes.classification import Classification, batches_of, full_size, network_of, results


def train_found_widths(jobs: Sequence[Job], device: torch.device, search: int) -> Staged:
    """One network for each job: its widths are found in the first `search` epochs of a training of its length.

    The recipes' methods must have settled by then.
    """
    recipes = [cast(Classification, job.recipe) for job in jobs]
    train, test = recipes[0].data().resident(device)
    found = FoundWidths(jobs, train, test)
    templates: dict[Hashable, nn.Module] = {}
    networks = [
        network_of(recipe, job.seed, recipe.length, train, found.example, templates)
        for job, recipe in zip(jobs, recipes, strict=True)
    ]
    stages = [Stage("search", search), Stage("train", recipes[0].length, found.fork)]
    return Staged(networks, range(len(jobs)), stages, found.finish)


class FoundWidths:
    """What jobs go on with when their widths are found."""

    def __init__(self, jobs: Sequence[Job], train: Resident, test: Resident) -> None:
        self.jobs, self.train, self.test = jobs, train, test
        self.example = train.normalised(train.images[:2], torch.float32)

    def fork(self, number: int, network: Network) -> Network:
        """A network of the widths found."""
        return with_fresh_weights(network, self.jobs[number], self.train, self.example)

    def finish(self, number: int, network: Network) -> Metrics:
        """As of any network."""
        recipe = cast(Classification, self.jobs[number].recipe)
        return results(network, full_size(recipe), self.test, self.example, recipe.further)


def with_fresh_weights(network: Network, job: Job, train: Resident, example: torch.Tensor) -> Network:
    """A network of the widths that one has found, drawn from the job's seed.

    One that has diverged or cannot be cut, of which nothing will be told in the end, goes on as it is.
    """
    if network.diverged:
        return network
    recipe = cast(Classification, job.recipe)
    try:
        small = network.method.small(network.model, example)
    except hg.HeadgateError:
        return network
    drawn_anew_(small, job.seed)
    batches = batches_of(recipe, train, job.seed)
    return Network(small, Narrower(), batches, recipe.optimization(), recipe.length, job.seed)


def drawn_anew_(model: nn.Module, seed: int) -> None:
    """All weights as those of a network that was just built, wherever the model lives."""
    device = next(model.parameters()).device
    model.cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        cast(Any, model).initialise_()
    model.to(device)
