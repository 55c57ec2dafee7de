"""Relational graph layers with bases and sums, for several networks side by side.

A relation r has the weight W_r = Σ_b a_rb V_b, and a node becomes tanh(W₀ᵀh + c + Σ W_rᵀh_j), summed over its edges to
neighbours j. Written down like that, every edge needs a matrix of its own. Here nodes are transformed, never edges,
and most of the edges of enclosing subgraphs are spokes (`data.subgraphs`), which need even less: targets sum up the
states of their neighbours relation by relation before anything is multiplied, and send one message a relation.

The gradient is written out by hand (`relational_gradients`): small steps are slow by the number of their operations.
Everything has the networks along its first axis; nodes of all networks are numbered one network after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headgate_lab.data.batch_index import Batch
from headgate_lab.models.chords import chord_messages
from headgate_lab.models.relational_gradients import gradients


class Weights(NamedTuple):
    """Of one layer of several networks.

    Attributes:
        mix: a, of shape (networks, relations, bases).
        bases: V, (networks, bases, inputs, outputs).
        root: W₀, what a node makes of its own state, (networks, inputs, outputs).
        bias: c, (networks, outputs).
    """

    mix: Tensor
    bases: Tensor
    root: Tensor
    bias: Tensor


class RelationalLayer(nn.Module):
    """The parameters of one layer of one network, all uniform in ±1/√(bases · inputs), drawn from `generator`."""

    def __init__(
        self, inputs: int, outputs: int, relations: int, bases: int = 4, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        bound = (bases * inputs) ** -0.5

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(nn.init.uniform_(torch.empty(shape), -bound, bound, generator=generator))

        self.mix, self.bases = drawn(relations, bases), drawn(bases, inputs, outputs)
        self.root, self.bias = drawn(inputs, outputs), drawn(outputs)

    def weights(self) -> Weights:
        """As those of a single network."""
        return Weights(*(parameter.unsqueeze(0) for parameter in (self.mix, self.bases, self.root, self.bias)))


def roughness(layers: Sequence[Weights]) -> Tensor:
    """Σ_r ‖W_{r+1} − W_r‖² of all layers, a number a network: small where neighbouring ratings mean about the same."""
    mixes, bases = [weights.mix for weights in layers], [weights.bases for weights in layers]
    rough: Tensor = _Roughness.apply(*mixes, *bases)  # type: ignore[no-untyped-call]
    return rough


class _Roughness(torch.autograd.Function):
    """By the products of bases, (bases, bases), in place of all matrices; layers go along with the networks."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        mixes, bases = parts[: len(parts) // 2], [part.flatten(2) for part in parts[len(parts) // 2 :]]
        steps = torch.cat(mixes).diff(dim=1)
        scaled = torch.bmm(steps, torch.cat([torch.bmm(flat, flat.mT) for flat in bases]))
        ctx.save_for_backward(steps, scaled, *parts[len(mixes) :])
        return (scaled * steps).view(len(mixes), len(mixes[0]), -1).sum((0, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, ...]:
        steps, scaled, *bases = ctx.saved_tensors
        factor = (2 * arriving).repeat(len(bases)).view(-1, 1, 1)
        squares = torch.bmm(steps.mT, steps).mul_(factor).chunk(len(bases))
        # Each relation ends one step and begins the next.
        of_mix = nn.functional.pad(scaled.mul(-factor), (0, 0, 1, 1)).diff(dim=1).chunk(len(bases))
        pairs = zip(squares, bases, strict=True)
        of_bases = [torch.bmm(square, part.flatten(2)).view_as(part) for square, part in pairs]
        return *of_mix, *of_bases


def relational(centre: Tensor, around: Tensor, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
    """The states of targets and neighbours behind a layer.

    Args:
        centre: states of the targets before it, (networks, 2 · pairs, inputs).
        around: states of the nodes around them, (networks, nodes, inputs).
        weights: of the layer.
        batch: the subgraphs.
    """
    behind: tuple[Tensor, Tensor] = _Layer.apply(centre, around, *weights, batch, True)  # type: ignore[no-untyped-call]
    return behind


def relational_centre(centre: Tensor, around: Tensor, weights: Weights, batch: Batch) -> Tensor:
    """The states of the targets alone: a last layer need not compute others."""
    behind: Tensor = _Layer.apply(centre, around, *weights, batch, False)  # type: ignore[no-untyped-call]
    return behind


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, centre: Tensor, around: Tensor, mix: Tensor, bases: Tensor, root: Tensor, bias: Tensor,
        batch: Batch, whole: bool,
    ) -> Any:  # fmt: skip
        weights = Weights(mix, bases, root, bias)
        new_centre, *centre_kept = _centre(centre, around, weights, batch)
        ctx.batch, ctx.whole = batch, whole
        if not whole:
            ctx.save_for_backward(centre, around, *weights, new_centre, *centre_kept)
            return new_centre
        new_around, *around_kept = _around(centre, around, weights, batch)
        ctx.save_for_backward(centre, around, *weights, new_centre, *centre_kept, new_around, *around_kept)
        return new_centre, new_around

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        found = gradients(ctx.saved_tensors, arriving, ctx.batch, states=ctx.needs_input_grad[1])
        return *found, None, None


def _centre(centre: Tensor, around: Tensor, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The targets, and for the gradient what they collected: by relation, and by base."""
    networks, _, bases = weights.mix.shape
    heard = around.flatten(0, 1).index_select(0, batch.inward_nodes).mul_(batch.inward_weights.unsqueeze(1))
    slots = around.new_zeros(batch.slots, around.shape[2]).index_add_(0, batch.inward_slots, heard)
    collected = slots.view(networks, batch.relation_count, -1)
    by_base = torch.bmm(weights.mix.mT, collected).view(networks, bases, centre.shape[1], -1)
    by_base = by_base.transpose(1, 2).flatten(2)
    found = torch.baddbmm(weights.bias.unsqueeze(1), centre, weights.root)
    return tanh_(found.baddbmm_(by_base, weights.bases.flatten(1, 2))), collected, by_base


def _around(centre: Tensor, around: Tensor, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The neighbours, and for the gradient: messages of the targets by base, bases side by side, chords' table."""
    networks, relations, bases = weights.mix.shape
    targets, outputs = centre.shape[1], weights.root.shape[2]
    wide = weights.bases.transpose(1, 2).flatten(2)
    by_base = torch.bmm(centre, wide).view(networks, targets, bases, outputs).transpose(1, 2).flatten(2)
    slots = centre.new_zeros(batch.slots + 1, outputs)  # in the last slot: no edge, no message
    torch.bmm(weights.mix, by_base, out=slots[:-1].view(networks, relations, -1))
    found = torch.baddbmm(weights.bias.unsqueeze(1), around, weights.root).flatten(0, 1)
    found.add_(slots.index_select(0, batch.outward))
    carried, table = chord_messages(around[:, : batch.crossing], weights.mix, weights.bases, wide, batch)
    found.index_add_(0, batch.sinks, carried)
    return tanh_(found).view(networks, -1, outputs), by_base, wide, table


def tanh_(x: Tensor) -> Tensor:
    """In place. On a CPU torch's own takes twice as long as this, which differs in the last digit."""
    return x.tanh_() if x.is_cuda else x.mul_(2).sigmoid_().mul_(2).sub_(1)
