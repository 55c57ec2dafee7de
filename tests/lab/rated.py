"""Ratings small enough to be looked through by the plainest code, and subgraphs made of them by that code."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headgate_lab.data.batch_index import Kept
from headgate_lab.data.subgraphs import RatingGraph, Subgraphs


def random_ratings(users: int, items: int, relations: int, share: float = 0.3, seed: int = 0) -> RatingGraph:
    """A share of all pairs is rated."""
    generator = torch.Generator().manual_seed(seed)
    rated = torch.rand(users, items, generator=generator) < share
    who, what = rated.nonzero(as_tuple=True)
    order = torch.randperm(len(who), generator=generator)
    values = torch.randint(relations, (len(who),), generator=generator)
    return RatingGraph(who[order], what[order], values, users, items, relations)


@dataclass
class Plain:
    """One subgraph: labels of nodes, the first two of which are the targets, and directed edges with relations."""

    labels: list[int]
    edges: list[tuple[int, int, int]]


def plain_subgraph(graph: RatingGraph, user: int, item: int) -> Plain:
    """By the definition: all users of the item, all items of the user, all ratings between them but the pair's own."""
    triples = zip(graph.users.tolist(), graph.items.tolist(), graph.relations.tolist(), strict=True)
    ratings = {(who, what): relation for who, what, relation in triples}
    users = [user, *sorted(who for who, what in ratings if what == item and who != user)]
    items = [item, *sorted(what for who, what in ratings if who == user and what != item)]
    nodes = [("user", user), ("item", item), *(("user", u) for u in users[1:]), *(("item", i) for i in items[1:])]
    number = {node: place for place, node in enumerate(nodes)}
    labels = [0, 1] + [2] * (len(users) - 1) + [3] * (len(items) - 1)
    edges = []
    for (who, what), relation in ratings.items():
        if who in users and what in items and (who, what) != (user, item):
            left, right = number["user", who], number["item", what]
            edges += [(left, right, relation), (right, left, relation)]
    return Plain(labels, edges)


def plain_layer(
    states: Tensor, edges: list[tuple[int, int, int]], mix: Tensor, bases: Tensor, root: Tensor, bias: Tensor
) -> Tensor:
    """By the definition: a matrix for each edge."""
    found = states @ root + bias
    for source, sink, relation in edges:
        weight = torch.einsum("b,bio->io", mix[relation], bases)
        found = found.index_add(0, torch.tensor([sink]), (states[source] @ weight).unsqueeze(0))
    return found.tanh()


def dropped_subgraph(subgraphs: Subgraphs, kept: Kept, pair: int) -> Plain:
    """One subgraph with the edges that are left, every neighbour of a bundle as a node of its own."""
    labels, edges = [0, 1], []

    def joined(spoke: int, speaks: bool, hears: bool) -> None:
        node, (relation, is_user) = len(labels), divmod(spoke, 2)
        labels.append(2 if is_user else 3)
        ends = (node, 1 if is_user else 0, relation)
        edges.extend([ends] * speaks + [(ends[1], ends[0], ends[2])] * hears)

    first, count = int(subgraphs.first_crossing[pair]), int(subgraphs.crossing[pair])
    for place in range(first, first + count):
        joined(int(subgraphs.spokes[place]), *(bool(bit) for bit in kept.spokes[0, :, place]))
    first, count = int(subgraphs.first_chord[pair]), int(subgraphs.chords[pair])
    for place in range(first, first + count):
        user, item = 2 + int(subgraphs.chord_users[place]), 2 + int(subgraphs.chord_items[place])
        relation, (there, back) = int(subgraphs.chord_relations[place]), kept.chords[0, :, place]
        edges += [(user, item, relation)] * bool(there) + [(item, user, relation)] * bool(back)
    first, count = int(subgraphs.first_bundle[pair]), int(subgraphs.bundles[pair])
    for place in range(first, first + count):
        hearing, deaf = (int(number) for number in kept.bundles[0, :, place])
        for number in range(int(subgraphs.bundle_sizes[place])):
            joined(int(subgraphs.bundle_spokes[place]), number < hearing + deaf, number < hearing)
    return Plain(labels, edges)
