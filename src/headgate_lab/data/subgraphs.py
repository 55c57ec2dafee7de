"""The ratings around a pair: the subgraph that a graph network sees when it predicts how a user rates an item.

Its nodes are the two targets, user and item, their neighbours (every other user of the item, every other item of the
user), and all ratings between these are its edges, but for the rating to be predicted. So each neighbour has exactly
one edge with a target, its *spoke*; every other edge joins two neighbours: a *chord*. Neighbours with chords are
*crossing*. The others, most of them, are told apart by nothing but their spoke: those of one kind and one relation are
kept as one *bundle* and its size. Subgraphs are kept flat, one after the other, extracted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headgate_lab.data.places import DataError
from headgate_lab.data.ragged import ragged

# Pairs of neighbours looked at in one go: what fits into caches is faster, and memory stays small.
AT_ONCE = 1 << 20
MOST_CELLS = 1 << 31


@dataclass(frozen=True)
class RatingGraph:
    """Who rated what, as which relation: the rank of the rating among all that occur.

    Attributes:
        users: of each rating, its user.
        items: its item.
        relations: its relation, a whole number below `relation_count`.
    """

    users: Tensor
    items: Tensor
    relations: Tensor
    user_count: int
    item_count: int
    relation_count: int


@dataclass(frozen=True)
class Subgraphs:
    """Subgraphs of pairs, flat. What follows is a number for each pair, then one for each spoke, bundle or chord.

    Attributes:
        relation_count: how many relations there are.
        crossing: how many crossing neighbours a pair has; `first_crossing`, where they begin.
        bundles: how many bundles; `first_bundle`, where they begin.
        chords: how many chords; `first_chord`, where they begin.
        spokes: of every crossing neighbour, twice its relation to its target, plus 1 if it is a user.
        bundle_spokes: likewise of every bundle; `bundle_sizes`, how many neighbours it is.
        chord_users: of every chord, its user's place among the crossing neighbours of the pair; `chord_items` likewise.
        chord_relations: its relation.
    """

    relation_count: int
    crossing: Tensor
    first_crossing: Tensor
    bundles: Tensor
    first_bundle: Tensor
    chords: Tensor
    first_chord: Tensor
    spokes: Tensor
    bundle_spokes: Tensor
    bundle_sizes: Tensor
    chord_users: Tensor
    chord_items: Tensor
    chord_relations: Tensor

    def __len__(self) -> int:
        return len(self.crossing)


def enclosing(graph: RatingGraph, users: Tensor, items: Tensor, *, most: int | None = None, seed: int = 0) -> Subgraphs:
    """The subgraphs of these pairs. Users and items outside of the graph have no neighbours.

    Args:
        graph: the ratings that may be seen. Where a pair is among them, its own rating is not.
        users: of the pairs, shape (pairs,).
        items: likewise.
        most: how many neighbours of either kind a pair may have; of more, some are drawn. None: all.
        seed: of what is drawn.

    Raises:
        DataError: there are too many users and items for a table of all pairs.
    """
    table = _Table(graph)
    generator = torch.Generator().manual_seed(seed)
    parts = [_extract(table, users[chosen], items[chosen], most, generator) for chosen in table.pieces(users, items)]
    return Subgraphs(graph.relation_count, *(torch.cat(column) for column in _columns(parts)))


class _Table:
    """A rating graph from both sides, and as a matrix of relations plus one, 0 where there is no rating."""

    def __init__(self, graph: RatingGraph) -> None:
        if (cells := graph.user_count * graph.item_count) > MOST_CELLS:
            raise DataError(
                f"{graph.user_count:,} users times {graph.item_count:,} items are {cells:,} pairs, more than the "
                f"{MOST_CELLS:,} that fit; leave out users and items with few ratings"
            )
        kind = torch.uint8 if graph.relation_count < 256 else torch.int32
        self.items_of = _Rows(graph.users, graph.items, graph.user_count)
        self.users_of = _Rows(graph.items, graph.users, graph.item_count)
        self.width, self.relation_count = graph.item_count, graph.relation_count
        self.relations = torch.zeros(graph.user_count * graph.item_count, dtype=kind)
        self.relations[graph.users * self.width + graph.items] = (graph.relations + 1).to(kind)

    def relation(self, users: Tensor, items: Tensor) -> Tensor:
        """Of ratings that are there."""
        return self.relations[users * self.width + items].long() - 1

    def pieces(self, users: Tensor, items: Tensor) -> Iterator[slice]:
        """Runs of pairs with about `AT_ONCE` pairs of neighbours each."""
        work = (self.items_of.counts[users] * self.users_of.counts[items] + 1).cumsum(0)
        begin = 0
        while begin < len(users):
            done = int(work[begin - 1]) if begin else 0
            end = max(begin + 1, int(torch.searchsorted(work, done + AT_ONCE)))
            yield slice(begin, end)
            begin = end


class _Rows:
    """For each row, the columns that have a rating with it."""

    def __init__(self, rows: Tensor, columns: Tensor, count: int) -> None:
        order = torch.argsort(rows * (int(columns.max()) + 1 if len(columns) else 1) + columns)
        self.columns = columns[order]
        # One more, empty, for whoever is not in the graph.
        self.counts = torch.bincount(rows, minlength=count + 1)
        self.begins = self.counts.cumsum(0) - self.counts

    def of(self, rows: Tensor, but: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of each of these rows without one of them, as (number of the row in the list, column)."""
        owner, inside = ragged(self.counts[rows])
        columns = self.columns[self.begins[rows][owner] + inside]
        other = columns != but[owner]
        return owner[other], columns[other]


def _extract(
    table: _Table, users: Tensor, items: Tensor, most: int | None, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """The columns of `Subgraphs` for some pairs, without those that say where something begins."""
    user_pair, user = _drawn(*table.users_of.of(items, but=users), most, generator)
    item_pair, item = _drawn(*table.items_of.of(users, but=items), most, generator)
    left, right, chord_relations = _chords(table, user_pair, user, item_pair, item, len(users))
    # Users first, then items.
    pair = torch.cat([user_pair, item_pair])
    of_users = table.relation(user, items[user_pair]) + table.relation_count
    spokes = torch.cat([of_users, table.relation(users[item_pair], item)])
    crosses = torch.zeros(len(pair), dtype=torch.bool)
    crosses[left] = crosses[len(user) + right] = True
    crossing, chords = (torch.bincount(owner, minlength=len(users)) for owner in (pair[crosses], user_pair[left]))
    order = crosses.nonzero().squeeze(1)
    order = order[torch.argsort(pair[order], stable=True)]
    place = torch.zeros_like(pair)
    place[order] = ragged(crossing)[1]
    kinds = 2 * table.relation_count
    bundle, sizes = (pair * kinds + spokes)[~crosses].unique(return_counts=True)
    return (
        crossing,
        torch.bincount(bundle // kinds, minlength=len(users)),
        chords,
        _doubled(spokes[order], table.relation_count),
        _doubled(bundle % kinds, table.relation_count),
        sizes.to(torch.int32),
        place[left].to(_smallest(len(user))),
        place[len(user) + right].to(_smallest(len(item))),
        chord_relations.to(_smallest(kinds)),
    )


def _doubled(spokes: Tensor, relations: int) -> Tensor:
    """From all relations of items, then all of users, to each relation of an item and then of a user."""
    return (2 * (spokes % relations) + spokes // relations).to(_smallest(2 * relations))


def _columns(parts: list[tuple[Tensor, ...]]) -> Iterator[list[Tensor]]:
    """The columns of `Subgraphs`, part by part."""
    for number, column in enumerate(zip(*parts, strict=True)):
        yield list(column)
        if number < 3:
            whole = torch.cat(column)
            yield [whole.cumsum(0) - whole]


def _chords(
    table: _Table, user_pair: Tensor, user: Tensor, item_pair: Tensor, item: Tensor, pairs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ratings between neighbours of the same pair: places in `user` and in `item`, and relations."""
    counts = torch.bincount(item_pair, minlength=pairs)
    left, inside = ragged(counts[user_pair])
    right = (counts.cumsum(0) - counts)[user_pair][left] + inside
    found = table.relations[user[left] * table.width + item[right]]
    there = found.nonzero().squeeze(1)
    return left[there], right[there], found[there].long() - 1


def _drawn(pair: Tensor, neighbour: Tensor, most: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most so many neighbours of each pair, in their order."""
    if most is None or not len(pair):
        return pair, neighbour
    shuffled = torch.randperm(len(pair), generator=generator)
    shuffled = shuffled[torch.argsort(pair[shuffled], stable=True)]
    counts = torch.bincount(pair)
    _, rank = ragged(counts)
    kept = shuffled[rank < most].sort().values
    return pair[kept], neighbour[kept]


def _smallest(below: int) -> torch.dtype:
    """The smallest type of whole numbers: millions of them are kept."""
    return torch.uint8 if below <= 256 else torch.int16 if below < 1 << 15 else torch.int32
