"""Axes that are taken apart and put together: a channel of a merged axis stays if and only if all its factors stay.

A view of 64 channels as 4 heads of 16 makes two axes with labels of their own, and channel 17 of the 64 is head 1 *and*
place 1. Such entries (a label, its factors) are collected while graphs are walked, and settled here: into plain ties
and stays, so that in the end every channel belongs to one unit, or to a head and a place that both can go.

Of the axes that a view makes of one, the last is the one that shrinks (a fixed number of parts, however wide), unless
it must stay, as the places of a head must when queries meet keys: then the one before it does, and whole heads go.
Where heads go, the places of those that have some to spare, as values have, may go too: one place of every head.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

# Why the other axes of a view stay where one was chosen.
ONE_SHRINKS = "merges axes of channels or takes one apart; of those only one can shrink, and another one does"


@dataclass
class Factors:
    """Collected entries, each with its number: `labels` stay iff all of their `parts` (one row each) do.

    `splits` has, by number, the labels of each axis that a view made of one.
    """

    labels: list[Tensor] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    splits: dict[int, list[Tensor]] = field(default_factory=dict)

    def product(self, labels: Tensor, parts: Tensor) -> int:
        """Notes the factors of some labels; returns the number of the entry."""
        self.labels.append(labels)
        self.parts.append(parts)
        return len(self.labels) - 1

    def together(self) -> tuple[Tensor, Tensor]:
        """The labels of all entries, and one row of factors for each, filled up with 0; there must be some."""
        width = max(parts.shape[1] for parts in self.parts)
        parts = [torch.nn.functional.pad(rows, (0, width - rows.shape[1])) for rows in self.parts]
        return torch.cat(self.labels), torch.cat(parts)

    def settled(self, roots: Tensor, fixed: Tensor, components: Components, inner: Tensor) -> Settled:
        """What follows from the entries, given what plain ties and stays say.

        `inner` are labels along which activations are multiplied with each other, as queries and keys are.
        """
        return _Settling(self, roots, fixed, components, inner).run()


class Components:
    """Connected components under ties that keep coming."""

    def __init__(self, count: int, ties: list[Tensor]) -> None:
        self._count = count
        self.ties = list(ties)

    def tie(self, left: Tensor, right: Tensor) -> None:
        """One more."""
        if left.numel():
            self.ties.append(torch.stack([left, right]))

    def roots(self) -> Tensor:
        """The smallest label of each label's component: neighbours' minimum, then pointer jumping, until stable."""
        roots = torch.arange(self._count)
        if not self.ties:
            return roots
        left, right = torch.cat(self.ties, dim=1)
        while True:
            smaller = torch.minimum(roots[left], roots[right])
            before = roots
            roots = roots.clone()
            # Hook the roots themselves, not only the labels, so that whole trees move at once.
            for ends in (left, right):
                roots.scatter_reduce_(0, before[ends], smaller, "amin")
            while not torch.equal(jumped := roots[roots], roots):
                roots = jumped
            if torch.equal(roots, before):
                return roots


@dataclass(frozen=True)
class Settled:
    """The final components, and pairs: a label that stays, and the label because of which it does.

    Below 0: not because of a label but by the choice of one axis in an entry, -1 for the first. `products` are the
    labels, by their root, that stay iff a head and a place do, by theirs.
    """

    roots: Tensor
    stays: Tensor
    because: Tensor
    products: dict[int, tuple[int, ...]]


class _Settling:
    """Adds ties and stays until every label with factors is tied to the only one that can go, or stays.

    The exception are labels of a head and a place that both can go: these are tied to neither.
    """

    def __init__(self, entries: Factors, roots: Tensor, fixed: Tensor, components: Components, inner: Tensor) -> None:
        self._labels, self._parts = entries.together()
        lengths = torch.tensor([len(labels) for labels in entries.labels])
        self._numbers = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self._splits = entries.splits
        self._components, self._roots, self._fixed, self._inner = components, roots, fixed, inner
        self._stays: list[tuple[Tensor, Tensor]] = []

    def run(self) -> Settled:
        while self._pass_down() or self._pass_up():
            pass
        heads, places = self._choose_axes()
        while (
            self._pass_down()
            or self._pass_up()
            or self._follow()
            or self._merge()
            or self._choose_factor(heads, places)
        ):
            pass
        stays, because = (torch.cat([pair[side] for pair in self._stays]) for side in (0, 1))
        return Settled(self._roots, stays, because, self._products(heads))

    def _stay(self, labels: Tensor, because: Tensor) -> bool:
        fresh = ~self._fixed[self._roots[labels]]
        self._stays.append((labels[fresh], because.expand(labels.shape)[fresh]))
        self._fixed[self._roots[labels]] = True
        return bool(fresh.any())

    def _tie(self, left: Tensor, right: Tensor) -> bool:
        apart = self._roots[left] != self._roots[right]
        if not bool(apart.any()):
            return False
        self._components.tie(left[apart], right[apart])
        fixed = self._fixed.clone()
        self._roots = self._components.roots()
        self._fixed = torch.zeros_like(fixed)
        self._fixed[self._roots[fixed.nonzero().squeeze(1)]] = True
        return True

    @property
    def _free(self) -> Tensor:
        """Which factors could still go."""
        return ~self._fixed[self._roots[self._parts]]

    def _pass_down(self) -> bool:
        """If a label stays, so do all its factors."""
        rows, columns = (self._fixed[self._roots[self._labels]].unsqueeze(1) & self._free).nonzero(as_tuple=True)
        return self._stay(self._parts[rows, columns], self._labels[rows])

    def _choose_axes(self) -> tuple[Tensor, Tensor]:
        """Of every split the axes before the last stay, unless that must stay or is summed over: returns who may go.

        What may go by itself may also go by its factors, as the heads of keys that queries share. Besides these heads
        their places are returned.
        """
        allowed, of_heads = torch.zeros_like(self._fixed), self._fixed | self._marked(self._inner)
        for *leading, last in self._splits.values():
            inner = of_heads[self._roots[last]]
            # Where queries and keys share an axis with values, only some of the last must stay.
            some = bool(inner.any()) and not bool(self._fixed[self._roots[torch.cat(leading)]].any())
            if some or bool(inner.all()):
                for labels in leading:
                    allowed[self._roots[labels]] = True
        self._spread(allowed)
        heads, places = [self._labels[:0]], [self._labels[:0]]
        for number, (*leading, last) in self._splits.items():
            leads = torch.cat(leading)
            may_go = allowed[self._roots[leads]]
            self._stay(leads[~may_go], torch.tensor([-1 - number]))
            heads.append(leads[may_go])
            places += [last] if bool(may_go.any()) else []
        return torch.cat(heads), torch.cat(places)

    def _spread(self, allowed: Tensor) -> None:
        """Marks the factors of what is marked, and merged axes of which all that is free is marked."""
        merged = ~torch.isin(self._numbers, torch.tensor(list(self._splits), dtype=torch.int64))
        labels, parts, free = self._roots[self._labels], self._roots[self._parts], self._free
        before = -1
        while before != (before := int(allowed.sum())):
            allowed[parts[allowed[labels]].reshape(-1)] = True
            allowed[labels[merged & free.any(1) & (allowed[parts] | ~free).all(1)]] = True

    def _pass_up(self) -> bool:
        """A label all of whose factors stay must stay."""
        none = (~self._free.any(1) & ~self._fixed[self._roots[self._labels]]).nonzero().squeeze(1)
        labels = self._labels[none]
        self._stays += [(labels, parts) for parts in self._parts[none].unbind(1)]
        return self._stay(labels, labels)

    def _first(self, free: Tensor) -> Tensor:
        """The first factor of every label that can go (any, if none can), as a column."""
        return self._parts.gather(1, free.to(torch.int64).argmax(1, keepdim=True))

    def _several(self, free: Tensor) -> Tensor:
        """The rows with more than one unit among the factors that can go."""
        return (free & (self._roots[self._parts] != self._roots[self._first(free)])).any(1)

    def _follow(self) -> bool:
        """A label with a single factor that can go, goes with it."""
        free = self._free
        one = free.any(1) & ~self._several(free)
        return self._tie(self._labels[one], self._first(free)[one].squeeze(1))

    def _merge(self) -> bool:
        """A label that is tied to one of its factors: the others stay. Two products that are tied: factor by factor."""
        free = self._free
        rows = self._several(free).nonzero().squeeze(1)
        if not len(rows):
            return False
        own = self._roots[self._labels[rows]]
        roots, free = self._roots[self._parts[rows]], free[rows]
        itself = (roots == own.unsqueeze(1)) & free
        absorbed, columns = (itself.any(1, keepdim=True) & free & ~itself).nonzero(as_tuple=True)
        if self._stay(self._parts[rows[absorbed], columns], self._labels[rows[absorbed]]):
            return True
        return self._merge_tied(rows, own, free)

    def _merge_tied(self, rows: Tensor, own: Tensor, free: Tensor) -> bool:
        order = own.argsort(stable=True)
        rows, own, free = rows[order], own[order], free[order]
        starts = torch.cat([torch.ones(1, dtype=torch.bool), own.diff() != 0])
        first = starts.nonzero().squeeze(1)[starts.cumsum(0) - 1]
        # Factors that stay do not count: the others move to the front.
        front = (~free).to(torch.int64).argsort(dim=1, stable=True)
        parts = torch.where(free.gather(1, front), self._parts[rows].gather(1, front), 0)
        like = ((parts > 0) == (parts[first] > 0)).all(1)
        unlike = torch.cat([parts[~like], parts[first[~like]]])
        numbers = self._numbers[rows[~like]].repeat(2).unsqueeze(1).expand(unlike.shape)
        if self._stay(unlike[unlike > 0], -1 - numbers[unlike > 0]):
            return True
        pairs = like.unsqueeze(1) & (parts > 0)
        return self._tie(parts[pairs], parts[first][pairs])

    def _marked(self, labels: Tensor) -> Tensor:
        """Which roots these labels have."""
        marked = torch.zeros_like(self._fixed)
        marked[self._roots[labels]] = True
        return marked

    def _choose_factor(self, heads: Tensor, places: Tensor) -> bool:
        """Where several factors could go, only one of them does: heads before others, the last axis before others.

        With a head its places may go too.
        """
        head = self._marked(heads)
        roots, free = self._roots[self._parts], self._free
        with_heads = (free & head[roots]).any(1, keepdim=True)
        free &= ~(with_heads & (self._marked(places) & ~head)[roots])
        rows = self._several(free).nonzero().squeeze(1)
        if not len(rows):
            return False
        candidates = free[rows] & head[roots[rows]]
        # Heads are sure. Else only one entry at a time, since what follows from it may settle the others.
        now = candidates.any(1)
        if not bool(now.any()):
            candidates, now = free[rows], self._numbers[rows] == self._numbers[rows[0]]
        rows, candidates = rows[now], candidates[now]
        last = candidates.shape[1] - 1 - candidates.flip(1).to(torch.int64).argmax(1, keepdim=True)
        others = free[rows] & (roots[rows] != roots[rows].gather(1, last))
        return self._stay(self._parts[rows][others], (-1 - self._numbers[rows]).unsqueeze(1).expand_as(others)[others])

    def _products(self, heads: Tensor) -> dict[int, tuple[int, ...]]:
        """The labels with several factors that can go, heads first; those that are products themselves written out."""
        free, head = self._free, {*self._roots[heads].tolist()}
        rows = self._several(free)
        parts = torch.where(free, self._roots[self._parts], 0)[rows].tolist()
        labels = self._roots[self._labels[rows]].tolist()
        found = {label: [part for part in own if part] for label, own in zip(labels, parts, strict=True)}

        def atoms(root: int) -> list[int]:
            return [atom for one in found[root] for atom in atoms(one)] if root in found else [root]

        return {root: tuple(sorted(dict.fromkeys(atoms(root)), key=lambda one: one not in head)) for root in found}
