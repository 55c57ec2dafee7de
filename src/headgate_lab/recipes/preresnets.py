"""PreResNets on CIFAR by every method: each network is trained once, for all experiments that show it.

PreResNet-164 learns for 60 epochs, which takes a GPU; PreResNet-20 for 20, which a CPU can do. What any of the
experiments tells is recorded of all: losses, sizes, the time of every stage, how alike the features of a layer are and
what is left of every layer. Which experiment shows which networks is told in `headgate_lab.paper.preresnets`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import ClassVar, Literal

import torch
from torch import nn

import headgate as hg
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Job, Metrics, Training
from headgate_lab.methods.contract import Method
from headgate_lab.methods.gated import Gated
from headgate_lab.outlining import outline
from headgate_lab.paper.preresnets import FOLDER, LITTLE, PAPERS, SHOWN, Fields
from headgate_lab.recipes.cifar import CLASSES, NETWORKS
from headgate_lab.recipes.compared import Compared, compared
from headgate_lab.recipes.features import likeness

# The module whose outputs are compared, see `headgate_lab.recipes.cka`: in the last block of the first stage.
LAYERS = {PAPERS: "stage1.17.conv2", LITTLE: "stage1.1.conv2"}
# The epochs of the little network's stages, by method; all methods have as many in all.
LITTLE_EPOCHS = 20
LITTLE_STAGES: dict[str, dict[str, int]] = {
    "slimming": {"length": 16, "finetune": 4},
    "chipnet": {"length": 12, "prune": 4, "finetune": 4},
}
# What draws weights and batches where the seed draws orders.
SEED = 0


@dataclass(frozen=True)
class ShownPreResNet(Compared):
    """One network.

    Attributes:
        order: in which gates close channels. "index": the seed draws everything but orders. "random": the seed draws
            an order for every gate, and nothing else.
    """

    experiment: ClassVar[str] = FOLDER

    order: Literal["index", "random"] = "index"

    @property
    def setting(self) -> str:
        """As of any network, and its order if that is drawn."""
        return super().setting + (", random order" if self.order == "random" else "")

    def further(self, small: nn.Module, test: Resident) -> Metrics:
        """How alike the features of a layer are, the network's outline, and how many layers are left and gone."""
        plan, full = _full(NETWORKS[self.network], CLASSES[self.dataset], test.images.shape[1:])
        found = outline(plan, full, small)
        gone = sum(layer.after == 0 for layer in found.layers)
        told = likeness(small, LAYERS[self.network], test)
        return {**told, "layers_left": len(found.layers) - gone, "layers_gone": gone, **found.as_json()}

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """Each as what its seed makes of it."""
        return super().start([_drawn(job) for job in jobs], device)


@dataclass(frozen=True)
class Drawn(ShownPreResNet):
    """What is trained when orders have been drawn; it is never recorded under its own name."""

    permutation: int = 0

    def pruning(self) -> Method:
        """With an order for every gate."""
        method = super().pruning()
        assert isinstance(method, Gated)
        return replace(method, permutation=self.permutation)


def shown(experiment: str) -> Sequence[ShownPreResNet]:
    """The networks of an experiment."""
    return [_recipe(one) for one in SHOWN[experiment]]


def _recipe(fields: Fields) -> ShownPreResNet:
    little: Fields = {"length": LITTLE_EPOCHS, **LITTLE_STAGES.get(fields["method"], {})}
    return compared(ShownPreResNet, **((little if fields["network"] == LITTLE else {}) | fields))


def _drawn(job: Job) -> Job:
    recipe = job.recipe
    assert isinstance(recipe, ShownPreResNet)
    if recipe.order == "index":
        return job
    known = {one.name: getattr(recipe, one.name) for one in fields(recipe)}
    return Job(Drawn(**known, permutation=job.seed), SEED)


@cache
def _full(build: Callable[[int, float], nn.Module], classes: int, image: torch.Size) -> tuple[hg.Plan, nn.Module]:
    """The plan of the full network for images of this shape, found once, and the network."""
    with torch.random.fork_rng(devices=[]):
        full = build(classes, 1.0)
    return hg.find_groups(full, torch.zeros(2, *image)), full
