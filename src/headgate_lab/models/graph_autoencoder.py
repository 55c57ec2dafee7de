"""The graph autoencoder of Kipf and Welling: two graph convolutions; a pair of nodes is scored by an inner product."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Matrix(Protocol):
    """What multiplies a tensor from the left: a tensor itself, or a sparse matrix of the engine."""

    def __matmul__(self, other: Tensor, /) -> Tensor: ...


class GraphConvolution(nn.Module):
    """Â(XW) + b. Weights uniform in ±√(6/(inputs + outputs)), drawn from `generator`; the bias begins at zero."""

    def __init__(self, inputs: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        bound = (6 / (inputs + outputs)) ** 0.5
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Matrix, adjacency: Matrix) -> Tensor:
        """Shape (nodes, inputs) to (nodes, outputs); `adjacency` is the normalised one."""
        return adjacency @ (x @ self.weight) + self.bias


class GraphEncoder(nn.Module):
    """Convolution, ReLU, convolution, and whatever module the caller puts on the embedding, which keeps its shape."""

    def __init__(self, features: int, hidden: int, width: int, gate: nn.Module, *, generator: torch.Generator) -> None:
        super().__init__()
        self.first = GraphConvolution(features, hidden, generator=generator)
        self.second = GraphConvolution(hidden, width, generator=generator)
        self.gate = gate

    def forward(self, features: Matrix, adjacency: Matrix) -> Tensor:
        """The embedding of every node, shape (nodes, width)."""
        embedding: Tensor = self.gate(self.second(self.first(features, adjacency).relu(), adjacency))
        return embedding


def normalised_adjacency(edges: Tensor, nodes: int) -> Tensor:
    """D^-½ (A + 1) D^-½ as a sparse matrix, D the row sums of A + 1; `edges` (2, E) has each edge once.

    Example:
        >>> normalised_adjacency(torch.tensor([[0], [1]]), 3).to_dense()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """
    loops = torch.arange(nodes, device=edges.device).expand(2, -1)
    both = torch.cat([edges, edges.flip(0), loops], dim=1)
    root = both[0].bincount(minlength=nodes).float().rsqrt()
    return torch.sparse_coo_tensor(both, root[both[0]] * root[both[1]], (nodes, nodes), check_invariants=False)


@torch.no_grad()
def padded(encoder: GraphEncoder, hidden: int, width: int) -> GraphEncoder:
    """The same function with more hidden units and channels of the embedding, all of them zero.

    They stay zero in training, exactly: a hidden unit at zero has no slope behind the ReLU and feeds nothing, and a
    channel of zeros has, in inner products, a gradient of zeros. So encoders of different widths can be stacked.
    """
    features = encoder.first.weight.shape[0]
    wide = GraphEncoder(features, hidden, width, encoder.gate, generator=torch.Generator())
    for own, other in ((wide.first, encoder.first), (wide.second, encoder.second)):
        for room, values in zip(own.parameters(), other.parameters(), strict=True):
            room.zero_()
            room[tuple(map(slice, values.shape))] = values
    return wide
