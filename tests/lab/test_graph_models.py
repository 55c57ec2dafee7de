"""The graph autoencoder against torch_geometric's layers, and wider than it needs to be."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from headgate_lab.engine.sparse import SparseMatrix
from headgate_lab.models.graph_autoencoder import GraphConvolution, GraphEncoder, normalised_adjacency, padded

NODES = 9
EDGES = torch.tensor([[0, 0, 1, 3, 4, 2], [1, 2, 2, 7, 5, 8]])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def features(columns: int) -> torch.Tensor:
    return torch.rand(NODES, columns, generator=generator(), dtype=torch.float64)


def test_a_convolution_is_torch_geometrics() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conv = pytest.importorskip("torch_geometric.nn").GCNConv(6, 4).double()
    own = GraphConvolution(6, 4, generator=generator()).double()
    with torch.no_grad():
        own.bias.normal_(generator=generator())
        conv.lin.weight.copy_(own.weight.T)
        conv.bias.copy_(own.bias)
    x, adjacency = features(6), normalised_adjacency(EDGES, NODES).double()
    wanted = conv(x, torch.cat([EDGES, EDGES.flip(0)], dim=1))
    torch.testing.assert_close(own(x, adjacency.to_dense()), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(own(SparseMatrix(x.to_sparse()), SparseMatrix(adjacency)), own(x, adjacency.to_dense()))


def test_first_weights_are_torch_geometrics() -> None:
    """Glorot's, and no bias."""
    layer = GraphConvolution(300, 100, generator=generator())
    bound = (6 / 400) ** 0.5
    assert 0.99 * bound < layer.weight.max() <= bound and -bound <= layer.weight.min() < -0.99 * bound
    assert abs(layer.weight.var() / (bound**2 / 3) - 1) < 0.02 and not layer.bias.any()


def test_the_normalised_adjacency_by_hand() -> None:
    dense = normalised_adjacency(EDGES, NODES).to_dense()
    whole = torch.eye(NODES)
    whole[EDGES[0], EDGES[1]] = whole[EDGES[1], EDGES[0]] = 1
    degree = torch.diag(whole.sum(0) ** -0.5)
    torch.testing.assert_close(dense, degree @ whole @ degree)


def test_padding_changes_nothing_and_gets_no_gradient() -> None:
    encoder = GraphEncoder(6, 5, 3, nn.Identity(), generator=generator()).double()
    wide = padded(encoder, 8, 7).double()
    x, adjacency = features(6), normalised_adjacency(EDGES, NODES).double().to_dense()
    z, narrow = wide(x, adjacency), encoder(x, adjacency)
    torch.testing.assert_close(z[:, :3], narrow)
    assert not z[:, 3:].any()
    for embedding in (z, narrow):
        (embedding @ embedding.T).sigmoid().log().sum().backward()
    for own, other in zip(wide.parameters(), encoder.parameters(), strict=True):
        room = torch.zeros_like(own)
        room[tuple(map(slice, other.shape))] = other.grad
        torch.testing.assert_close(own.grad, room)


def test_padding_leaves_the_gate_alone() -> None:
    gate = nn.Linear(1, 1)
    before = gate.weight.clone()
    wide = padded(GraphEncoder(6, 5, 3, gate, generator=generator()), 8, 7)
    assert wide.gate is gate and torch.equal(gate.weight, before)
