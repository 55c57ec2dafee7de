"""Graph autoencoders on one divided graph, trained as one batched run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

import headgate as hg
from headgate_lab.data.links import Hidden, Rules, split
from headgate_lab.data.planetoid import Graph
from headgate_lab.engine.sparse import Pairs, SparseMatrix, sorted_pairs
from headgate_lab.engine.stacked import Rates, Stack
from headgate_lab.models.graph_autoencoder import GraphEncoder, Matrix, normalised_adjacency

SPLIT, WEIGHTS, DRAWS = 0, 1, 2


def generator_of(seed: int, purpose: int) -> torch.Generator:
    """What decides a split, first weights, or the non-edges of a piece of training (`DRAWS` plus its number)."""
    # torch looks at the lowest 32 bits of a seed only.
    return torch.Generator().manual_seed(100_003 * seed + purpose)


class LinkLoss(nn.Module):
    """An encoder on a graph, as the engine's stack wants it."""

    def __init__(self, encoder: GraphEncoder, features: Matrix, adjacency: Matrix, edges: Pairs) -> None:
        super().__init__()
        self.encoder = encoder
        self.features, self.adjacency, self.edges = features, adjacency, edges

    def forward(self, *non_edges: Tensor) -> tuple[Tensor, Tensor]:
        """The cross-entropy of edges plus that of non-edges, which come as the fields of `Pairs`; the penalty."""
        embedding = self.encoder(self.features, self.adjacency)
        missed = F.softplus(-self.edges.scores(embedding)).mean()
        invented = F.softplus(Pairs(*non_edges).scores(embedding)).mean()
        gated = isinstance(self.encoder.gate, hg.Gate)
        return missed + invented, hg.penalty(self.encoder) if gated else torch.zeros_like(missed)


class Embedding(nn.Module):
    """The encoder alone, under the names of `LinkLoss`."""

    def __init__(self, encoder: nn.Module, features: Matrix, adjacency: Matrix) -> None:
        super().__init__()
        self.encoder, self.features, self.adjacency = encoder, features, adjacency

    def forward(self) -> Tensor:
        """Behind the gate, (nodes, width)."""
        embedding: Tensor = self.encoder(self.features, self.adjacency)
        return embedding


class LinkStack:
    """Encoders of one shape on a graph that a seed divides; all meet the same non-edges.

    Args:
        graph: with all its edges.
        rules: how they are divided.
        seed: of the division and of the non-edges.
        encoders: before their first step.
        rates: one number of each kind an encoder.
        steps: of a piece of the training.
        device: where to train.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Rules,
        seed: int,
        encoders: Sequence[GraphEncoder],
        rates: Rates,
        steps: int,
        device: torch.device,
    ) -> None:
        self.graph, self.seed, self.steps, self.device, self.done = graph, seed, steps, device, 0
        self.split = split(graph, rules, generator=generator_of(seed, SPLIT))
        self.features = SparseMatrix(_rows_to_one(graph.features).to_sparse().to(device))
        self.adjacency, self.adjacency_in_test = (
            SparseMatrix(normalised_adjacency(edges, graph.nodes).to(device))
            for edges in (self.split.train, self.split.seen_in_test)
        )
        edges = Pairs(*(part.to(device) for part in sorted_pairs(self.split.train, graph.nodes)))
        losses = [LinkLoss(encoder, self.features, self.adjacency, edges) for encoder in encoders]
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.non_edges = self._drawn()
        self.stack = Stack(losses, rates, self._next, device, changes=[self.position], shared=True)

    def train(self) -> list[float]:
        """A piece of the training; returns the mean loss of each encoder over it."""
        for ahead, drawn in zip(self.non_edges, self._drawn(), strict=True):
            ahead.copy_(drawn)
        self.position.zero_()
        loss: list[float] = self.stack.run(self.steps).tolist()
        self.done += 1
        return loss

    def embeddings(self, *, in_test: bool) -> Tensor:
        """Of all nodes by each encoder, (encoders, nodes, width), from the edges that it may see."""
        adjacency = self.adjacency_in_test if in_test else self.adjacency
        encoder = self.stack.template.encoder
        assert isinstance(encoder, GraphEncoder)
        found: Tensor = self.stack.outputs(Embedding(encoder, self.features, adjacency))
        return found

    @torch.no_grad()
    def embedding(self, encoder: nn.Module) -> Tensor:
        """Of all nodes by any encoder, from the edges that it may see in the exam."""
        found: Tensor = Embedding(encoder.to(self.device), self.features, self.adjacency_in_test)()
        return found

    def encoder(self, number: int) -> GraphEncoder:
        """One encoder, as a module of its own."""
        encoder = self.stack.copy(number).encoder
        assert isinstance(encoder, GraphEncoder)
        return encoder

    def state_dict(self) -> dict[str, Any]:
        """The stack's, and how many pieces are done, which decides the next non-edges."""
        return {"stack": self.stack.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the stack."""
        self.stack.load_state_dict(state["stack"])
        self.done = state["done"]

    def _drawn(self) -> tuple[Tensor, ...]:
        """The non-edges of the next piece, a line a step."""
        generator = generator_of(self.seed, DRAWS + self.done)
        pairs = self.split.non_edges.draw(self.steps, self.split.draws, generator=generator)
        return tuple(part.to(self.device) for part in sorted_pairs(pairs, self.graph.nodes))

    def _next(self) -> tuple[Tensor, ...]:
        chosen = tuple(part.index_select(0, self.position)[0] for part in self.non_edges)
        self.position.add_(1)
        return chosen


def dimensions(embeddings: Tensor) -> list[int]:
    """How many channels of each embedding, (encoders, nodes, width), are not zero for all nodes."""
    found: list[int] = (embeddings != 0).any(1).sum(1).tolist()
    return found


def quality(embedding: Tensor, hidden: Hidden) -> tuple[float, float]:
    """AUC and average precision of the scores of hidden edges among other pairs."""
    pairs = torch.cat([hidden.edges, hidden.others], dim=1)
    first, second = embedding.cpu()[pairs]
    truth = torch.arange(pairs.shape[1]) < hidden.edges.shape[1]
    scores = (first * second).sum(1)
    return float(roc_auc_score(truth, scores)), float(average_precision_score(truth, scores))


def compacted(encoder: GraphEncoder) -> nn.Module:
    """The encoder without the channels that its gate has closed; the last one is kept if all are closed."""
    nodes, features = 6, encoder.first.weight.shape[0]
    example = torch.rand(nodes, features, generator=torch.Generator().manual_seed(0)), torch.eye(nodes)
    # On the CPU and on a small dense graph: what can go depends on neither.
    return hg.compact(encoder.cpu(), example, outputs="narrow")


def _rows_to_one(features: Tensor) -> Tensor:
    """Rows divided by their sum, where that is more than one."""
    return features / features.sum(1, keepdim=True).clamp(min=1)
