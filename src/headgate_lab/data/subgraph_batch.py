"""Subgraphs brought together for one step, by index arithmetic alone: no loop over subgraphs, edges or networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headgate_lab.data.ragged import ragged
from headgate_lab.data.subgraphs import Subgraphs

# Random numbers are drawn in parts, so that they never fill the memory.
DRAWN_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Kept:
    """What edge dropout leaves, for `copies` networks. The two directions of an edge are drawn apart.

    Attributes:
        spokes: of crossing neighbours, (copies, 2, crossing): to the target, from the target.
        chords: (copies, 2, chords): from user to item, from item to user.
        bundles: (copies, 2, bundles), how many neighbours of each bundle speak to the target: those that hear it, and
            those that do not.
    """

    spokes: Tensor
    chords: Tensor
    bundles: Tensor

    def of(self, copy: int) -> Kept:
        """That of one network alone."""
        return Kept(*(part[copy : copy + 1] for part in (self.spokes, self.chords, self.bundles)))


@dataclass(frozen=True)
class Batch:
    """Subgraphs of `pairs` pairs for each of `copies` networks; all numbers count on from copy to copy.

    Targets are numbered (copy, users then items, pair), nodes around them (copy, place): the crossing neighbours,
    filled up to `crossing`, the bundles, filled up, an item that hears nothing, a user that hears nothing. A slot is
    (copy, relation, target).

    Attributes:
        labels: of every node 2 for a user, 3 for an item: (copies, nodes).
        inward_nodes: the nodes that targets hear; `inward_slots`, where; `inward_weights`, how many of them.
        outward: of every node the slot that it hears, or the last one of all if it hears no target.
        sources: of every chord that is left, in both directions, its source among the crossing neighbours.
        sinks: the node that it leads to.
        relations: its relation, plus relations · copy.
    """

    copies: int
    pairs: int
    crossing: int
    nodes: int
    relation_count: int
    labels: Tensor
    inward_nodes: Tensor
    inward_slots: Tensor
    inward_weights: Tensor
    outward: Tensor
    sources: Tensor
    sinks: Tensor
    relations: Tensor

    @property
    def slots(self) -> int:
        """Of all targets, without the last one."""
        return 2 * self.copies * self.pairs * self.relation_count


class _Shape(NamedTuple):
    """The numbers of a `Batch`."""

    copies: int
    pairs: int
    crossing: int
    nodes: int
    relations: int


class _Entries(NamedTuple):
    """Entries of `Subgraphs` that a batch needs.

    Attributes:
        position: where they are there.
        copy: for which network.
        pair: of which pair of the batch.
        begin: the number that the first entry of the same pair has in the batch.
        place: their own number in it.
    """

    position: Tensor
    copy: Tensor
    pair: Tensor
    begin: Tensor
    place: Tensor


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
        shape = _Shape(copies, size, most, nodes, host.relation_count)
        spokes = self._entries(crossing, host.first_crossing[pairs], before + start)
        bundled = self._entries(bundles, host.first_bundle[pairs], bundles_before + start + most)
        chords = self._entries(host.chords[pairs], host.first_chord[pairs], before)
        return Batch(*shape, *self._around(shape, spokes, bundled, kept), *self._chords(shape, chords, kept))

    def _entries(self, counts: Tensor, first: Tensor, begins: Tensor) -> _Entries:
        """Runs of so many entries from these positions on, numbered from there on in the batch; all (copies, pairs)."""
        numbers = torch.arange(counts.numel()).view_as(counts)
        told = torch.stack([counts, first, numbers // counts.shape[1], numbers % counts.shape[1], begins]).flatten(1)
        lengths, first, copy, pair, begins = told.to(self.device, non_blocking=True)
        owner, inside = ragged(lengths, int(counts.sum()))
        begin = begins[owner]
        return _Entries(first[owner] + inside, copy[owner], pair[owner], begin, begin + inside)

    def _around(
        self, shape: _Shape, spokes: _Entries, bundles: _Entries, kept: Kept | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Labels; nodes that targets hear, in which slots, how many of each; slots that nodes hear."""
        none = 2 * shape.copies * shape.pairs * shape.relations
        slot, is_user = _slots(shape, spokes, self.there.spokes)
        bundle_slot, users_bundled = _slots(shape, bundles, self.there.bundle_spokes)
        places = torch.cat([spokes.place, bundles.place])
        labels = torch.full((shape.copies, shape.nodes), 3, device=self.device)
        labels[:, -1] = 2
        labels.view(-1)[places] = 3 - torch.cat([is_user, users_bundled])
        outward = torch.full((shape.copies * shape.nodes,), none, device=self.device)
        outward[bundles.place] = bundle_slot
        if kept is None:
            outward[spokes.place] = slot
            sizes = self.there.bundle_sizes[bundles.position].float()
            return labels, places, torch.cat([slot, bundle_slot]), torch.cat([_ones(slot), sizes]), outward
        speaks, hears = kept.spokes[spokes.copy, :, spokes.position].unbind(1)
        outward[spokes.place] = torch.where(hears, slot, none)
        hearing, deaf = kept.bundles[bundles.copy, :, bundles.position].unbind(1)
        deaf_nodes = shape.nodes * (bundles.copy + 1) - 2 + users_bundled
        weights = torch.cat([speaks.float(), hearing, deaf])
        return labels, torch.cat([places, deaf_nodes]), torch.cat([slot, bundle_slot, bundle_slot]), weights, outward

    def _chords(self, shape: _Shape, chords: _Entries, kept: Kept | None) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, sinks and relations of all chords that are left."""
        position, copy = chords.position, chords.copy
        user = self.there.chord_users[position].long() + chords.begin
        item = self.there.chord_items[position].long() + chords.begin
        relation = self.there.chord_relations[position].long() + shape.relations * copy
        ends = torch.stack([torch.cat([user, item]), torch.cat([item, user]), relation.repeat(2), copy.repeat(2)])
        if kept is not None:
            ends = ends[:, kept.chords[copy, :, position].T.flatten()]
        source, sink, relation, copy = ends
        return source + shape.crossing * copy, sink + shape.nodes * copy, relation


def _slots(shape: _Shape, entries: _Entries, spokes: Tensor) -> tuple[Tensor, Tensor]:
    """The slot of each spoke, and 1 where it is a user's: those are joined with target items, which come second."""
    spoke = spokes[entries.position].long()
    is_user = (spoke >= shape.relations).long()
    relation = spoke - shape.relations * is_user + shape.relations * entries.copy
    return (2 * relation + is_user) * shape.pairs + entries.pair, is_user


def _ones(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.float32)
