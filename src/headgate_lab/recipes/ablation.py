"""Where the paper's text and its code disagree, one question at a time, on LeNet-5 with tanh.

- decay: does weight decay act on the offsets (code) or not (text)?
- count: does the order of channels begin at 0 (code) or at 1 (text, Eq. 3)?
- place: does the gate stand before the activation (code, there before BatchNorm) or after it?

None of it matters much here. Five seeds on an H200: at strength 0.05 decay on the offsets leaves a tenth more
parameters (19k, text 17k) at the same 98.7 %; an order counted from 0 and a gate before the activation leave as many
as the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

import headgate as hg
from headgate_lab.data.mnist import NORMALISATION
from headgate_lab.engine.network import Optimization
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import Dam
from headgate_lab.models.lenet import LeNet5
from headgate_lab.recipes.classification import Classification, Data, half_cosine
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.lenet import digits_of_mnist

STRENGTHS = (0.003, 0.01, 0.05)


@dataclass(frozen=True)
class Ablation(Classification):
    """LeNet-5 with gates placed by hand; the defaults are the paper's text."""

    experiment: ClassVar[str] = "ablation"

    strength: float
    decay_offsets: bool = False
    order: Literal["index", "index0"] = "index"
    gate_first: bool = False
    lr: float = 0.1
    weight_decay: float = 1e-3

    @property
    def setting(self) -> str:
        """What differs from the text, and the strength."""
        differences = [
            *(["decay on offsets"] if self.decay_offsets else []),
            *(["counted from 0"] if self.order == "index0" else []),
            *(["gate before activation"] if self.gate_first else []),
        ]
        return f"{', '.join(differences) or 'as the text'}, strength {self.strength:g}"

    @property
    def architecture(self) -> Hashable:
        """What its gates are like."""
        return self.order, self.gate_first

    def build(self, width: float) -> nn.Module:
        """LeNet-5 with its three gates."""
        return LeNet5(torch.tanh, width, partial(hg.Gate, order=self.order), self.gate_first)

    def pruning(self) -> Method:
        """Offsets moved by the weights' optimizer, as the paper does."""
        return Dam(self.strength, offset_update="plain", decay_offsets=self.decay_offsets, by_hand=True)

    def data(self) -> Data:
        """MNIST as it is."""
        return Data(digits_of_mnist(), NORMALISATION)

    def optimization(self) -> Optimization:
        """SGD with momentum, its rate falling along a half cosine."""
        return Optimization("sgd", self.lr, self.weight_decay, half_cosine)


def recipes() -> Sequence[Ablation]:
    """The text's way, and the code's in one point each, at every strength."""
    return [
        recipe
        for strength in STRENGTHS
        for recipe in (
            Ablation(strength),
            Ablation(strength, decay_offsets=True),
            Ablation(strength, order="index0"),
            Ablation(strength, gate_first=True),
        )
    ]


EXPERIMENT = Experiment(
    "ablation", "where the paper's text and code disagree, on LeNet-5", "Eq. 2 and 3, reference code", 5, recipes, 20
)
