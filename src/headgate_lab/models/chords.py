"""Messages along chords, the edges between neighbours, without a matrix for each edge.

Where relations are few, every crossing node is multiplied by all W_r, and each edge reads a row of that table; where
they are many, by the bases alone, and each edge mixes its own row from those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headgate_lab.data.batch_index import Batch
from headgate_lab.models.products import summed_over_rows

# So many times more relations than bases count as few.
FEW = 2


def are_few(relations: int, bases: int) -> bool:
    """Whether a table of all relations is cheaper than mixing bases edge by edge."""
    return relations <= FEW * bases


def all_relations(mix: Tensor, bases: Tensor) -> Tensor:
    """W_r of all relations side by side, (networks, inputs, relations · outputs)."""
    networks, relations, _ = mix.shape
    matrices = torch.bmm(mix, bases.flatten(2)).view(networks, relations, *bases.shape[2:])
    return matrices.transpose(1, 2).flatten(2)


def chord_messages(
    states: Tensor, mix: Tensor, bases: Tensor, wide: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What each chord carries, (chords, outputs), and what the gradient needs beside it.

    Args:
        states: of the crossing neighbours, (networks, crossing, inputs).
        mix: see `relational.Weights`.
        bases: likewise.
        wide: the bases side by side, (networks, inputs, bases · outputs).
        batch: the subgraphs.
    """
    count, outputs = mix.shape[2], bases.shape[3]
    if are_few(batch.relation_count, count):
        matrices = all_relations(mix, bases)
        return torch.bmm(states, matrices).view(-1, outputs).index_select(0, batch.chord_rows), matrices
    table = torch.bmm(states, wide).view(-1, count, outputs)
    mixes = mix.view(-1, count, 1).index_select(0, batch.relations)
    return (mixes * table.index_select(0, batch.sources)).sum(1), table


def chord_gradients(
    arriving: Tensor, states: Tensor, mix: Tensor, bases: Tensor, wide: Tensor, kept: Tensor, batch: Batch
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of the messages to those of states, mix and bases; `kept` is what `chord_messages` gave."""
    networks, relations, count = mix.shape
    inputs, outputs = bases.shape[2:]
    if are_few(relations, count):
        table = arriving.new_zeros(networks * batch.crossing * relations, outputs)
        table = table.index_add_(0, batch.chord_rows, arriving).view(networks, batch.crossing, relations * outputs)
        matrices = summed_over_rows(states, table).view(networks, inputs, relations, outputs)
        matrices = matrices.transpose(1, 2).flatten(2)
        of_mix = torch.bmm(matrices, bases.flatten(2).mT)
        return torch.bmm(table, kept.mT), of_mix, torch.bmm(mix.mT, matrices).view_as(bases)
    mixes = mix.view(-1, count, 1).index_select(0, batch.relations)
    apart = arriving.unsqueeze(1)
    of_mix = torch.zeros_like(mix).view(-1, count)
    of_mix.index_add_(0, batch.relations, (kept.index_select(0, batch.sources) * apart).sum(2))
    table = torch.zeros_like(kept).index_add_(0, batch.sources, mixes * apart)
    table = table.view(networks, batch.crossing, count * outputs)
    of_wide = summed_over_rows(states, table).view(networks, inputs, count, outputs).transpose(1, 2)
    return torch.bmm(table, wide.mT), of_mix.view_as(mix), of_wide
