"""Any strength: networks of several kinds under strengths from nothing to far too much, our way and the naive one.

Ours is the library's default: relative masks, a floor, offsets moved by a bounded step of their own. Naive is what
the paper describes: plain masks, offsets left to the optimizer of the weights, any layer free to close. Besides its
size and its accuracy (of the autoencoder: what it explains of the images) each run tells the largest share of a
layer's channels that opened or closed in one step.

LeNet-5 and the autoencoder on a CPU, the others on an H200, one seed. Of ours, 60 runs, none lost a layer, and no layer
ever changed in one step by a larger share than one channel of the narrowest one. Size falls with the strength and takes
accuracy with it: at 5, PreResNet-20 by SGD has 2.7 % of its parameters and 60.5 % right, VGG-19 0.2 % and 73.0 %. The
naive way by SGD closes whole layers in every network: the transformer's from 0.1 on, the autoencoder's and
PreResNet-20's from 0.5, LeNet-5's and VGG-19's from 1. Where no shortcut leads around them nothing is learned any more
(10 and 11 % right); the transformer still has 97.6 % at 0.1 and 81.8 % at 5. By Adam it lives, and hardly prunes: at 5
there are 48 to 70 % of the parameters left, where ours keeps 0.5 to 28 %.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import nn

from headgate_lab.data import mnist
from headgate_lab.engine.network import Optimization
from headgate_lab.engine.task import CLASSIFY, RECONSTRUCT, Task
from headgate_lab.methods.contract import Method
from headgate_lab.methods.watched import Watched
from headgate_lab.models.autoencoder import digits_autoencoder
from headgate_lab.models.lenet import LeNet5
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.transformer import PatchTransformer
from headgate_lab.models.vgg import VGG
from headgate_lab.recipes.cifar import augmented
from headgate_lab.recipes.classification import Classification, Data, half_cosine
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.lenet import digits_of_mnist

STRENGTHS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
NetworkName: TypeAlias = Literal["lenet5", "transformer", "autoencoder", "vgg19", "preresnet20"]
NETWORKS: dict[NetworkName, Callable[[float], nn.Module]] = {
    "lenet5": lambda width: LeNet5(torch.relu, width),
    "transformer": lambda width: PatchTransformer(width=width),
    "autoencoder": digits_autoencoder,
    "vgg19": lambda width: VGG(width=width),
    "preresnet20": lambda width: PreResNet(20, width=width),
}
ON_DIGITS = ("lenet5", "transformer", "autoencoder")


@dataclass(frozen=True)
class Sweep(Classification):
    """One network at one strength, digits for the smaller networks and CIFAR-10 for the others."""

    experiment: ClassVar[str] = "sweep"

    network: NetworkName
    optimizer: Literal["sgd", "adam"]
    method: Literal["ours", "naive"]
    strength: float
    length: int = field(default=10, kw_only=True)
    batch_size: int = field(default=128, kw_only=True)

    @property
    def setting(self) -> str:
        """Network, optimizer, method and strength."""
        return f"{self.network} {self.optimizer} {self.method} strength {self.strength:g}"

    @property
    def architecture(self) -> Hashable:
        """The network."""
        return self.network

    @property
    def cohort(self) -> Hashable:
        """What has the same images and batches can be stepped together."""
        return self.network in ON_DIGITS, self.batch_size

    def build(self, width: float) -> nn.Module:
        """The network."""
        return NETWORKS[self.network](width)

    def pruning(self) -> Method:
        """DAM, watched."""
        if self.method == "ours":
            return Watched(self.strength)
        return Watched(self.strength, offset_update="plain", scale="plain", floor=1)

    def data(self) -> Data:
        """MNIST as it is, or CIFAR-10 shifted and flipped."""
        return Data(digits_of_mnist(), mnist.NORMALISATION) if self.network in ON_DIGITS else augmented("cifar10")

    @property
    def task(self) -> Task:
        """The autoencoder's is its own."""
        return RECONSTRUCT if self.network == "autoencoder" else CLASSIFY

    def optimization(self) -> Optimization:
        """Rates fall along a half cosine."""
        return Optimization(self.optimizer, 0.05 if self.optimizer == "sgd" else 1e-3, 5e-4, half_cosine)


def recipes() -> Sequence[Sweep]:
    """Every network, optimizer, strength and way."""
    return [
        Sweep(network, optimizer, method, strength)
        for network in NETWORKS
        for optimizer in ("sgd", "adam")
        for strength in STRENGTHS
        for method in ("ours", "naive")
    ]


EXPERIMENT = Experiment(
    "sweep", "any strength, our way and the naive one: who lives", "not in the paper", 1, recipes, together=6
)
