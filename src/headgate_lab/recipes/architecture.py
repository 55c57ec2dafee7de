"""Pruned architectures (announced for Appendix E4): what large strengths and small budgets leave of PreResNet-164.

The widths of all layers and streams are recorded; `headgate figure architecture` draws them, blocks that are gone
shaded. On CIFAR-10, for 60 epochs. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import nn

import headgate as hg
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Metrics
from headgate_lab.outlining import outline
from headgate_lab.recipes.cifar import CLASSES, NETWORKS, Dataset, NetworkName
from headgate_lab.recipes.compared import Compared, compared
from headgate_lab.recipes.experiment import Experiment

STRENGTHS = (1.0, 2.0)
# 5 and 2 % of the network's parameters.
SIZES = (85_000, 34_000)


@dataclass(frozen=True)
class Architecture(Compared):
    """One network."""

    experiment: ClassVar[str] = "architecture"

    def further(self, small: nn.Module, test: Resident) -> Metrics:
        """Its outline, and the number of layers that are left and that are gone."""
        plan, full = _full(self.network, self.dataset, test.images.shape[1:])
        found = outline(plan, full, small)
        gone = sum(layer.after == 0 for layer in found.layers)
        return {"layers_left": len(found.layers) - gone, "layers_gone": gone, **found.as_json()}


@cache
def _full(network: NetworkName, dataset: Dataset, image: torch.Size) -> tuple[hg.Plan, nn.Module]:
    """The plan of the full network for images of this shape, found once, and the network."""
    with torch.random.fork_rng(devices=[]):
        full = NETWORKS[network](CLASSES[dataset], 1.0)
    return hg.find_groups(full, torch.zeros(2, *image)), full


def recipes() -> Sequence[Architecture]:
    """The paper's way at large strengths, ours at small sizes."""
    theirs = [compared(Architecture, "preresnet164", "cifar10", "paper", strength=one) for one in STRENGTHS]
    ours = [compared(Architecture, "preresnet164", "cifar10", "ours", params=size) for size in SIZES]
    return [*theirs, *ours]


EXPERIMENT = Experiment(
    "architecture", "what is left of a network, layer by layer", "Appendix E4", 1, recipes, together=4
)
