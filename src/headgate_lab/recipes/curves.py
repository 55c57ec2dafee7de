"""PreResNet-164 on CIFAR by every method (Fig. 6): accuracy against size, and the time that each stage takes.

The paper's way at its strengths, Network Slimming and ChipNet at its ratios of channels, and ours and the uniformly
narrower network at five sizes. All have 60 epochs in all, where the paper's DAM has 200, its Network Slimming 250 and
its ChipNet 270. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate_lab.recipes.cifar import Dataset
from headgate_lab.recipes.compared import Compared, MethodName, compared
from headgate_lab.recipes.experiment import Experiment

# Appendix D.
STRENGTHS: dict[Dataset, tuple[float, ...]] = {
    "cifar10": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75),
    "cifar100": (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
}
SLIMMING_RATIOS: dict[Dataset, tuple[float, ...]] = {
    "cifar10": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
    "cifar100": (0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
}
CHIPNET_RATIOS: dict[Dataset, tuple[float, ...]] = {
    "cifar10": (0.1, 0.2, 0.4, 0.6, 1.0),
    "cifar100": (0.2, 0.4, 0.6, 1.0),
}
# Of 1.7 million parameters: the range over which strengths and ratios spread.
SIZES = (1_200_000, 800_000, 500_000, 300_000, 150_000)


@dataclass(frozen=True)
class Curves(Compared):
    """One point of the figure."""

    experiment: ClassVar[str] = "curves"


def recipes() -> Sequence[Curves]:
    """CIFAR-10 first; of each dataset every method, and the full network."""
    found: list[Curves] = []
    for dataset in STRENGTHS:
        found += [_point(dataset, "ours", params=size) for size in SIZES]
        found += [_point(dataset, "narrower", params=size) for size in (*SIZES, None)]
        found += [_point(dataset, "paper", strength=strength) for strength in STRENGTHS[dataset]]
        found += [_point(dataset, "slimming", ratio=ratio) for ratio in SLIMMING_RATIOS[dataset]]
        found += [_point(dataset, "chipnet", ratio=ratio) for ratio in CHIPNET_RATIOS[dataset]]
    return found


def _point(dataset: Dataset, method: MethodName, **much: float | None) -> Curves:
    return compared(Curves, "preresnet164", dataset, method, **much)


EXPERIMENT = Experiment("curves", "PreResNet-164 by every method: accuracy, size, time", "Fig. 6", 1, recipes, 7)
