"""One network pruned by one of several methods, so that they can be compared: the same images, the same epochs in all.

All learn from the same nine tenths of the training images; the rest tells how the training goes and, where a method
chooses among its epochs, which it takes. Widths that were found learn for these epochs after their search. Every method
has the optimizer, rate and decay of its own authors, with two things in common: batches of 128, but in ChipNet's
pruning, and no choice by test accuracy. PreResNets are those of bottlenecks, as Network Slimming has them; ChipNet's
masks stand where Network Slimming's scales are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import nn

from headgate_lab.engine.job import Job, Training
from headgate_lab.engine.network import Optimization
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.chipnet import ChipNet
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import in_the_paper_s_way
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.slimming import Slimmed, Sparse
from headgate_lab.recipes import compared_training
from headgate_lab.recipes.cifar import CLASSES, NETWORKS, Dataset, NetworkName, augmented
from headgate_lab.recipes.classification import Classification, Data, half_cosine, in_steps

MethodName: TypeAlias = Literal["paper", "ours", "narrower", "found", "slimming", "chipnet"]
R = TypeVar("R", bound="Compared")

# In the paper the offsets are at rest for 20 of 200 epochs.
COLD_START = 0.1
# The authors of ChipNet push harder where a tenth is to stay.
BUDGET_WEIGHT, HARD_PUSHED, HARDER = 30.0, 0.1, 45.0
PRUNING_RATE = 1e-3
# What all methods have of epochs, and how those with stages divide them: about as the paper does with 200, 20 and 50.
EPOCHS = 60
STAGES: dict[str, dict[str, int]] = {
    "slimming": {"length": 48, "finetune": 12},
    "chipnet": {"length": 44, "prune": 5, "finetune": 11},
}
# What each method's authors chose for PreResNets.
HOW: dict[str, dict[str, float]] = {
    "paper": {"lr": 0.05, "weight_decay": 1e-3},
    "slimming": {"weight_decay": 1e-4, "sparsity": 1e-5},
    "chipnet": {"weight_decay": 1e-3},
}


@dataclass(frozen=True)
class Compared(Classification):
    """One network, made small by one method; without a size the narrower one is the full network.

    Attributes:
        method: "paper": gates before BatchNorm, none on streams, moved and decayed by the weights' SGD. "ours": gates
            everywhere, closed by a budget. "slimming": sparse training, one cut, fine-tuning. "chipnet": training,
            pruning with masks, one cut, fine-tuning. "narrower": the control. "found": the other one, the widths that
            "ours" finds, with fresh weights.
        strength: of the penalty on offsets, with "paper".
        ratio: the fraction of BatchNorm channels that stays, with "slimming" and "chipnet".
        params: the size, with "ours" and the controls.
        sparsity: the weight of the sum of all |scale|, with "slimming".
        reach: with "ours" and "found", the fraction of the training by which the size is met.
        length: epochs of the first stage, which is all of the training for methods without stages. With "found", those
            of the network with fresh weights.
        prune: epochs of the pruning, with "chipnet".
        finetune: epochs of the fine-tuning.
        prune_batch_size: images in a batch of the pruning.
    """

    network: NetworkName
    dataset: Dataset
    method: MethodName
    strength: float | None = None
    ratio: float | None = None
    params: int | None = None
    lr: float = 0.1
    weight_decay: float = 5e-4
    sparsity: float | None = None
    reach: float = 0.25
    length: int = field(default=EPOCHS, kw_only=True)
    prune: int = field(default=0, kw_only=True)
    finetune: int = field(default=0, kw_only=True)
    batch_size: int = field(default=128, kw_only=True)
    prune_batch_size: int = field(default=32, kw_only=True)

    @property
    def setting(self) -> str:
        """Network, dataset, method and how much."""
        if self.strength is not None:
            much = f"{self.method} strength {self.strength:g}"
        elif self.ratio is not None:
            much = f"{self.method} ratio {self.ratio:g}"
        else:
            much = "dense" if self.params is None else f"{self.method} {self.params:,} parameters"
        return f"{self.network} {self.dataset} {much}"

    @property
    def search(self) -> int:
        """The epochs in which widths are found, if they are to be."""
        return math.ceil(self.reach * self.length) if self.method == "found" else 0

    @property
    def epochs(self) -> int:
        """Those of all stages."""
        return self.search + self.length + self.prune + self.finetune

    @property
    def architecture(self) -> Hashable:
        """The network and its number of classes."""
        return self.network, self.dataset

    @property
    def has_stages(self) -> bool:
        """Whether fine-tuning follows the training, which is then the same for every ratio."""
        return self.method in STAGES

    @property
    def cohort(self) -> Hashable:
        """What goes through the same stages with the same images can be stepped together."""
        kind = self.method if self.has_stages or self.search else None
        return *self.architecture, kind, self.length, self.prune, self.batch_size, self.prune_batch_size  # type: ignore[misc]

    def beginning(self) -> Compared:
        """What its first stage is, to be trained once for all that have it in common."""
        return replace(self, ratio=None) if self.has_stages else self

    def build(self, width: float) -> nn.Module:
        """The network for the dataset's classes."""
        return NETWORKS[self.network](CLASSES[self.dataset], width)

    def pruning(self) -> Method:
        """The method in the first stage."""
        if self.method == "paper":
            assert self.strength is not None
            return in_the_paper_s_way(self.strength, round(COLD_START * self.length))
        if self.method in ("ours", "found"):
            return Budgeted(self.params, reach=self.reach, train_on=self.method == "ours")
        if self.method == "slimming":
            assert self.sparsity is not None
            return Sparse(self.sparsity)
        return Narrower(self.params)

    def chipping(self, seed: int) -> ChipNet:
        """The method of ChipNet's pruning."""
        assert self.ratio is not None
        weight = HARDER if self.ratio <= HARD_PUSHED else BUDGET_WEIGHT
        return ChipNet(self.ratio, self.prune, seed, budget_weight=weight)

    def slimming(self) -> Slimmed:
        """Network Slimming's cut."""
        return Slimmed(share=self.ratio)

    def data(self) -> Data:
        """Shifted by up to 4 pixels and flipped."""
        return augmented(self.dataset)

    def optimization(self) -> Optimization:
        """SGD with momentum; rates fall in steps, ours and the controls' along a half cosine. In fine-tuning again."""
        rate = half_cosine if self.method in ("ours", "narrower", "found") else in_steps
        return Optimization("sgd", self.lr, self.weight_decay, rate)

    def optimization_while_pruning(self) -> Optimization:
        """ChipNet's: of weights and masks together."""
        return Optimization("adamw", PRUNING_RATE, self.weight_decay, lambda epoch, epochs: 1.0)

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """In stages, side by side."""
        return compared_training.start(jobs, device)


def compared(kind: type[R], network: NetworkName, dataset: Dataset, method: MethodName, **much: Any) -> R:
    """A recipe of this kind, with what the method's authors chose and all of the epochs."""
    return kind(network, dataset, method, **{**HOW.get(method, {}), **STAGES.get(method, {}), **much})
