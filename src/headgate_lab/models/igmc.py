"""IGMC: predicts a rating from the ratings around it, by a graph network on the enclosing subgraph.

Four relational layers; the states of the two targets behind each of them, side by side, go into a small head. Nodes
know only what they are: target user, target item, neighbouring user, neighbouring item.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headgate_lab.data.batch_index import Batch
from headgate_lab.models.autoencoder import linear
from headgate_lab.models.relational import RelationalLayer, Weights, relational, relational_centre

LABELS = 4


class Head(nn.Module):
    """From the two targets to a rating: a hidden layer, whatever module the caller puts on it, a number."""

    def __init__(self, inputs: int, hidden: int, gate: nn.Module, *, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = linear(inputs, hidden, generator=generator)
        self.gate = gate
        self.output = linear(hidden, 1, generator=generator)

    def forward(self, targets: Tensor, noise: Tensor | None = None) -> Tensor:
        """(pairs, inputs) to (pairs,); `noise` multiplies the hidden units, as dropout does in training."""
        hidden: Tensor = self.gate(torch.relu(self.hidden(targets)))
        rating: Tensor = self.output(hidden if noise is None else hidden * noise)
        return rating.squeeze(-1)


class Igmc(nn.Module):
    """The network.

    Args:
        relations: how many different ratings there are.
        gate: what is put on the hidden units of the head; `nn.Identity()` for nothing.
        width: of each relational layer.
        depth: how many there are.
        hidden: units of the head.
        bases: of each relational layer.
        generator: of the initial weights.
    """

    def __init__(
        self,
        relations: int,
        gate: nn.Module,
        *,
        width: int = 32,
        depth: int = 4,
        hidden: int = 128,
        bases: int = 4,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [LABELS] + [width] * depth
        self.layers = nn.ModuleList(
            RelationalLayer(inputs, width, relations, bases, generator=generator) for inputs in widths[:-1]
        )
        self.head = Head(2 * width * depth, hidden, gate, generator=generator)

    def forward(self, batch: Batch) -> Tensor:
        """The ratings of a batch for one network, (pairs,)."""
        layers = [layer.weights() for layer in self.layers if isinstance(layer, RelationalLayer)]
        rating: Tensor = self.head(targets(layers, batch)[0])
        return rating


def targets(layers: Sequence[Weights], batch: Batch) -> Tensor:
    """What the head is given, (networks, pairs, 2 · width · depth)."""
    centre, around = _labels(batch, layers[0].root.dtype)
    behind = []
    for weights in layers[:-1]:
        centre, around = relational(centre, around, weights, batch)
        behind.append(centre)
    behind.append(relational_centre(centre, around, layers[-1], batch))
    users_and_items = torch.cat(behind, dim=2).view(batch.copies, 2, batch.pairs, -1)
    return users_and_items.transpose(1, 2).flatten(2)


def _labels(batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One-hot: the states of targets and neighbours before the first layer."""
    known = torch.eye(LABELS, dtype=dtype, device=batch.labels.device)
    return known[:2].repeat_interleave(batch.pairs, 0).expand(batch.copies, -1, -1), known[batch.labels]
