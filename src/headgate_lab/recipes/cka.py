"""How alike the features of a pruned layer are (tab:cka): PreResNet-164 at its 54th layer, unpruned and pruned.

Features are what the channels of the second convolution of the last block of stage 1 write: the 54th of the paper's
gates, the stem's being the first, and what the 54th BatchNorm scales, where Network Slimming and ChipNet prune. Each is
a map of 32 by 32 numbers of each of 1,000 test images; that norm's scales and shifts change no CKA between them. Those
that the small network still computes are compared pair by pair. Which CKA the paper's table shows, and on which
dataset, is not said: both the linear one (`cka`) and that with Gaussian kernels of the median distance (`rbf_cka`) are
recorded, on CIFAR-10. The paper trained for 200 to 270 epochs; these have 60 in all. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Metrics
from headgate_lab.recipes.compared import Compared, MethodName, compared
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.stability import RATIO, SIZE, STRENGTH
from headgate_lab.similarity import KERNELS, cka_matrix

IMAGES, AT_ONCE = 1_000, 250
# How the metrics of each CKA begin.
NAMES = {"linear": "cka", "rbf": "rbf_cka"}


@dataclass(frozen=True)
class Cka(Compared):
    """One network; `layer` is the path of the module whose outputs are compared."""

    experiment: ClassVar[str] = "cka"

    layer: str = "stage1.17.conv2"

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
    """Unpruned and by three methods, as the table has them; ours, and the narrower network of its size."""
    return [
        _network("narrower"),
        _network("paper", strength=STRENGTH),
        _network("slimming", ratio=RATIO),
        _network("chipnet", ratio=RATIO),
        _network("ours", params=SIZE),
        _network("narrower", params=SIZE),
    ]


def _network(method: MethodName, **much: float) -> Cka:
    return compared(Cka, "preresnet164", "cifar10", method, **much)


EXPERIMENT = Experiment("cka", "how alike the features of a pruned layer are", "tab:cka", 1, recipes, together=4)
