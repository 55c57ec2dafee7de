"""How alike the features are that a layer has left, to be recorded of a trained network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headgate_lab.engine.images import Resident
from headgate_lab.similarity import KERNELS, cka_matrix

IMAGES, AT_ONCE = 1_000, 250
# How the metrics of each CKA begin.
NAMES = {"linear": "cka", "rbf": "rbf_cka"}


def likeness(small: nn.Module, layer: str, test: Resident) -> dict[str, Any]:
    """The number of features, and of each CKA its matrix and the mean, deviation and maximum beside its diagonal.

    Fewer than two features cannot be compared: there is no number then.
    """
    found = features(small, layer, test)
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
    """A matrix as lists, and what its entries beside the diagonal are like; nothing if some are no numbers."""
    if matrix is None or not matrix.isfinite().all():
        return {f"{name}_mean": None, f"{name}_sd": None, f"{name}_max": None, name: None}
    beside = matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)]
    return {
        f"{name}_mean": beside.mean().item(),
        f"{name}_sd": beside.std(correction=0).item(),
        f"{name}_max": beside.max().item(),
        name: [[round(value, 4) for value in row] for row in matrix.tolist()],
    }
