"""Edges of a graph divided for link prediction: some to learn from, some hidden, and pairs that are no edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from headgate_lab.data.planetoid import Graph

Rules: TypeAlias = Literal["2021", "today"]
VALIDATION, TEST = 0.05, 0.10


class NonEdges:
    """Ordered pairs of different nodes that are not among `edges`, (2, E), and how to draw from them evenly."""

    def __init__(self, edges: Tensor, nodes: int) -> None:
        loops = torch.arange(nodes).expand(2, -1)
        first, second = torch.cat([edges, loops], dim=1)
        taken = (first * nodes + second).unique()
        # How many free keys lie before each taken one: the key of the r-th free pair is r and the taken before it.
        self.before = taken - torch.arange(len(taken))
        self.nodes, self.count = nodes, nodes * nodes - len(taken)

    def draw(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Pairs drawn with replacement, (2, *shape), in ascending order along the last axis."""
        return self.pairs(torch.randint(self.count, shape, generator=generator).sort(dim=-1).values)

    def pairs(self, ranks: Tensor) -> Tensor:
        """The pairs of these ranks, from 0 to `count` - 1, among all there are; (2, …)."""
        keys = ranks + torch.searchsorted(self.before, ranks, right=True)
        return torch.stack([keys // self.nodes, keys % self.nodes])


@dataclass(frozen=True)
class Hidden:
    """Edges that training does not see, and as many pairs that are no edges; both (2, n)."""

    edges: Tensor
    others: Tensor


@dataclass(frozen=True)
class LinkSplit:
    """A divided graph.

    Attributes:
        train: the edges to learn from, each once.
        validation: hidden edges to choose by.
        test: hidden edges for the exam.
        seen_in_test: the edges that the encoder sees when the exam is written.
        non_edges: what training draws its negative examples from; edges that are hidden are among them.
        draws: how many it draws in an epoch.
    """

    train: Tensor
    validation: Hidden
    test: Hidden
    seen_in_test: Tensor
    non_edges: NonEdges
    draws: int


def split(graph: Graph, rules: Rules, *, generator: torch.Generator) -> LinkSplit:
    """85 % of the edges to learn from, 5 % for validation, 10 % for the exam; `generator` decides which.

    Args:
        graph: what is divided.
        rules: "2021" are those of torch_geometric at the time of the paper (`train_test_split_edges`, `GAE`): an epoch
            draws twice the training edges and the nodes, from pairs that are no training edge in either direction; the
            exam is written with the training edges. "today" (`RandomLinkSplit`): one draw a training edge, from pairs
            that are no training edge as it is stored, so now and then an edge turned around; the exam is written with
            the validation's edges, too.
        generator: the only source of randomness.
    """
    edges = graph.edges[:, torch.randperm(graph.edges.shape[1], generator=generator)]
    validation, test = (int(edges.shape[1] * share) for share in (VALIDATION, TEST))
    parts = edges.split([validation, test, edges.shape[1] - validation - test], dim=1)
    others = _distinct(graph, validation + test, generator)
    train = parts[2]
    both_ways = torch.cat([train, train.flip(0)], dim=1)
    return LinkSplit(
        train,
        Hidden(parts[0], others[:, :validation]),
        Hidden(parts[1], others[:, validation:]),
        train if rules == "2021" else torch.cat([train, parts[0]], dim=1),
        NonEdges(both_ways if rules == "2021" else train, graph.nodes),
        both_ways.shape[1] + graph.nodes if rules == "2021" else train.shape[1],
    )


def _distinct(graph: Graph, count: int, generator: torch.Generator) -> Tensor:
    """Different unordered pairs that are no edges, in random order, the smaller node first."""
    free = NonEdges(torch.cat([graph.edges, graph.edges.flip(0)], dim=1), graph.nodes)
    found = torch.empty(0, dtype=torch.long)
    if 2 * count > free.count:
        raise ValueError(f"{graph.nodes} nodes have {free.count // 2} pairs without an edge, fewer than {count}")
    while len(found) < count:
        first, second = free.draw(2 * count, generator=generator)
        drawn = torch.minimum(first, second) * graph.nodes + torch.maximum(first, second)
        found = torch.cat([found, drawn]).unique()
    keys = found[torch.randperm(len(found), generator=generator)[:count]]
    return torch.stack([keys // graph.nodes, keys % graph.nodes])
