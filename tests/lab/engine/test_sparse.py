"""Sparse products are the dense ones, their gradients too, alone and batched."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from headgate_lab.engine.sparse import Pairs, SparseMatrix, sorted_pairs

NODES = 7


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def holed() -> Tensor:
    """A matrix of 7 by 5 with a row and a column of zeros."""
    matrix = numbers(NODES, 5) * (numbers(NODES, 5, seed=1) > 0)
    matrix[2], matrix[:, 3] = 0, 0
    return matrix


def some_pairs() -> Tensor:
    """Both directions, a loop, one pair three times, and a node in none."""
    return torch.tensor([[5, 0, 1, 3, 3, 3, 2, 4], [0, 5, 1, 4, 4, 4, 3, 3]])


def in_order(pairs: Tensor) -> Tensor:
    return pairs[:, (pairs[0] * NODES + pairs[1]).argsort(stable=True)]


def test_a_product_and_its_gradient() -> None:
    dense, x = holed(), numbers(5, 3, seed=2).requires_grad_()
    product, weight = SparseMatrix(dense.to_sparse()) @ x, numbers(NODES, 3, seed=3)
    torch.testing.assert_close(product, dense @ x)
    (gradient,) = torch.autograd.grad((product * weight).sum(), x)
    torch.testing.assert_close(gradient, dense.T @ weight)


def test_products_of_stacked_copies() -> None:
    dense, x = holed(), numbers(4, 5, 3, seed=2).requires_grad_()
    matrix, weight = SparseMatrix(dense.to_sparse()), numbers(4, NODES, 3, seed=3)
    product = torch.vmap(lambda one: matrix @ one)(x)
    torch.testing.assert_close(product, torch.stack([dense @ one for one in x]))
    (gradient,) = torch.autograd.grad((product * weight).sum(), x)
    torch.testing.assert_close(gradient, dense.T @ weight)


def test_a_matrix_is_its_own_copy() -> None:
    matrix = SparseMatrix(holed().to_sparse())
    assert copy.deepcopy({"one": matrix})["one"] is matrix


def test_scores_of_pairs_and_their_gradient() -> None:
    pairs, z, weight = some_pairs(), numbers(NODES, 3).requires_grad_(), numbers(8, seed=1)
    scores = Pairs(*sorted_pairs(pairs, NODES)).scores(z)
    first, second = in_order(pairs)
    plain = (z[first] * z[second]).sum(1)
    torch.testing.assert_close(scores, plain)
    for one, other in zip(*(torch.autograd.grad((each * weight).sum(), z) for each in (scores, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_scores_of_stacked_embeddings() -> None:
    pairs, z, weight = some_pairs(), numbers(4, NODES, 3).requires_grad_(), numbers(4, 8, seed=1)
    fields = sorted_pairs(pairs, NODES)
    scores = torch.vmap(lambda one: Pairs(*fields).scores(one))(z)
    first, second = in_order(pairs)
    plain = (z[:, first] * z[:, second]).sum(-1)
    torch.testing.assert_close(scores, plain)
    for one, other in zip(*(torch.autograd.grad((each * weight).sum(), z) for each in (scores, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_several_lists_of_pairs_are_sorted_at_once() -> None:
    lists = torch.stack([some_pairs(), some_pairs().flip(0)], dim=1)
    together = sorted_pairs(lists, NODES)
    for number in range(2):
        alone = sorted_pairs(lists[:, number], NODES)
        assert all(torch.equal(part[number], own) for part, own in zip(together, alone, strict=True))
