"""Subgraphs brought together for one step, by index arithmetic alone: no loop over subgraphs, edges or networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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


class _Pieces(NamedTuple):
    """Entries of `Subgraphs` that a batch needs: each with its place there and its copy and pair in the batch."""

    position: Tensor
    inside: Tensor
    owner: Tensor
    copy: Tensor
    pair: Tensor


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
        bundles = torch.nn.functional.pad(counts, (1, 0))[:, torch.nn.functional.pad(ends, (1, 0))].diff(dim=1)
        return stays(len(self.host.spokes)), stays(len(self.host.chord_users)), bundles.float()

    def batch(self, pairs: Tensor, kept: Kept | None = None) -> Batch:
        """The subgraphs of these pairs, numbers on the host of shape (copies, pairs); without `kept`, all edges."""
        host, (copies, size) = self.host, pairs.shape
        crossing, bundles = host.crossing[pairs], host.bundles[pairs]
        before, bundled = crossing.cumsum(1) - crossing, bundles.cumsum(1) - bundles
        most = int(crossing.sum(1).max())
        nodes = most + int(bundles.sum(1).max()) + 2
        start = torch.arange(copies).unsqueeze(1)
        shape = copies, size, most, nodes, host.relation_count
        around = self._around(
            shape,
            self._pieces(crossing, host.first_crossing[pairs], before + nodes * start),
            self._pieces(bundles, host.first_bundle[pairs], bundled + nodes * start + most),
            kept,
        )
        chords = self._chords(shape, self._pieces(host.chords[pairs], host.first_chord[pairs], before), kept)
        return Batch(*shape, *around, *chords)

    def _pieces(self, counts: Tensor, first: Tensor, begins: Tensor) -> tuple[_Pieces, Tensor]:
        """Runs of entries, (copies, pairs) of them, and of each entry the number at which its run begins."""
        copies, size = counts.shape
        places = torch.arange(copies * size)
        told = torch.stack([counts.flatten(), first.flatten(), begins.flatten(), places // size, places % size])
        lengths, first, begins, copy, pair = told.to(self.device, non_blocking=True)
        owner, inside = ragged(lengths, int(counts.sum()))
        return _Pieces(first[owner] + inside, inside, owner, copy[owner], pair[owner]), begins[owner]

    def _around(
        self,
        shape: tuple[int, int, int, int, int],
        crossing: tuple[_Pieces, Tensor],
        bundles: tuple[_Pieces, Tensor],
        kept: Kept | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Labels, what targets hear, what they are heard by."""
        copies, size, _, nodes, relations = shape
        none = 2 * copies * size * relations
        labels = torch.full((copies, nodes), 3, device=self.device)
        labels[:, -1] = 2
        outward = torch.full((copies * nodes,), none, device=self.device)
        heard: list[tuple[Tensor, Tensor, Tensor]] = []
        for (pieces, begins), spokes in ((crossing, self.there.spokes), (bundles, self.there.bundle_spokes)):
            place, spoke = begins + pieces.inside, spokes[pieces.position].long()
            is_user = (spoke >= relations).long()
            # A user is joined with the target item; target items come after the target users.
            relation = spoke - relations * is_user + relations * pieces.copy
            slot = relation * (2 * size) + size * is_user + pieces.pair
            labels.view(-1)[place] = 3 - is_user
            outward[place] = slot
            heard.append((place, slot, is_user))
        if kept is None:
            sizes = self.there.bundle_sizes[bundles[0].position].float()
            weights = torch.cat([torch.ones(len(heard[0][0]), device=self.device), sizes])
            return labels, *(torch.cat(part) for part in list(zip(*heard, strict=True))[:2]), weights, outward
        speaks, hears = kept.spokes[crossing[0].copy, :, crossing[0].position].unbind(1)
        outward[heard[0][0]] = torch.where(hears, heard[0][1], none)
        (place, slot, _), (bundle, bundle_slot, is_user) = heard
        deaf = nodes * bundles[0].copy + (nodes - 2) + is_user
        counts = kept.bundles[bundles[0].copy, :, bundles[0].position]
        return (
            labels,
            torch.cat([place, bundle, deaf]),
            torch.cat([slot, bundle_slot, bundle_slot]),
            torch.cat([speaks.float(), counts[:, 0], counts[:, 1]]),
            outward,
        )

    def _chords(
        self, shape: tuple[int, int, int, int, int], chords: tuple[_Pieces, Tensor], kept: Kept | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, sinks and relations of all chords that are left."""
        _, _, most, nodes, relations = shape
        (position, _, _, copy, _), begins = chords
        user = self.there.chord_users[position].long() + begins
        item = self.there.chord_items[position].long() + begins
        relation = self.there.chord_relations[position].long() + relations * copy
        ends = torch.stack([torch.cat([user, item]), torch.cat([item, user]), relation.repeat(2), copy.repeat(2)])
        if kept is not None:
            ends = ends[:, kept.chords[copy, :, position].T.flatten()]
        source, sink, relation, copy = ends
        return source + most * copy, sink + nodes * copy, relation
