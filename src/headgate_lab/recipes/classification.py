"""Recipes whose networks learn to classify images: what they share, whatever network, data and method."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.data.images import Images, Normalisation
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.job import FAILED, Job, Metrics, Recipe, Training
from headgate_lab.engine.network import Network, Optimization, score
from headgate_lab.engine.precision import precision_on
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.engine.task import CLASSIFY, Task
from headgate_lab.methods.contract import Method


@dataclass(frozen=True)
class Data:
    """What a network learns from and is tested on; `pad` and `flip` say how training images are augmented."""

    images: Images
    normalisation: Normalisation
    pad: int = 0
    flip: bool = False

    def resident(self, device: torch.device) -> tuple[Resident, Resident]:
        """Training and test images on the device."""
        stored = self.images
        train = Resident(stored.train_images, stored.train_labels, self.normalisation)
        test = Resident(stored.test_images, stored.test_labels, self.normalisation)
        return train.to(device), test.to(device)


@dataclass(frozen=True, kw_only=True)
class Classification(Recipe):
    """Subclasses add fields and say what they mean: network, data, method, optimization.

    Attributes:
        length: epochs.
        batch_size: images in a batch.
    """

    takes_precision: ClassVar[bool] = True

    length: int = 40
    batch_size: int = 512

    @property
    def epochs(self) -> int:
        """As the field says."""
        return self.length

    @property
    @abstractmethod
    def architecture(self) -> Hashable:
        """Recipes of equal architecture build the same network but for its width and weights."""

    @abstractmethod
    def build(self, width: float) -> nn.Module:
        """The network at a fraction of its width, its weights from torch's generator."""

    @abstractmethod
    def pruning(self) -> Method:
        """How it is made small."""

    @abstractmethod
    def data(self) -> Data:
        """What it learns."""

    @abstractmethod
    def optimization(self) -> Optimization:
        """How it learns."""

    def further(self, small: nn.Module, test: Resident) -> Metrics:
        """What else is to be recorded of the network with everything closed removed."""
        return {}

    @property
    def task(self) -> Task:
        """What it learns to do."""
        return CLASSIFY

    @property
    def cohort(self) -> Hashable:
        """What has the same data and batches can be stepped together."""
        return self.batch_size

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """One network for each job, from its seed."""
        recipes = [_of(job) for job in jobs]
        train, test = recipes[0].data().resident(device)
        example = train.normalised(train.images[:2], torch.float32)
        templates: dict[Hashable, nn.Module] = {}
        networks = [
            network_of(recipe, job.seed, recipe.epochs, train, example, templates)
            for job, recipe in zip(jobs, recipes, strict=True)
        ]

        def finish(number: int, network: Network) -> Metrics:
            recipe = recipes[number]
            return results(network, full_size(recipe), test, example, recipe.further)

        return SideBySide(networks, finish)


def network_of(
    recipe: Classification,
    seed: int,
    epochs: int,
    train: Resident,
    example: Tensor,
    templates: dict[Hashable, nn.Module],
) -> Network:
    """The network of this seed, to be trained for so many epochs; `templates` is for networks of one training."""
    model = _attached(recipe, seed, example, templates)
    batches = batches_of(recipe, train, seed)
    return Network(model, recipe.pruning(), batches, recipe.optimization(), epochs, seed, recipe.task)


def results(
    network: Network,
    full: int,
    test: Resident,
    example: Tensor,
    further: Callable[[nn.Module, Resident], Metrics] | None = None,
) -> Metrics:
    """What the test images say and sizes, also against `full` parameters, of the model with everything closed removed.

    `further` has more to say about that model. A network that answers the same whatever it is asked has died, and so
    has one that has diverged, or whose method would cut all of a layer: it has no size. One whose small network does
    not compute the same has no results, which must not stop those beside it.
    """
    network.model.eval()
    measure = network.task.measure
    before = score(network.model, test, network.task).percent
    dead = {measure: before, f"{measure}_before": before, "params": None, "dead": 1}
    if network.diverged:
        return dead
    try:
        small = network.method.small(network.model, example)
    except (hg.GateError, hg.ArgumentError):  # a gate has closed a layer; a method would cut all of one
        return dead
    except hg.CompactionError as error:
        return {FAILED: str(error)}
    if _is_constant(small, example):
        return dead
    left = sum(parameter.numel() for parameter in small.parameters())
    kept = network.kept()
    told = {} if network.companion is None else network.companion.metrics()
    return {
        measure: score(small, test, network.task).percent,
        f"{measure}_before": before,
        "params": left,
        "macs": hg.cost(small, example[:1]).macs,
        "pruned": 100 * (1 - left / full),
        **({} if kept is None else {"pruned_channels": 100 * (1 - kept)}),
        "dead": 0,
        **told,
        **({} if further is None else further(small, test)),
    }


@torch.no_grad()
def _is_constant(model: nn.Module, example: Tensor) -> bool:
    """Whether two images, or whatever it is that the example has two of, get one answer."""
    first, second = model.eval()(example[:2])
    return torch.allclose(first, second, rtol=1e-6, atol=0.0)


def half_cosine(epoch: int, epochs: int) -> float:
    """A rate's factor: from 1 at the first epoch down towards 0."""
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def in_steps(epoch: int, epochs: int) -> float:
    """A rate's factor: 1, a tenth from half of the epochs on, a hundredth for the last quarter."""
    return 1.0 if 2 * epoch < epochs else 0.1 if 4 * epoch < 3 * epochs else 0.01


def full_size(recipe: Classification) -> int:
    """Parameters of the whole network; offsets of gates that its builder placed are none of its own."""
    with torch.random.fork_rng(devices=[]):
        model = recipe.build(1.0)
    gated = sum(gate.offset.numel() for gate in hg.gates(model).values())
    return sum(parameter.numel() for parameter in model.parameters()) - gated


def _of(job: Job) -> Classification:
    assert isinstance(job.recipe, Classification)
    return job.recipe


@lru_cache(maxsize=64)
def _width(recipe: Classification, shape: torch.Size) -> float:
    return recipe.pruning().width(recipe.build, torch.zeros(shape))


def _attached(recipe: Classification, seed: int, example: Tensor, templates: dict[Hashable, nn.Module]) -> nn.Module:
    """The network of this seed; gates are found once for all networks alike, and only the weights are exchanged."""
    method, width = recipe.pruning(), _width(recipe, example.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dense = recipe.build(width)
    dense.to(example.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    key = (type(method), method.placement, recipe.architecture, width)
    if key not in templates:
        templates[key] = method.attach(copy.deepcopy(dense), example)
    model = copy.deepcopy(templates[key])
    model.load_state_dict(dense.state_dict())
    return model


def batches_of(recipe: Classification, train: Resident, seed: int, size: int | None = None) -> Batches:
    """What a network learns from, in the order of its seed; in the recipe's batches unless a size is given."""
    data = recipe.data()
    dtype = precision_on(train.images.device)
    return Batches(train, size or recipe.batch_size, seed, pad=data.pad, flip=data.flip, dtype=dtype)
