"""How networks are trained that are made small by several methods: in stages, the first shared by all ratios."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

import headgate as hg
from headgate_lab.data.images import split
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.job import Job, Metrics
from headgate_lab.engine.network import Network, accuracy, score
from headgate_lab.engine.staged import Stage, Staged
from headgate_lab.methods.chipnet import ChipNet
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.norm_channels import scales
from headgate_lab.methods.slimming import Sparse
from headgate_lab.recipes.classification import batches_of, full_size, network_of, results
from headgate_lab.recipes.found_widths import with_fresh_weights

if TYPE_CHECKING:
    from headgate_lab.recipes.compared import Compared

# One in so many training images is for validation.
VALIDATED = 10
# What the last epoch says of these is a result.
TOLD = ("loss", "validation_loss")


def start(jobs: Sequence[Job], device: torch.device) -> Staged:
    """One network for all jobs that begin alike; each goes on by itself when it is pruned or cut."""
    train, test = _of(jobs[0]).data().resident(device)
    parts = split(len(train.images), len(train.images) // VALIDATED)
    training = Comparison(jobs, _chosen(train, parts.train), _chosen(train, parts.validation), test)
    beginnings = [Job(_of(job).beginning(), job.seed) for job in jobs]
    first, templates = list(dict.fromkeys(beginnings)), dict[Hashable, nn.Module]()
    networks = [
        network_of(_of(job), job.seed, _of(job).length, training.train, training.example, templates) for job in first
    ]
    shared = [first.index(job) for job in beginnings]
    return Staged(networks, shared, training.stages(), training.finish, look=training.look, told=TOLD)


class Comparison:
    """What happens between the stages of jobs that are trained side by side, and what is seen of their networks.

    `cuts` holds, by job, what the network was worth before and after its cut.
    """

    def __init__(self, jobs: Sequence[Job], train: Resident, validation: Resident, test: Resident) -> None:
        self.jobs, self.train, self.validation, self.test = jobs, train, validation, test
        self.example = train.normalised(train.images[:2], torch.float32)
        self.plan: hg.Plan | None = None
        self.cuts: dict[int, dict[str, float]] = {}

    def stages(self) -> list[Stage]:
        """Of the jobs' method."""
        recipe = _of(self.jobs[0])
        if recipe.search:
            return [Stage("search", recipe.search), Stage("train", recipe.length, self.drawn_anew)]
        found = [Stage("train", recipe.length)]
        if recipe.prune:
            found.append(Stage("prune", recipe.prune, self.masked, best="hard_accuracy"))
        if recipe.finetune:
            found.append(Stage("finetune", recipe.finetune, self.cut))
        return found

    def drawn_anew(self, number: int, network: Network) -> Network:
        """The training of the widths that a network has found."""
        return with_fresh_weights(network, self.jobs[number], self.train, self.example)

    def masked(self, number: int, network: Network) -> Network:
        """ChipNet's pruning of a trained network."""
        recipe, seed = _of(self.jobs[number]), self.jobs[number].seed
        method = recipe.chipping(seed)
        model = method.masked(copy.deepcopy(network.model), self._plan_of(network.model))
        batches = self._batches(number, network, recipe.prune_batch_size)
        return Network(model, method, batches, recipe.optimization_while_pruning(), recipe.prune, seed)

    def cut(self, number: int, network: Network) -> Network:
        """The fine-tuning of what is left when a network has been cut."""
        recipe, seed, method = _of(self.jobs[number]), self.jobs[number].seed, network.method
        if isinstance(method, ChipNet):
            small = method.small(network.model, self.example)
        else:
            small = recipe.slimming().cut(network.model, self._plan_of(network.model))
        self.cuts[number] = {
            "accuracy_uncut": accuracy(network.model, self.test),
            "accuracy_cut": accuracy(small, self.test),
            "pruned_channels": 100 * (1 - _open(small) / _open(network.model)),
        }
        batches = self._batches(number, network, recipe.batch_size)
        return Network(small, Narrower(), batches, recipe.optimization(), recipe.finetune, seed)

    def look(self, network: Network) -> dict[str, float | None]:
        """Between epochs: losses and accuracies on images set aside, and how far the method is with its network."""
        found = score(network.model, self.validation)
        seen: dict[str, float | None] = {
            "validation_loss": found.loss if math.isfinite(found.loss) else None,
            "validation_accuracy": found.percent,
        }
        if gates := hg.gates(network.model):
            seen["offset"] = torch.stack([gate.offset.detach() for gate in gates.values()]).mean().item()
        if isinstance(network.method, Sparse):
            seen["scale"] = torch.cat(list(scales(network.model).values())).detach().abs().mean().item()
        if isinstance(network.method, ChipNet):
            seen["hard_accuracy"] = accuracy(network.method.hardened(network.model), self.validation)
        return seen

    def finish(self, number: int, network: Network) -> Metrics:
        """Results, and what the cut did."""
        recipe = _of(self.jobs[number])
        found = results(network, full_size(recipe), self.test, self.example, recipe.further)
        return {**found, **self.cuts.get(number, {})}

    def _plan_of(self, model: nn.Module) -> hg.Plan:
        """Found once: the networks of jobs side by side differ in nothing but their weights."""
        if self.plan is None:
            self.plan = hg.find_groups(model, self.example, readers=True)
        return self.plan

    def _batches(self, number: int, network: Network, size: int) -> Batches:
        """In the order in which the network would have gone on."""
        batches = batches_of(_of(self.jobs[number]), self.train, self.jobs[number].seed, size)
        batches.load_state_dict(network.batches.state_dict())
        return batches


def _of(job: Job) -> Compared:
    return cast("Compared", job.recipe)


def _chosen(data: Resident, indices: torch.Tensor) -> Resident:
    chosen = indices.to(data.images.device)
    return Resident(data.images[chosen], data.labels[chosen], data.normalisation)


def _open(model: nn.Module) -> int:
    """The BatchNorm channels that are not silenced."""
    return sum(int(scale.count_nonzero()) for scale in scales(model).values())
