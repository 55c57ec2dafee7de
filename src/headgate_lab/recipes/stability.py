"""PreResNet-164 on CIFAR-10 by three methods, epoch by epoch (Fig. 7): losses in training and validation.

The paper's way at strength 0.4, ChipNet and Network Slimming at four tenths of their channels, as in the figure; and
ours at the size that the paper's network ends in. Beside the losses stands what a method moves: the mean offset of all
gates, the mean of ChipNet's masks, the mean of Network Slimming's scales. 60 epochs each in all. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate_lab.recipes.compared import Compared, compared
from headgate_lab.recipes.experiment import Experiment

STRENGTH, RATIO = 0.4, 0.4
# What strength 0.4 leaves, in the paper's table of permutations.
SIZE = 615_000


@dataclass(frozen=True)
class Stability(Compared):
    """One panel of the figure."""

    experiment: ClassVar[str] = "stability"


def recipes() -> Sequence[Stability]:
    """In the figure's order, and ours."""
    return [
        compared(Stability, "preresnet164", "cifar10", "paper", strength=STRENGTH),
        compared(Stability, "preresnet164", "cifar10", "chipnet", ratio=RATIO),
        compared(Stability, "preresnet164", "cifar10", "slimming", ratio=RATIO),
        compared(Stability, "preresnet164", "cifar10", "ours", params=SIZE),
    ]


EXPERIMENT = Experiment("stability", "losses of every epoch, by three methods and ours", "Fig. 7", 1, recipes)
