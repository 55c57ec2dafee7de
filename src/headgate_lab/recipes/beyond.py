"""Beyond the paper: what others print for ResNet-56, ResNet-18 and VGG-19 on CIFAR, ours at the same size or cost.

Ours is one training to a budget, from scratch; beside it stand the uniformly narrower network, the widths that ours
found with fresh weights and the full network, by the same recipe for the same epochs. Ours is the last epoch. DepGraph
trains for 400 epochs in three stages and prints the best of its test epochs, OCSPruner for 300 (here the mean of its
three runs' last epochs), HESSO for 100. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from headgate_lab.recipes.cifar import Cifar, Dataset, NetworkName
from headgate_lab.recipes.experiment import Experiment

Other: TypeAlias = Literal["DepGraph", "OCSPruner", "HESSO"]


@dataclass(frozen=True)
class Beyond(Cifar):
    """One network.

    Attributes:
        against: whose size or cost it has; None: the full network.
    """

    experiment: ClassVar[str] = "beyond"

    against: Other | None = None
    length: int = field(default=300, kw_only=True)

    @property
    def setting(self) -> str:
        """As of any network, and against whom."""
        return super().setting + (f" (against {self.against})" if self.against else "")


# Network, dataset, against whom, fraction of multiply-accumulates or parameters, epochs (never more than theirs).
TARGETS: tuple[tuple[NetworkName, Dataset, Other, float | None, int | None, int], ...] = (
    ("resnet56", "cifar10", "DepGraph", 0.469, None, 300),  # 2.13 times fewer
    ("resnet56", "cifar10", "DepGraph", 0.389, None, 300),  # 2.57 times fewer
    ("resnet56", "cifar10", "OCSPruner", 0.5, None, 300),
    ("resnet18", "cifar10", "HESSO", None, 893_000, 100),  # 92 % of 11,173,962 are gone
    ("vgg19", "cifar100", "DepGraph", 0.112, None, 300),  # 8.92 times fewer
)


def recipes() -> Sequence[Beyond]:
    """Ours, the narrower network and the found widths at every target, and the full networks."""
    found: list[Beyond] = []
    for network, dataset, against, macs, params, epochs in TARGETS:
        for method in ("ours", "narrower", "found"):
            at_size = {"params": params, "macs": macs, "against": against, "length": epochs}
            found.append(Beyond(network, dataset, method, **at_size))  # type: ignore[arg-type]
    full = dict.fromkeys((network, dataset, epochs) for network, dataset, _, _, _, epochs in TARGETS)
    return [*found, *(Beyond(network, dataset, "narrower", length=epochs) for network, dataset, epochs in full)]


EXPERIMENT = Experiment(
    "beyond", "ResNet-56, ResNet-18 and VGG-19 at what others print", "not in the paper", 3, recipes, together=6
)
