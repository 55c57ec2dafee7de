"""Network Slimming as its authors run it, beside what they print: is our version of it theirs?

Sparse training for 160 epochs, the cut, fine-tuning for 160, in batches of 64. Two things differ: they learn from all
training images and take the epoch that is best on the test images; we set a tenth aside and take the last. Parameters
differ too: they keep every BatchNorm of a stream at its full width and count what selects channels. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headgate_lab.recipes.cifar import Dataset, NetworkName
from headgate_lab.recipes.compared import Compared, compared
from headgate_lab.recipes.experiment import Experiment

EPOCHS, BATCH_SIZE = 160, 64
SPARSITY: dict[NetworkName, float] = {"vgg19": 1e-4, "preresnet164": 1e-5}
ROWS: tuple[tuple[NetworkName, Dataset, float], ...] = (
    ("vgg19", "cifar10", 0.3),
    ("vgg19", "cifar100", 0.5),
    ("preresnet164", "cifar10", 0.6),
    ("preresnet164", "cifar10", 0.4),
    ("preresnet164", "cifar100", 0.6),
)


@dataclass(frozen=True)
class Slimming(Compared):
    """One row of their table."""

    experiment: ClassVar[str] = "slimming"


def recipes() -> Sequence[Slimming]:
    """All rows for these networks."""
    epochs: dict[str, Any] = {"length": EPOCHS, "finetune": EPOCHS, "batch_size": BATCH_SIZE}
    return [
        compared(Slimming, network, dataset, "slimming", ratio=ratio, sparsity=SPARSITY[network], **epochs)
        for network, dataset, ratio in ROWS
    ]


EXPERIMENT = Experiment(
    "slimming", "Network Slimming beside what its authors print", "not in the paper", 1, recipes, together=2
)
