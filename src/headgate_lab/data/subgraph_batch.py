"""Subgraphs brought together for one step, by index arithmetic alone: no loop over subgraphs, edges or networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from headgate_lab.data.batch_index import (
    Batch,
    Entries,
    Kept,
    Shape,
    around,
    chord_ends,
    chords_kept,
    first_slots,
    in_the_batch,
)
from headgate_lab.data.ragged import ragged
from headgate_lab.data.subgraphs import Subgraphs

# Random numbers are drawn in parts, so that they never fill the memory.
DRAWN_AT_ONCE = 1 << 24


class Batches:
    """Makes batches of subgraphs on a device. What must be known on the host to do so stays there."""

    def __init__(self, subgraphs: Subgraphs, device: torch.device) -> None:
        self.host, self.device = subgraphs, device
        columns = [getattr(subgraphs, field.name) for field in dataclasses.fields(subgraphs)[1:]]
        self.there = Subgraphs(subgraphs.relation_count, *(column.to(device) for column in columns))

    def draw(self, rate: float, generators: Sequence[torch.Generator]) -> Kept:
        """Edges that stay where each direction is left out with probability `rate`; a generator for each copy."""
        drawn = [self._draw(rate, generator) for generator in generators]
        return Kept(*(torch.stack(parts) for parts in zip(*drawn, strict=True)))

    def _draw(self, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        def stays(count: int) -> Tensor:
            kept = torch.empty(2 * count, dtype=torch.bool, device=self.device)
            for part in kept.split(DRAWN_AT_ONCE):
                torch.ge(torch.rand(len(part), generator=generator, device=self.device), rate, out=part)
            return kept.view(2, count)

        ends = self.there.bundle_sizes.cumsum(0)
        speaks, hears = stays(int(self.host.bundle_sizes.sum()))
        counts = torch.stack([speaks & hears, speaks & ~hears]).cumsum(1)
        bundles = pad(counts, (1, 0))[:, pad(ends, (1, 0))].diff(dim=1)
        return stays(len(self.host.spokes)), stays(len(self.host.chord_users)), bundles.float()

    def batch(self, pairs: Tensor, kept: Kept | None = None) -> Batch:
        """The subgraphs of these pairs, numbers on the host of shape (copies, pairs); without `kept`, all edges."""
        host, (copies, size) = self.host, pairs.shape
        crossing, bundles = host.crossing[pairs], host.bundles[pairs]
        before, bundles_before = crossing.cumsum(1) - crossing, bundles.cumsum(1) - bundles
        most = int(crossing.sum(1).max())
        nodes = most + int(bundles.sum(1).max()) + 2
        start = nodes * torch.arange(copies).unsqueeze(1)
        shape = Shape(copies, size, most, nodes, host.relation_count)
        spokes = self._entries(shape, crossing, host.first_crossing[pairs], before + start)
        bundled = self._entries(shape, bundles, host.first_bundle[pairs], bundles_before + start + most)
        chords = self._entries(shape, host.chords[pairs], host.first_chord[pairs], before)
        ends = chord_ends(shape, chords, self.there)
        if kept is not None:
            ends = ends[:, chords_kept(chords, kept)]
        return Batch(*shape, *around(shape, spokes, bundled, self.there, kept), *in_the_batch(shape, ends))

    def _entries(self, shape: Shape, counts: Tensor, first: Tensor, begins: Tensor) -> Entries:
        """Runs of so many entries from these positions on, numbered from there on in the batch; all (copies, pairs)."""
        numbers = torch.arange(counts.numel()).view_as(counts)
        copy, pair = numbers // shape.pairs, numbers % shape.pairs
        told = torch.stack([counts, first, copy, first_slots(shape, copy, pair), begins]).flatten(1)
        lengths, first, copy, slot, begins = told.to(self.device, non_blocking=True)
        owner, inside = ragged(lengths, int(counts.sum()))
        begin = begins[owner]
        return Entries(first[owner] + inside, copy[owner], slot[owner], begin, begin + inside)
