"""VGG-19 and PreResNets on CIFAR (tab:cifar): the paper's way, ours at the paper's sizes by a budget, and the controls.

VGG-19 on CIFAR-10 on an H200, three seeds: ours reaches 93.48 % at 1,627k parameters and 91.82 % at 264k, where the
paper prints 93.39 and 90.92 %, the uniformly narrower network has 90.93 and 85.44 %, and the dense one 94.04 %.
VGG-19 on CIFAR-100, three seeds: ours reaches 73.96 % at 6,190k and 68.80 % at 664k, printed: 73.40 and 67.17 %; the
narrower network has 71.22 and 61.77 %, the dense one 74.28 %. The widths that ours found, with fresh weights (one
seed), reach 73.82 and 68.59 %: what a budget is worth here is its widths.
VGG-19 in the paper's way, but by AdamW, three seeds, with strengths of 0.1 and 0.5: 92.5 % at 6.8M and 92.2 % at 1.7M
on CIFAR-10, 67.8 % at 13.8M and 67.3 % at 7.1M on CIFAR-100, printed at 1.6M, 0.3M, 6.2M and 0.7M. Accuracies are those
with gates; the sizes lack the channel of each gate that passes on what closed ones add, which compaction keeps by now.
PreResNet-20 on CIFAR-100, three seeds: 65.31 % at 121k and 58.59 % at 47k, printed: 63.15 and 54.79 %. The narrower
network has 65.27 and 55.25 %: at half of the size it is as good. Dense: 68.10 %. At the paper's five larger sizes, 183k
to 228k, one seed each, both lie between 67.0 and 68.3 %, ours ahead at two of them; printed: 65.8 to 67.3 %. The
paper's 47k cannot be had by its gates: none of them is on a stream, and with all branches gone 68.6k are left, in
projections and classifier. Our counts, here as everywhere, are those of the network that is left; streams have gates.
PreResNet-20 on CIFAR-10, 100 epochs, one seed: at 75, 50 and 25 % of the multiply-accumulates 90.73, 90.05 and 88.26 %,
the narrower network 90.43, 89.66 and 87.28 %, the dense one 90.79 %. The rest is not measured yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import nn

from headgate_lab.data.cifar import NORMALISATION, cifar10, cifar100
from headgate_lab.data.images import Images
from headgate_lab.data.tinyimagenet import tinyimagenet
from headgate_lab.engine.job import Job, Training, later
from headgate_lab.engine.network import Optimization
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import in_the_paper_s_way
from headgate_lab.methods.narrower import Narrower
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.resnet import resnet18, resnet_cifar
from headgate_lab.models.vgg import VGG
from headgate_lab.recipes.classification import Classification, Data, half_cosine, in_steps
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.found_widths import train_found_widths

Dataset: TypeAlias = Literal["cifar10", "cifar100", "tinyimagenet"]
NetworkName: TypeAlias = Literal[
    "vgg19", "preresnet20", "preresnet56", "preresnet110", "preresnet164", "resnet18", "resnet56"
]
NETWORKS: dict[NetworkName, Callable[[int, float], nn.Module]] = {
    "vgg19": lambda classes, width: VGG(classes, width=width),
    "preresnet20": lambda classes, width: PreResNet(20, classes, width),
    "preresnet56": lambda classes, width: PreResNet(56, classes, width),
    "preresnet110": lambda classes, width: PreResNet(110, classes, width),
    "preresnet164": lambda classes, width: PreResNet(164, classes, width),
    "resnet18": resnet18,
    "resnet56": lambda classes, width: resnet_cifar(56, classes, width),
}
DATASETS: dict[Dataset, Callable[[], Images]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tinyimagenet": tinyimagenet,
}
CLASSES: dict[Dataset, int] = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
# The paper's table: strengths, and the sizes that they ended in.
TABLE: dict[tuple[NetworkName, Dataset], dict[float, int]] = {
    ("vgg19", "cifar10"): {0.1: 1_627_000, 0.5: 264_000},
    ("preresnet20", "cifar100"): {
        0.1: 228_000, 0.2: 217_000, 0.3: 206_000, 0.4: 191_000, 0.5: 183_000, 1.0: 121_000, 2.0: 47_000,
    },
    ("vgg19", "cifar100"): {0.1: 6_190_000, 0.5: 664_000},
    ("preresnet56", "cifar100"): {
        0.1: 573_000, 0.2: 526_000, 0.3: 493_000, 0.4: 466_000, 0.5: 419_000, 1.0: 314_000, 2.0: 153_000,
    },
    ("preresnet110", "cifar10"): {
        0.1: 975_000, 0.2: 808_000, 0.3: 646_000, 0.4: 560_000, 0.5: 482_000, 1.0: 208_000, 2.0: 89_000,
    },
    ("preresnet110", "cifar100"): {
        0.1: 1_110_000, 0.2: 1_010_000, 0.3: 940_000, 0.4: 873_000, 0.5: 817_000, 1.0: 547_000, 2.0: 261_000,
    },
}  # fmt: skip
# What PreResNet-20 keeps of its multiply-accumulates, on CIFAR-10; not in the paper, and in fewer epochs.
MACS, MACS_EPOCHS = (0.75, 0.5, 0.25), 100
# The offsets of the paper's networks were at rest for the first 20 of their 160 epochs.
EPOCHS, COLD_START = 160, 20


@dataclass(frozen=True)
class Cifar(Classification):
    """One network; without a size it is the full one.

    Attributes:
        method: "paper": gates before BatchNorm, none on streams, moved by the weights' optimizer, decay included.
            "ours": gates everywhere, closed by a budget. "narrower": the control. "found": the other one, the widths
            that "ours" finds, with fresh weights.
        reach: with "ours" and "found", the fraction of the training by which the size is met.
        macs: instead of parameters, the fraction of multiply-accumulates wanted.
        train_on: with "ours", whether the rest of the training goes on with the small network.
        optimizer: of weights and, with "paper", of offsets.
    """

    experiment: ClassVar[str] = "cifar"

    network: NetworkName
    dataset: Dataset
    method: Literal["paper", "ours", "narrower", "found"]
    strength: float | None = None
    params: int | None = None
    reach: float = 0.25
    train_on: bool = True
    lr: float = 0.1
    weight_decay: float = 5e-4
    macs: float | None = later(None)
    optimizer: Literal["sgd", "adamw"] = later("sgd")
    length: int = field(default=EPOCHS, kw_only=True)
    batch_size: int = field(default=128, kw_only=True)

    @property
    def setting(self) -> str:
        """Network, dataset, method and size."""
        if self.strength is not None:
            return f"{self.network} {self.dataset} {self.method} strength {self.strength:g}"
        what = "dense" if self.params is None else f"{self.method} {self.params:,} parameters"
        if self.macs is not None:
            what = f"{self.method} {self.macs:.0%} of the multiply-accumulates"
        return f"{self.network} {self.dataset} {what}"

    @property
    def search(self) -> int:
        """The epochs in which widths are found."""
        return math.ceil(self.reach * self.length)

    @property
    def epochs(self) -> int:
        """Those of the network that is trained, after widths were found for it if they have to be."""
        return self.length + (self.search if self.method == "found" else 0)

    @property
    def architecture(self) -> Hashable:
        """The network and its number of classes."""
        return self.network, self.dataset

    @property
    def cohort(self) -> Hashable:
        """What has the same images and batches can be stepped together."""
        return self.dataset, self.batch_size, self.method == "found"

    def build(self, width: float) -> nn.Module:
        """The network for the dataset's classes."""
        return NETWORKS[self.network](CLASSES[self.dataset], width)

    def pruning(self) -> Method:
        """DAM in one of two ways, or the control."""
        if self.strength is not None:
            return in_the_paper_s_way(self.strength, round(self.length * COLD_START / EPOCHS))
        if self.method == "narrower":
            return Narrower(self.params, self.macs)
        train_on = self.train_on and self.method != "found"
        return Budgeted(self.params, self.macs, reach=self.reach, train_on=train_on)

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """Side by side; those whose widths are to be found, in two parts."""
        recipe = jobs[0].recipe
        assert isinstance(recipe, Cifar)
        return (
            train_found_widths(jobs, device, recipe.search) if recipe.method == "found" else super().start(jobs, device)
        )

    def data(self) -> Data:
        """Shifted by up to 4 pixels and flipped."""
        return augmented(self.dataset)

    def optimization(self) -> Optimization:
        """The paper's rate falls in steps, ours along a half cosine."""
        rate = in_steps if self.method == "paper" else half_cosine
        return Optimization(self.optimizer, self.lr, self.weight_decay, rate)


def augmented(dataset: Dataset) -> Data:
    """Images that are shifted by up to 4 pixels and flipped when they are learned from."""
    return Data(_images(dataset), NORMALISATION, pad=4, flip=True)


@cache
def _images(dataset: Dataset) -> Images:
    """Read once."""
    return DATASETS[dataset]()


def paper(network: NetworkName, dataset: Dataset, strength: float) -> Cifar:
    """The paper's way, by AdamW: for this table the paper used AdaBelief, which torch lacks.

    By the SGD of its other experiments, at commit d988250, six of six VGG-19 on CIFAR-100 closed a layer and ended at
    chance: of 16 gates each is pulled ten times as hard as one of a PreResNet-164's 163.
    """
    return Cifar(network, dataset, "paper", strength, lr=1e-3, weight_decay=0.05, optimizer="adamw")


def recipes() -> Sequence[Cifar]:
    """For every network and dataset: ours and its controls at every size, the full one, and the paper's way.

    And PreResNet-20 at fractions of its multiply-accumulates.
    """
    found: list[Cifar] = []
    for (network, dataset), sizes in TABLE.items():
        found += [Cifar(network, dataset, "ours", params=size) for size in sizes.values()]
        found += [Cifar(network, dataset, "narrower", params=size) for size in sizes.values()]
        found += [Cifar(network, dataset, "found", params=size) for size in sizes.values()]
        found.append(Cifar(network, dataset, "narrower"))
        found += [paper(network, dataset, strength) for strength in sizes]
    for macs in MACS:
        found += [
            Cifar("preresnet20", "cifar10", method, macs=macs, length=MACS_EPOCHS) for method in ("ours", "narrower")
        ]
    return [*found, Cifar("preresnet20", "cifar10", "narrower", length=MACS_EPOCHS)]


EXPERIMENT = Experiment("cifar", "VGG-19 and PreResNets on CIFAR at the paper's sizes", "tab:cifar", 3, recipes, 6)
