"""Sparse products that can be differentiated, and batched by vmap without a copy of what all copies share.

Both classes compress rows as torch's CSR layout does, with indices of 32 bits, which the CPU's kernels take as they
are. They are not modules: what they hold is given, not learned.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor


class SparseMatrix:
    """`matrix @ x` for dense `x` of shape (columns, n), differentiable in `x`.

    Inside `torch.vmap` the stacked copies of `x` are laid side by side: one wide product instead of one for each.

    Args:
        matrix: of two dimensions, in torch's COO layout.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.rows, self.columns = _compressed(matrix), _compressed(matrix.T)

    def __matmul__(self, x: Tensor) -> Tensor:
        return _applied(_Product, x, self.rows, self.columns)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseMatrix:
        """It never changes, so one is enough; and torch cannot copy sparse tensors that way."""
        return self


@dataclass(frozen=True)
class Pairs:
    """Pairs of nodes, ordered by their first node.

    Attributes:
        starts: where the pairs of each node begin, and their number at the end: shape (nodes + 1,).
        seconds: the second node of each pair.
        back_starts: the same for the pairs turned around and ordered anew, by their second node.
        back_seconds: likewise; these are first nodes.
        back_order: which pair each of the turned ones is.
    """

    starts: Tensor
    seconds: Tensor
    back_starts: Tensor
    back_seconds: Tensor
    back_order: Tensor

    def scores(self, embeddings: Tensor) -> Tensor:
        """The inner product of each pair's rows of `embeddings`, (nodes, n), in the order of the pairs."""
        return _applied(_Scores, embeddings, *vars(self).values())


def sorted_pairs(pairs: Tensor, nodes: int) -> tuple[Tensor, ...]:
    """The fields of `Pairs` for pairs, (2, …, n), in any order along the last axis; axes between stay."""
    keys = (pairs[0] * nodes + pairs[1]).sort(dim=-1).values
    firsts, seconds = keys // nodes, keys % nodes
    turned, order = (seconds * nodes + firsts).sort(dim=-1)
    return (_starts(firsts, nodes), seconds.int(), _starts(turned // nodes, nodes), (turned % nodes).int(), order)


def _applied(function: Any, *given: Tensor) -> Tensor:
    return cast(Tensor, function.apply(*given))


def _starts(ordered: Tensor, nodes: int) -> Tensor:
    bounds = torch.arange(nodes + 1, device=ordered.device).expand(*ordered.shape[:-1], -1).contiguous()
    return torch.searchsorted(ordered, bounds, out_int32=True)


def _compressed(matrix: Tensor) -> Tensor:
    (rows, columns), values = (whole := matrix.coalesce()).indices(), whole.values()
    return _csr(_starts(rows, len(matrix)), columns.int(), values, matrix.shape)


with warnings.catch_warnings():
    # torch warns once that this layout is in beta state and, in 2.11, of checks that are left out on purpose.
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)


def _csr(starts: Tensor, places: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_csr_tensor(starts, places, values, shape, check_invariants=False)


class _Product(torch.autograd.Function):
    """The product with a matrix; the gradient is that with its transpose."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return rows @ x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.columns = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.columns @ gradient, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], x: Tensor, rows: Tensor, columns: Tensor) -> Any:
        beside = x.movedim(in_dims[0], 1)
        product = _applied(_Product, beside.reshape(len(beside), -1), rows, columns)
        return product.view(len(product), info.batch_size, -1), 1


class _Scores(torch.autograd.Function):
    """A product of dense matrices where pairs are, and nowhere else; its gradient is two sparse products."""

    @staticmethod
    def forward(
        z: Tensor, starts: Tensor, seconds: Tensor, back_starts: Tensor, back_seconds: Tensor, back_order: Tensor
    ) -> Tensor:
        where = _csr(starts, seconds, z.new_zeros(len(seconds)), (len(z), len(z)))
        return cast(Tensor, torch.sparse.sampled_addmm(where, z, z.T, beta=0.0).values())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        z, starts, seconds, back_starts, back_seconds, back_order = ctx.saved_tensors
        forth = _csr(starts, seconds, gradient, (len(z), len(z)))
        back = _csr(back_starts, back_seconds, gradient[back_order], (len(z), len(z)))
        return forth @ z + back @ z, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], z: Tensor, *pairs: Tensor) -> Any:
        # Pairs are the same for all copies, their values are not: no wide product, but the kernels are quick.
        return torch.stack([_applied(_Scores, one, *pairs) for one in z.movedim(in_dims[0], 0).contiguous()]), 0
