"""Where everything lies in a batch of subgraphs: index arithmetic on tensors, whoever makes the batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from headgate_lab.data.subgraphs import Subgraphs


class Kept(NamedTuple):
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
        return Kept(*(part[copy : copy + 1] for part in self))


@dataclass(frozen=True)
class Batch:
    """Subgraphs of `pairs` pairs for each of `copies` networks; all numbers count on from copy to copy.

    Targets are numbered (copy, users then items, pair), nodes around them (copy, place): the crossing neighbours,
    filled up to `crossing`, the bundles, filled up, an item that hears nothing, a user that hears nothing. What fills
    up is heard by no target. A slot is (copy, relation, target).

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

    @cached_property
    def chord_rows(self) -> Tensor:
        """Where each chord reads in a table of (crossing neighbour, relation); all layers read it, both ways."""
        relations = self.relations if self.copies == 1 else self.relations % self.relation_count
        return self.sources * self.relation_count + relations


class Shape(NamedTuple):
    """The numbers of a `Batch`."""

    copies: int
    pairs: int
    crossing: int
    nodes: int
    relations: int


class Entries(NamedTuple):
    """Entries of `Subgraphs` that a batch needs.

    Attributes:
        position: where they are there.
        copy: for which network.
        slot: the first slot of their pair.
        begin: the number that the first entry of the same pair has in the batch.
        place: their own number in it.
    """

    position: Tensor
    copy: Tensor
    slot: Tensor
    begin: Tensor
    place: Tensor


def around(
    shape: Shape, spokes: Entries, bundles: Entries, there: Subgraphs, kept: Kept | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Labels; nodes that targets hear, in which slots, how many of each; slots that nodes hear."""
    none, device = 2 * shape.copies * shape.pairs * shape.relations, spokes.place.device
    slot, is_user = _slots(shape, spokes, there.spokes)
    bundle_slot, users_bundled = _slots(shape, bundles, there.bundle_spokes)
    places = torch.cat([spokes.place, bundles.place])
    labels = torch.full((shape.copies, shape.nodes), 3, device=device)
    labels[:, -1].fill_(2)
    labels.view(-1)[places] = 3 - torch.cat([is_user, users_bundled])
    outward = torch.full((shape.copies * shape.nodes,), none, device=device)
    outward[bundles.place] = bundle_slot
    if kept is None:
        outward[spokes.place] = slot
        sizes = there.bundle_sizes[bundles.position].float()
        return labels, places, torch.cat([slot, bundle_slot]), torch.cat([_ones(slot), sizes]), outward
    speaks, hears = kept.spokes[spokes.copy, :, spokes.position].unbind(1)
    outward[spokes.place] = torch.where(hears, slot, none)
    hearing, deaf = kept.bundles[bundles.copy, :, bundles.position].unbind(1)
    deaf_nodes = torch.add(users_bundled + (shape.nodes - 2), bundles.copy, alpha=shape.nodes)
    weights = torch.cat([speaks.float(), hearing, deaf])
    return labels, torch.cat([places, deaf_nodes]), torch.cat([slot, bundle_slot, bundle_slot]), weights, outward


def chord_ends(shape: Shape, chords: Entries, there: Subgraphs) -> Tensor:
    """Of all chords, from user to item and then back: source and sink in their copy, relation, copy."""
    position, copy = chords.position, chords.copy
    user = there.chord_users[position].long() + chords.begin
    item = there.chord_items[position].long() + chords.begin
    relation = torch.add(there.chord_relations[position].long(), copy, alpha=shape.relations)
    return torch.cat([user, item, item, user, relation, relation, copy, copy]).view(4, -1)


def chords_kept(chords: Entries, kept: Kept) -> Tensor:
    """Which of them are left, in the order of `chord_ends`."""
    return kept.chords[chords.copy, :, chords.position].T.flatten()


def in_the_batch(shape: Shape, ends: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, sinks and relations of a `Batch`, of such ends."""
    source, sink, relation, copy = ends
    return torch.add(source, copy, alpha=shape.crossing), torch.add(sink, copy, alpha=shape.nodes), relation


def first_slots(shape: Shape, copy: Tensor, pair: Tensor) -> Tensor:
    """Of these pairs of these copies."""
    return 2 * shape.relations * shape.pairs * copy + pair


def _slots(shape: Shape, entries: Entries, spokes: Tensor) -> tuple[Tensor, Tensor]:
    """The slot of each spoke, and 1 where it is a user's: those are joined with target items, which come second."""
    spoke = spokes[entries.position].long()
    return torch.add(entries.slot, spoke, alpha=shape.pairs), spoke & 1


def _ones(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.float32)
