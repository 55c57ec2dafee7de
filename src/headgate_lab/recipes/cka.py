"""How alike the features of a pruned layer are (tab:cka): PreResNet-164 at its 54th layer, unpruned and pruned.

Features are what channels of the third convolution of the last block of stage 1 write, the 54th convolution of the
blocks: a map of 32 by 32 numbers of each of 1,000 test images. Those that the small network still computes are compared
pair by pair. Which CKA the paper's table shows, and on which dataset, is not said: both the linear one (`cka`) and that
with Gaussian kernels of the median distance (`rbf_cka`) are recorded, on CIFAR-10. The paper trained for 200 epochs;
these are 60. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Metrics
from headgate_lab.recipes.cifar import Cifar
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.permutation import PARAMS, STRENGTH
from headgate_lab.similarity import KERNELS, cka_matrix

IMAGES, AT_ONCE = 1_000, 250
# How the metrics of each CKA begin.
NAMES = {"linear": "cka", "rbf": "rbf_cka"}


@dataclass(frozen=True)
class Cka(Cifar):
    """One network; `layer` is the path of the module whose outputs are compared."""

    experiment: ClassVar[str] = "cka"

    layer: str = "stage1.17.conv3"
    length: int = field(default=60, kw_only=True)

    def further(self, small: nn.Module, test: Resident) -> Metrics:
        """The number of features, and of each CKA its matrix and the mean, deviation and maximum beside its diagonal.

        Fewer than two features cannot be compared: there is no number then.
        """
        found = features(small, self.layer, test)
        kept = 0 if found is None else found.shape[1]
        told: dict[str, Any] = {"features": kept}
        for kind, name in NAMES.items():
            matrix = None if found is None or kept < 2 else cka_matrix(found, KERNELS[kind])
            told |= summary(name, matrix)
        return told


@torch.no_grad()
def features(model: nn.Module, layer: str, data: Resident) -> Tensor | None:
    """What the layer's channels that are not the same everywhere write, (images, channels, …), in float64.

    None if there is no such layer any more.
    """
    try:
        module = model.get_submodule(layer)
    except AttributeError:
        return None
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: seen.append(output.double()))
    try:
        model.eval()
        for images in data.images[:IMAGES].split(AT_ONCE):
            model(data.normalised(images, torch.float32))
    finally:
        handle.remove()
    if not seen:
        return None
    found = torch.cat(seen)
    changing = (found != found[:1]).flatten(2).any(2).any(0)
    return found[:, changing]


def summary(name: str, matrix: Tensor | None) -> dict[str, Any]:
    """A matrix as lists, and what its entries beside the diagonal are like."""
    if matrix is None:
        return {f"{name}_mean": None, f"{name}_sd": None, f"{name}_max": None, name: None}
    beside = matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)]
    return {
        f"{name}_mean": beside.mean().item(),
        f"{name}_sd": beside.std(correction=0).item(),
        f"{name}_max": beside.max().item(),
        name: [[round(value, 4) for value in row] for row in matrix.tolist()],
    }


def recipes() -> Sequence[Cka]:
    """Unpruned, the paper's way, and at the size that it ends in ours and the narrower control."""
    return [
        Cka("preresnet164", "cifar10", "narrower"),
        Cka("preresnet164", "cifar10", "paper", STRENGTH, lr=0.05, weight_decay=1e-3),
        Cka("preresnet164", "cifar10", "ours", params=PARAMS),
        Cka("preresnet164", "cifar10", "narrower", params=PARAMS),
    ]


EXPERIMENT = Experiment("cka", "how alike the features of a pruned layer are", "tab:cka", 1, recipes, together=4)
