"""Batches of subgraphs whose shape is known before their pairs are: what a step captured as a CUDA graph needs.

`subgraph_batch.Batches` makes batches that are just as large as their subgraphs, which needs numbers of the host and
leaves out the chords that were dropped: less work, so a CPU has these. Here a batch has *room*, and what fills it does
nothing. Every list of entries has one more at its end, an edge that is always dropped; places beyond the real entries
read that one. A dropped chord leads to a *spare* node: no target hears it and no chord that is left comes from it, so
that no rating depends on its state and its gradient is zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

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
from headgate_lab.data.subgraphs import Subgraphs

# Of each copy. Dropped chords are spread over them: additions to a single one would wait for each other on a GPU.
SPARE = 64
# Nodes of a copy, and the crossing ones among them, are as many times this: sums over them can be made in equal parts.
MULTIPLE = 16
# What a subgraph consists of, as columns of `Subgraphs`: how many there are, where they begin, and the entries.
COUNTS = "crossing", "bundles", "chords"
FIRSTS = "first_crossing", "first_bundle", "first_chord"
ENTRIES = "spokes", "bundle_spokes", "chord_users", "chord_items", "chord_relations"


class Room(NamedTuple):
    """How much a batch can hold: crossing neighbours and bundles of one copy; these and chords of all copies."""

    crossing: int
    bundles: int
    all_crossing: int
    all_bundles: int
    all_chords: int


def needed(subgraphs: Subgraphs, pairs: Tensor) -> Tensor:
    """The `Room` that batches of these pairs, (batches, copies, pairs), need: (batches, 5)."""
    counts = torch.stack([getattr(subgraphs, name)[pairs].sum(2) for name in COUNTS])
    return torch.cat([counts[:2].amax(2), counts.sum(2)]).T


def with_one_dropped(kept: Kept) -> Kept:
    """Behind each list of edges one more, which is dropped."""
    return Kept(*(_one_more(part) for part in kept))


class FixedBatches:
    """Makes batches of one shape. Nothing is read back to the host, and nothing comes from there.

    Args:
        subgraphs: on the device.
        copies: how many networks.
        pairs: of a batch, for each of them.
        room: of a batch.
    """

    def __init__(self, subgraphs: Subgraphs, copies: int, pairs: int, room: Room) -> None:
        crossing = _rounded(room.crossing)
        around_targets = crossing + room.bundles
        nodes = _rounded(around_targets + SPARE + 2)
        self.shape = Shape(copies, pairs, crossing, nodes, subgraphs.relation_count)
        # As the numbers that the device computes with: small ones would be converted in every step.
        entries: dict[str, Any] = {name: _one_more(getattr(subgraphs, name).long()) for name in ENTRIES}
        self.there = dataclasses.replace(subgraphs, **entries)
        self.of_pairs = torch.stack([getattr(subgraphs, name) for name in COUNTS + FIRSTS])
        self.rooms = room.all_crossing, room.all_bundles, room.all_chords
        self.lasts = len(subgraphs.spokes), len(subgraphs.bundle_spokes), len(subgraphs.chord_users)
        # Behind all real neighbours of all copies: so far, at most, a place is counted on.
        self.spare = nodes * (copies - 1) + around_targets
        self.numbers = numbers = torch.arange(2 * max(*self.rooms, copies * pairs), device=subgraphs.spokes.device)
        copy, pair = numbers[: copies * pairs] // pairs, numbers[: copies * pairs] % pairs
        self.copy, self.slot = copy.expand(3, -1), first_slots(self.shape, copy, pair).expand(3, -1)
        # Where a copy's crossing neighbours, bundles, and crossing neighbours as the ends of chords begin.
        self.starts = torch.stack([nodes * copy, nodes * copy + crossing, torch.zeros_like(copy)])
        self.begun_by = torch.tensor([0, 1, 0], device=numbers.device)
        # Of the last copy all through: a network whose states are not numbers must not reach another one's, even by 0.
        last_slot = 2 * subgraphs.relation_count * pairs * (copies - 1)
        beyond = [self.lasts, (copies - 1,) * 3, (last_slot,) * 3, (self.spare, self.spare, 0), (0,) * 3]
        self.beyond = torch.tensor(beyond, device=numbers.device).unsqueeze(2)
        both_ways = numbers[: 2 * room.all_chords]
        self.dropped = torch.stack([both_ways % max(1, crossing), around_targets + both_ways % SPARE])

    def batch(self, pairs: Tensor, kept: Kept) -> Batch:
        """The subgraphs of these pairs, numbers on the device of shape (copies, pairs).

        Args:
            pairs: of which the room is enough (`needed`): what does not fit would be missing.
            kept: `with_one_dropped`.
        """
        counts, firsts = self.of_pairs.index_select(1, pairs.flatten()).split(3)
        ends = counts.cumsum(1)
        begins = ends - counts
        by_copy = begins.view(3, self.shape.copies, -1)
        before = (by_copy - by_copy[:, :, :1]).flatten(1)
        starts = before.index_select(0, self.begun_by) + self.starts
        told = torch.cat([torch.stack([firsts, self.copy, self.slot, starts, begins]), self.beyond], dim=2)
        spokes, bundles, chords = (self._entries(kind, ends[kind], told[:, kind]) for kind in range(3))
        source_and_sink, others = chord_ends(self.shape, chords, self.there).split(2)
        led = torch.where(chords_kept(chords, kept), source_and_sink, self.dropped)
        return Batch(
            *self.shape,
            *around(self.shape, spokes, bundles, self.there, kept),
            *in_the_batch(self.shape, (*led, *others)),
        )

    def _entries(self, kind: int, ends: Tensor, told: Tensor) -> Entries:
        """As much as there is room for; those behind the last of `ends` are the one that is always dropped."""
        numbers = self.numbers[: self.rooms[kind]]
        owner = torch.searchsorted(ends, numbers, right=True)
        first, copy, slot, begin, earlier = told.index_select(1, owner)
        inside = numbers - earlier
        position = (first + inside).clamp_(max=self.lasts[kind])
        return Entries(position, copy, slot, begin, (begin + inside).clamp_(max=self.spare))


def _rounded(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def _one_more(entries: Tensor) -> Tensor:
    return pad(entries, (0, 1))
