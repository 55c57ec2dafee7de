"""How exactness is measured: a randomised model, gated, moved by random offsets, compacted, compared in float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import headgate as hg
from headgate.channels.example import Example

LIMIT = 1e-9


@torch.no_grad()
def randomise_(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draws every floating parameter and buffer anew, in evaluation mode: fresh models hide wrong surgery."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.copy_(noise + 0.5 if name.endswith("running_var") else noise - 0.4)
    return model.eval()


def in_double(example: Any) -> Any:
    return tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, example
    )


def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    """All tensors the model returns, on its own copy of the example, since models may write into their input.

    With gradients: without them torch multiplies a parameter in another order of sums than a masked parameter.
    """
    given = Example.of(copy.deepcopy(example))
    return [leaf.detach() for leaf in tree_leaves(model(*given.args, **given.kwargs)) if isinstance(leaf, Tensor)]


def error(expected: list[Tensor], got: list[Tensor]) -> float:
    """The largest difference relative to the largest entry, over all outputs; infinite where shapes differ."""
    if [tuple(t.shape) for t in expected] != [tuple(t.shape) for t in got]:
        return float("inf")
    relative = [
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(got, expected, strict=True)
        if a.numel()
    ]
    return max(float("inf") if value != value else value for value in relative)


@torch.no_grad()
def move_offsets_(model: nn.Module, seed: int) -> None:
    """Random offsets that close some units and leave each group one; every third branch is closed altogether."""
    generator = torch.Generator().manual_seed(seed)
    for number, (name, gate) in enumerate(hg.gates(model).items()):
        opened = int(torch.randint(1, gate.n, (), generator=generator))
        silent = name.endswith(":write") and (number + seed) % 3 == 0
        gate.offset.fill_(-5.0 if silent else 5.0 * ((opened - 0.5) / gate.n - 1))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("headgate_"))
