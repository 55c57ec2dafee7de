"""VGG-19 and PreResNets on CIFAR (tab:cifar): ours at the paper's sizes by a budget, beside its controls.

Not measured yet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, TypeAlias

from torch import nn

from headgate_lab.data.cifar import NORMALISATION, cifar10, cifar100
from headgate_lab.data.images import Images
from headgate_lab.engine.network import Optimization
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import Narrower
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from headgate_lab.recipes.classification import Classification, Data, half_cosine
from headgate_lab.recipes.experiment import Experiment

Dataset: TypeAlias = Literal["cifar10", "cifar100"]
NetworkName: TypeAlias = Literal["vgg19", "preresnet20"]
NETWORKS: dict[NetworkName, Callable[[int, float], nn.Module]] = {
    "vgg19": lambda classes, width: VGG(classes, width=width),
    "preresnet20": lambda classes, width: PreResNet(20, classes, width),
}
DATASETS: dict[Dataset, Callable[[], Images]] = {"cifar10": cifar10, "cifar100": cifar100}
# Sizes that the paper's table prints.
SIZES: dict[tuple[NetworkName, Dataset], tuple[int, ...]] = {
    ("vgg19", "cifar10"): (1_627_000, 264_000),
    ("preresnet20", "cifar100"): (228_000, 217_000, 206_000, 191_000, 183_000, 121_000, 47_000),
    ("vgg19", "cifar100"): (6_190_000, 664_000),
}


@dataclass(frozen=True)
class Cifar(Classification):
    """One network; without a size it is the full one.

    Attributes:
        method: "ours": gates everywhere, closed by a budget. "narrower": the control.
        reach: with "ours", the fraction of the training by which the size is met.
    """

    experiment: ClassVar[str] = "cifar"

    network: NetworkName
    dataset: Dataset
    method: Literal["ours", "narrower"]
    params: int | None = None
    reach: float = 0.5
    lr: float = 0.1
    weight_decay: float = 5e-4
    length: int = field(default=100, kw_only=True)
    batch_size: int = field(default=128, kw_only=True)

    @property
    def setting(self) -> str:
        """Network, dataset, method and size."""
        what = "dense" if self.params is None else f"{self.method} {self.params:,} parameters"
        return f"{self.network} {self.dataset} {what}"

    @property
    def architecture(self) -> Hashable:
        """The network and its number of classes."""
        return self.network, self.dataset

    @property
    def cohort(self) -> Hashable:
        """What has the same images and batches can be stepped together."""
        return self.dataset, self.batch_size

    def build(self, width: float) -> nn.Module:
        """The network for the dataset's classes."""
        return NETWORKS[self.network](10 if self.dataset == "cifar10" else 100, width)

    def pruning(self) -> Method:
        """A budget, or the control."""
        if self.method == "narrower" or self.params is None:
            return Narrower(self.params)
        return Budgeted(self.params, reach=self.reach)

    def data(self) -> Data:
        """Shifted by up to 4 pixels and flipped."""
        return Data(_images(self.dataset), NORMALISATION, pad=4, flip=True)

    def optimization(self) -> Optimization:
        """SGD with momentum, its rate falling along a half cosine."""
        return Optimization("sgd", self.lr, self.weight_decay, half_cosine)


@cache
def _images(dataset: Dataset) -> Images:
    """Read once."""
    return DATASETS[dataset]()


def recipes() -> Sequence[Cifar]:
    """For every network and dataset: ours and the narrower network at every size, and the full network."""
    found: list[Cifar] = []
    for (network, dataset), sizes in SIZES.items():
        found += [Cifar(network, dataset, "ours", size) for size in sizes]
        found += [Cifar(network, dataset, "narrower", size) for size in sizes]
        found.append(Cifar(network, dataset, "narrower"))
    return found


EXPERIMENT = Experiment("cifar", "VGG-19 and PreResNet-20 on CIFAR at the paper's sizes", "tab:cifar", 3, recipes, 6)
