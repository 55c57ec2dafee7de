"""Subgraphs brought together for one step, by index arithmetic alone: no loop over subgraphs, edges or networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headgate_lab.data.ragged import ragged
from headgate_lab.data.subgraphs import Subgraphs

# Drawn in parts, so that the random numbers themselves never fill the memory.
DRAWN_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Kept:
    """Which edges edge dropout leaves, for `copies` networks; the two directions of an edge are drawn apart.

    Attributes:
        spokes: shape (copies, 2, spokes): from the neighbour to its target, then back.
        chords: shape (copies, 2, chords): from user to item, then back.
    """

    spokes: Tensor
    chords: Tensor


@dataclass(frozen=True)
class Batch:
    """Subgraphs of `pairs` pairs for each of `copies` networks; all indices are flat over the copies.

    Targets are numbered (copy, users then items, pair), neighbours (copy, place): in each copy the crossing ones
    first, filled up to `crossing`, then the quiet ones, filled up to `neighbours`.

    Attributes:
        labels: of every neighbour 2 for a user, 3 for an item: (copies, neighbours).
        inward: of every neighbour its slot, (copy, relation, target), or the last slot of all if there is no edge to
            its target; `outward` likewise for the edge from its target.
        sources: of every chord that is left, in both directions, its source among the crossing neighbours.
        sinks: the neighbour that it leads to.
        relations: its relation, plus relations · copy.
    """

    copies: int
    pairs: int
    crossing: int
    neighbours: int
    relation_count: int
    labels: Tensor
    inward: Tensor
    outward: Tensor
    sources: Tensor
    sinks: Tensor
    relations: Tensor

    @property
    def slots(self) -> int:
        """Of all targets, without the last one."""
        return 2 * self.copies * self.pairs * self.relation_count


class Batches:
    """Makes batches of subgraphs on a device. What must be known on the host to do so stays there."""

    def __init__(self, subgraphs: Subgraphs, device: torch.device) -> None:
        self.host, self.device = subgraphs, device
        moved = {
            field.name: value.to(device)
            for field in dataclasses.fields(subgraphs)
            if isinstance(value := getattr(subgraphs, field.name), Tensor)
        }
        self.there = dataclasses.replace(subgraphs, **moved)

    def draw(self, rate: float, generators: Sequence[torch.Generator]) -> Kept:
        """Edges that stay where each direction is left out with probability `rate`; a generator for each copy."""
        spokes = torch.stack([self._drawn(len(self.host.spokes), rate, one) for one in generators])
        chords = torch.stack([self._drawn(len(self.host.chord_users), rate, one) for one in generators])
        return Kept(spokes, chords)

    def _drawn(self, count: int, rate: float, generator: torch.Generator) -> Tensor:
        kept = torch.empty(2 * count, dtype=torch.bool, device=self.device)
        for part in kept.split(DRAWN_AT_ONCE):
            torch.ge(torch.rand(len(part), generator=generator, device=self.device), rate, out=part)
        return kept.view(2, count)

    def batch(self, pairs: Tensor, kept: Kept | None = None) -> Batch:
        """The subgraphs of these pairs, numbers on the host of shape (copies, pairs); without `kept`, all edges."""
        host, (copies, size) = self.host, pairs.shape
        crossing, quiet, chords = host.crossing[pairs], host.quiet[pairs], host.chords[pairs]
        most_crossing, most_quiet = int(crossing.sum(1).max()), int(quiet.sum(1).max())
        neighbours = most_crossing + most_quiet
        copy = torch.arange(copies).unsqueeze(1)
        first_crossing = crossing.cumsum(1) - crossing
        spokes = torch.stack(
            [
                torch.stack([crossing, quiet], 1),
                torch.stack([host.first_spoke[pairs], host.first_spoke[pairs] + crossing], 1),
                torch.stack([first_crossing, most_crossing + quiet.cumsum(1) - quiet], 1)
                + (copy * neighbours).unsqueeze(1),
                torch.arange(size).expand(copies, 2, -1),
                copy.unsqueeze(1).expand(-1, 2, size),
            ]
        )
        edges = torch.stack(
            [
                chords,
                host.first_chord[pairs],
                first_crossing + most_crossing * copy,
                first_crossing + neighbours * copy,
                copy.expand_as(chords),
            ]
        )
        shape = copies, size, most_crossing, neighbours, host.relation_count
        return Batch(*shape, *self._spokes(shape, spokes, kept), *self._chords(shape, edges, kept))

    def _spokes(
        self, shape: tuple[int, int, int, int, int], pieces: Tensor, kept: Kept | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Labels and slots of all neighbours."""
        copies, size, _, neighbours, relations = shape
        total = int(pieces[0].sum())
        lengths, first, begin, target, copy = pieces.flatten(1).to(self.device, non_blocking=True)
        owner, inside = ragged(lengths, total)
        position, place = first[owner] + inside, begin[owner] + inside
        spoke = self.there.spokes[position].long()
        is_user = spoke >= relations
        # A user is joined with the target item; target items come after the target users.
        relation, target = spoke - is_user * relations, target[owner] + is_user * size
        slot = (relation + copy[owner] * relations) * (2 * size) + target
        none = 2 * copies * size * relations
        labels = torch.full((copies * neighbours,), 3, device=self.device)
        labels[place] = 3 - is_user.long()
        inward = torch.full((2, copies * neighbours), none, device=self.device)
        for direction in range(2):
            stays = None if kept is None else kept.spokes[copy[owner], direction, position]
            inward[direction, place] = slot if stays is None else torch.where(stays, slot, none)
        return labels.view(copies, neighbours), inward[0], inward[1]

    def _chords(
        self, shape: tuple[int, int, int, int, int], pieces: Tensor, kept: Kept | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, sinks and relations of all chords that are left."""
        total = int(pieces[0].sum())
        lengths, first, begin, sink, copy = pieces.flatten(1).to(self.device, non_blocking=True)
        owner, inside = ragged(lengths, total)
        position = first[owner] + inside
        user, item = self.there.chord_users[position].long(), self.there.chord_items[position].long()
        relation = self.there.chord_relations[position].long() + copy[owner] * shape[-1]
        begin, sink = begin[owner], sink[owner]
        found = torch.stack(
            [
                torch.cat([begin + user, begin + item]),
                torch.cat([sink + item, sink + user]),
                torch.cat([relation, relation]),
            ]
        )
        if kept is not None:
            stays = kept.chords[copy[owner], :, position]
            found = found[:, stays.T.reshape(-1)]
        return found[0], found[1], found[2]
