"""The gradient of a relational layer, by hand: what `models.relational` computes, read backwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headgate_lab.data.batch_index import Batch
from headgate_lab.models.chords import chord_gradients
from headgate_lab.models.products import summed_over_rows


def gradients(
    kept: Sequence[Tensor], arriving: Sequence[Tensor], batch: Batch, *, states: bool
) -> tuple[Tensor | None, ...]:
    """Of centre, around, mix, bases, root and bias, in this order; of the first two only if `states` asks for them.

    Args:
        kept: what the layer saved.
        arriving: the gradient of the targets, and that of the neighbours unless the layer left them out.
        batch: the subgraphs.
        states: whether something before the layer is to be learned.
    """
    centre, around, mix, bases, root, _, new_centre, collected, by_base, *rest = kept
    arrived = torch.ops.aten.tanh_backward(arriving[0], new_centre)
    of_root, of_bias = torch.bmm(centre.mT, arrived), arrived.sum(1)
    of_bases = torch.bmm(by_base.mT, arrived).view_as(bases)
    of_base = torch.bmm(arrived, bases.flatten(1, 2).mT)
    of_base = of_base.view(*arrived.shape[:2], mix.shape[2], -1).transpose(1, 2).flatten(2)
    of_mix = torch.bmm(collected, of_base.mT)
    of_centre = torch.bmm(arrived, root.mT) if states else None
    of_around = _heard(torch.bmm(mix, of_base), batch, around) if states else None
    if rest:
        parts = _neighbours(kept, torch.ops.aten.tanh_backward(arriving[1], rest[0]), batch, of_centre, of_around)
        # One operation for all four.
        torch._foreach_add_((of_mix, of_bases, of_root, of_bias), parts)
    return of_centre, of_around, of_mix, of_bases, of_root, of_bias


def _neighbours(
    kept: Sequence[Tensor], arrived: Tensor, batch: Batch, of_centre: Tensor | None, of_around: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the neighbours add to the gradients of mix, bases, root and bias; what they add to states is added."""
    centre, around, mix, bases, root, *_, by_base, wide, table = kept
    networks, relations, count = mix.shape
    outputs = root.shape[2]
    flat = arrived.flatten(0, 1)
    slots = flat.new_zeros(batch.slots + 1, outputs).index_add_(0, batch.outward, flat)
    sent = slots[:-1].view(networks, relations, -1)
    of_base = torch.bmm(mix.mT, sent).view(networks, count, -1, outputs).transpose(1, 2).flatten(2)
    of_bases = torch.bmm(centre.mT, of_base).view(networks, -1, count, outputs).transpose(1, 2)
    along = flat.index_select(0, batch.sinks)
    crossing = around[:, : batch.crossing]
    of_crossing, chord_mix, chord_bases = chord_gradients(along, crossing, mix, bases, wide, table, batch)
    if of_centre is not None and of_around is not None:
        of_centre.baddbmm_(of_base, wide.mT)
        of_around.baddbmm_(arrived, root.mT)
        of_around[:, : batch.crossing].add_(of_crossing)
    chord_mix.baddbmm_(sent, by_base.mT)
    chord_bases.add_(of_bases)
    return chord_mix, chord_bases, summed_over_rows(around, arrived), arrived.sum(1)


def _heard(slots: Tensor, batch: Batch, around: Tensor) -> Tensor:
    """From the gradient of slots, (networks, relations, targets · inputs), to that of the nodes heard there."""
    arrived = slots.view(batch.slots, -1).index_select(0, batch.inward_slots)
    arrived.mul_(batch.inward_weights.unsqueeze(1))
    found = torch.zeros_like(around)
    found.view(-1, around.shape[2]).index_add_(0, batch.inward_nodes, arrived)
    return found
