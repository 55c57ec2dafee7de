"""The ledger of units: which indices of which tensors must be removed together, and which must not be removed.

Every index along every axis of every parameter, buffer and tensor attribute gets a label, a number from 1 up. Rules
write two kinds of entries: two labels belong to the same unit, or a label must stay, and why. Units are the connected
components of the first kind. Nothing depends on the order of the entries, so they are only collected while a graph is
walked and solved at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headgate.channels.values import Origin

# Marks an index that belongs to no unit: a constant, an input, something that cannot be sliced.
NO_UNIT = 0


@dataclass(frozen=True)
class Obstacle:
    """Why something must stay: the module path, the operation, and the reason in words."""

    path: str
    operation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'root'}: {self.operation}: {self.reason}"


class Ledger:
    """Collects entries about labels; `solve` turns them into units."""

    def __init__(self) -> None:
        self._count = 1
        self._starts: dict[tuple[str, int], tuple[int, int]] = {}
        self._ties: list[Tensor] = []
        self._stays: list[tuple[Tensor, Obstacle | None]] = []
        self._read: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._branches: dict[str, Origin] = {}

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

    def read(self, labels: Tensor) -> None:
        """The tensor these labels belong to is summed along them: a mask on its slices silences a unit for good."""
        self._read.append(labels.reshape(-1))

    def add(self, labels: Tensor) -> None:
        """Two activations are added along these labels: the mark of a residual stream."""
        self._sums.append(labels.reshape(-1))

    def branch(self, origin: Origin) -> None:
        """A residual branch ends in this linear map before it is added to its shortcut."""
        self._branches.setdefault(origin.path, origin)

    def solve(self) -> Solution:
        """Units as connected components, with what stays and what is read."""
        roots = _components(self._count, self._ties)
        obstacles: dict[int, list[Obstacle]] = {}
        fixed = torch.zeros(self._count, dtype=torch.bool)
        fixed[NO_UNIT] = True
        for labels, obstacle in self._stays:
            touched = roots[labels].unique()
            fixed[touched] = True
            if obstacle is not None:
                for root in touched.tolist():
                    known = obstacles.setdefault(root, [])
                    if obstacle not in known:
                        known.append(obstacle)
        axes = {key: roots[start : start + size] for key, (start, size) in self._starts.items()}
        read = torch.zeros(self._count, dtype=torch.bool)
        for labels in self._read:
            read[labels] = True
        readers = {key for key, (start, size) in self._starts.items() if bool(read[start : start + size].any())}
        sums = {root for labels in self._sums for root in roots[labels].unique().tolist()} - {NO_UNIT}
        return Solution(
            roots, axes, fixed, obstacles, frozenset(readers), frozenset(sums), tuple(self._branches.values())
        )


@dataclass(frozen=True)
class Solution:
    """Solved entries: for every axis the unit of each index (one numbering for all), and what is known of units."""

    roots: Tensor
    axes: dict[tuple[str, int], Tensor]
    fixed: Tensor
    obstacles: dict[int, list[Obstacle]]
    readers: frozenset[tuple[str, int]]
    sums: frozenset[int]
    branches: tuple[Origin, ...]


def _components(count: int, ties: list[Tensor]) -> Tensor:
    """The smallest label of each label's component: neighbours' minimum, then pointer jumping, until stable."""
    roots = torch.arange(count)
    if not ties:
        return roots
    left, right = torch.cat(ties, dim=1)
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
