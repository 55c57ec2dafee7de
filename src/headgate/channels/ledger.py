"""The ledger of units: which indices of which tensors must be removed together, and which must not be removed.

Every index along every axis of every parameter, buffer and tensor attribute gets a label, a number from 1 up. Rules
write three kinds of entries: two labels belong to the same unit; a label must stay, and why; a label stays if and only
if some others, its factors, all stay (`headgate.channels.factors`). Units are the connected components of the first
kind. Nothing depends on the order of the entries, so they are only collected while a graph is walked and solved at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headgate.channels.factors import ONE_SHRINKS, Components, Factors
from headgate.channels.held import Found, Held, held_back
from headgate.channels.obstacle import Obstacle
from headgate.channels.values import Origin

# Marks an index that belongs to no unit: a constant, an input, something that cannot be sliced.
NO_UNIT = 0


class Ledger:
    """Collects entries about labels; `solve` turns them into units."""

    def __init__(self) -> None:
        self._count = 1
        self._starts: dict[tuple[str, int], tuple[int, int]] = {}
        self._ties: list[Tensor] = []
        self._stays: list[tuple[Tensor, Obstacle | None]] = []
        self._read: list[Tensor] = []
        self._silenced: list[tuple[Tensor, tuple[tuple[str, int], ...], Obstacle]] = []
        self._heads: dict[str, list[Tensor]] = {}
        self._sums: list[Tensor] = []
        self._branches: dict[str, Origin] = {}
        self._factors = Factors()
        self._choices: list[Obstacle] = []
        self._made: dict[tuple[bytes, tuple[int, ...]], tuple[Tensor, ...]] = {}

    def labels(self, name: str, axis: int, size: int) -> Tensor:
        """The labels of one axis of a named tensor, the same ones at every call."""
        if (name, axis) not in self._starts:
            self._starts[name, axis] = (self._count, size)
            self._count += size
        start, size = self._starts[name, axis]
        return torch.arange(start, start + size)

    def owns(self, name: str, labels: Tensor) -> bool:
        """Whether all these labels lie on axes of the named tensor."""
        ranges = [(start, start + size) for (owner, _), (start, size) in self._starts.items() if owner == name]
        return all(any(start <= int(label) < stop for start, stop in ranges) for label in labels.aminmax())

    def join(self, left: Tensor, right: Tensor, obstacle: Obstacle) -> None:
        """Ties labels pairwise (broadcasting); a label opposite no unit must stay, for the reason given."""
        left, right = torch.broadcast_tensors(left, right)
        pairs = torch.stack([left.reshape(-1), right.reshape(-1)])
        lonely = (pairs == NO_UNIT).any(0)
        self.stay(pairs[:, lonely], obstacle)
        pairs = pairs[:, ~lonely & (pairs[0] != pairs[1])]
        if pairs.numel():
            self._ties.append(pairs)

    def stay(self, labels: Tensor, obstacle: Obstacle | None) -> None:
        """These labels must not be removed. Without an obstacle it goes without saying (a kernel's height, say)."""
        labels = labels[labels != NO_UNIT]
        if labels.numel():
            self._stays.append((labels.reshape(-1), obstacle))

    def split(self, labels: Tensor, where: tuple[str, str]) -> tuple[Tensor, ...]:
        """Labels of the axes that an axis was taken apart into: what lies at (i, j, …) stays iff i, j, … all stay.

        `labels` has one axis for each; slices that are the same get the same label. `where` is path and operation.
        """
        key = (labels.numpy().tobytes(), tuple(labels.shape))
        if key not in self._made:
            axes = []
            for dim in range(labels.dim()):
                slices, places = labels.movedim(dim, 0).flatten(1).unique(dim=0, return_inverse=True)
                axes.append(self._new(len(slices))[places])
            grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
            flat = labels.reshape(-1)
            number = self._factored(flat[flat != NO_UNIT], grid[flat != NO_UNIT], where)
            self._factors.splits[number] = [axis.unique() for axis in axes]
            self.stay(grid[flat == NO_UNIT], Obstacle(*where, "splits it off from a channel that must stay"))
            self._made[key] = tuple(axes)
        return self._made[key]

    def product(self, factors: Tensor, where: tuple[str, str]) -> Tensor:
        """Labels of what stays iff all its factors stay, which lie along the last axis; equal ones get equal labels."""
        rows, places = factors.reshape(-1, factors.shape[-1]).unique(dim=0, return_inverse=True)
        key = (rows.numpy().tobytes(), tuple(rows.shape))
        if key not in self._made:
            labels = self._new(len(rows))
            self._factored(labels, rows, where)
            self._made[key] = (labels,)
        return self._made[key][0][places].reshape(factors.shape[:-1])

    def _factored(self, labels: Tensor, factors: Tensor, where: tuple[str, str]) -> int:
        self._choices.append(Obstacle(*where, ONE_SHRINKS))
        return self._factors.product(labels, factors)

    def _new(self, count: int) -> Tensor:
        """Labels on no tensor's axis."""
        self._count += count
        return torch.arange(self._count - count, self._count)

    def read(self, labels: Tensor) -> None:
        """The tensor these labels belong to is summed along them: a mask on its slices silences a unit for good."""
        self._read.append(labels.reshape(-1))

    def silence(self, labels: Tensor, rows: tuple[tuple[str, int], ...], obstacle: Obstacle) -> None:
        """Activations are multiplied and summed along these labels; a mask on the rows that wrote one silences them.

        The obstacle is told of labels that those rows do not carry.
        """
        self._silenced.append((labels.reshape(-1), rows, obstacle))

    def heads(self, labels: Tensor, path: str) -> None:
        """Two activations that the module at `path` multiplies share the axis of these labels: heads, as a rule."""
        self._heads.setdefault(path, []).append(labels[labels != NO_UNIT].reshape(-1))

    def add(self, labels: Tensor) -> None:
        """Two activations are added along these labels: the mark of a residual stream."""
        self._sums.append(labels.reshape(-1))

    def branch(self, origin: Origin) -> None:
        """A residual branch ends in this linear map before it is added to its shortcut."""
        self._branches.setdefault(origin.path, origin)

    def solve(self) -> Solution:
        """Units as connected components, with what stays and what is read."""
        components = Components(self._count, self._ties)
        roots = tied = components.roots()
        fixed = self._fixed(roots)
        causes: tuple[Tensor, Tensor] | None = None
        products: dict[int, tuple[int, ...]] = {}
        if self._factors.labels:
            inner = torch.cat([labels for labels, *_ in self._silenced] or [torch.zeros(0, dtype=torch.int64)])
            settled = self._factors.settled(roots, fixed, components, inner)
            roots, causes, products = settled.roots, (settled.stays, settled.because), settled.products
            fixed = self._fixed(roots)
            fixed[roots[settled.stays]] = True
        axes = {key: roots[start : start + size] for key, (start, size) in self._starts.items()}
        read = torch.zeros(self._count, dtype=torch.bool)
        for labels in self._read:
            read[labels] = True
        readers = {key for key, (start, size) in self._starts.items() if bool(read[start : start + size].any())}
        sums = {root for labels in self._sums for root in roots[labels].unique().tolist()} - {NO_UNIT}
        obstacles = self._obstacles(roots, causes)
        silenced: dict[int, frozenset[tuple[str, int]]] = {}
        for labels, rows, obstacle in self._silenced:
            for root in roots[labels].unique().tolist():
                silenced[root] = silenced.get(root, frozenset()).union(rows)
                obstacles.setdefault(root, [obstacle])
        found = Found(tied, roots, fixed, obstacles)
        return Solution(
            roots,
            axes,
            fixed,
            obstacles,
            frozenset(readers),
            frozenset(sums),
            tuple(self._branches.values()),
            products,
            silenced,
            held_back(self._factors, self._heads, found, self._starts),
        )

    def _fixed(self, roots: Tensor) -> Tensor:
        fixed = torch.zeros(self._count, dtype=torch.bool)
        fixed[NO_UNIT] = True
        for labels, _ in self._stays:
            fixed[roots[labels]] = True
        return fixed

    def _obstacles(self, roots: Tensor, causes: tuple[Tensor, Tensor] | None) -> dict[int, list[Obstacle]]:
        """Why units stay; what stays only because another does has that one's reasons, and choices are the last."""
        found: dict[int, list[Obstacle]] = {}
        for labels, obstacle in self._stays:
            if obstacle is not None:
                for root in roots[labels].unique().tolist():
                    if obstacle not in (known := found.setdefault(root, [])):
                        known.append(obstacle)
        if causes is not None:
            because = torch.where(causes[1] < 0, causes[1], roots[causes[1].clamp_min(0)])
            for root, cause in dict.fromkeys(zip(roots[causes[0]].tolist(), because.tolist(), strict=True)):
                known = found.get(root, [])
                reasons = [self._choices[-1 - cause]] if cause < 0 else found.get(cause, [])
                if new := [obstacle for obstacle in reasons if obstacle not in known]:
                    found[root] = known + new
        choices = set(self._choices)
        return {root: [why for why in known if why not in choices] or known for root, known in found.items()}


@dataclass(frozen=True)
class Solution:
    """Solved entries: for every axis the unit of each index (one numbering for all), and what is known of units.

    A unit in `products` is none by itself: it goes where one of those given there goes, a head or a place. Units in
    `silenced` are those that a mask along the rows given there silences, besides one along the readers. `held` are
    heads or places that stay where the others go.
    """

    roots: Tensor
    axes: dict[tuple[str, int], Tensor]
    fixed: Tensor
    obstacles: dict[int, list[Obstacle]]
    readers: frozenset[tuple[str, int]]
    sums: frozenset[int]
    branches: tuple[Origin, ...]
    products: dict[int, tuple[int, ...]] = field(default_factory=dict)
    silenced: dict[int, frozenset[tuple[str, int]]] = field(default_factory=dict)
    held: tuple[Held, ...] = ()

    def masked(self, unit: int, axes: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """Those of its axes along which a mask silences a unit."""
        return axes & (self.readers | self.silenced.get(unit, frozenset()))
