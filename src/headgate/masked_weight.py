"""The mask on one weight, and what the masks of a model share while its forward runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headgate.bank import Bank, Offsets, guarded, unguarded
from headgate.inputs import pays_for
from headgate.product import Vectors, mask_weights, product


class Side(nn.Module):
    """The masks along one axis of a weight, as one vector.

    `index` gives, for every index of the axis, its place in the chosen gates' masks laid end to end, followed by a
    single 1 for what no gate controls.
    """

    index: Tensor

    def __init__(self, bank: Bank, gates: Sequence[int], index: Tensor, axis: int) -> None:
        super().__init__()
        self.gates = tuple(gates)
        self.axis = axis
        # The usual case, one gate over the whole axis in its own order, needs no gathering.
        self.direct = torch.equal(index, torch.arange(sum(bank.gates[gate].n for gate in gates)))
        self.register_buffer("index", guarded(index).to(bank.offset.device), persistent=False)

    def vector(self, masks: Sequence[Tensor]) -> Tensor:
        """The masks of its gates, in the axis' order."""
        if self.direct:
            return masks[0] if len(masks) == 1 else torch.cat(list(masks))
        return torch.cat([*masks, masks[0].new_ones(1)])[unguarded(self.index)]


class Shared:
    """The masked weights of a model, by id, while its root's forward runs; empty otherwise, and in copies.

    Of large weights that read inputs, `vectors` holds the masks alone: which of the two is to be masked shows when
    they are used. `gated` remembers what there is to mask. Should a weight be exchanged for another, its id is unknown
    here, and it is masked by itself.
    """

    def __init__(self) -> None:
        self.weights: dict[int, Tensor] = {}
        self.vectors: dict[int, Tensor] = {}
        self.gated: dict[int, tuple[Tensor, MaskedWeight]] = {}

    def forget_(self) -> None:
        """Never kept longer: a replayed CUDA graph changes offsets and weights without anyone noticing."""
        self.weights, self.vectors = {}, {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return Shared()


class MaskedWeight(nn.Module):
    """The parametrization of a gated weight: the weight times its masks, in its own dtype.

    Bank and shared weights are held in a tuple, so that they are no part of the state dict. `place` is where the
    weight stood among its module's other parameters, to be put back there one day, last masked first. `reads` tells
    that its module's forward may mask what axis 1 reads instead, see `headgate.inputs`.
    """

    def __init__(self, bank: Bank, shared: Shared, place: int, reads: bool) -> None:
        super().__init__()
        self._links = (bank, shared)
        self.place = place
        self.reads = reads
        self.sides = nn.ModuleList()
        # Of all sides: the axes, and the gates side by side. Asked for in every step.
        self.axes: tuple[int, ...] = ()
        self.gates: tuple[int, ...] = ()

    def add_(self, side: Side) -> None:
        """Masks one more axis."""
        self.sides.append(side)
        self.axes += (side.axis,)
        self.gates += side.gates

    def forward(self, weight: Tensor) -> Tensor:
        """The weight times its masks."""
        masked, bank = self.found(weight), self._links[0]
        if masked is not None:
            return masked
        if not is_plain(bank):
            masks = [bank.mask(gate) for gate in self.gates]
            return product(weight.unsqueeze(0), stacked_vectors([self], self.axes, masks))[0]
        if self.stays_apart(weight):
            vector = self.over_inputs(weight)
            return mask_weights(vector, lambda given: [[(1, given.unsqueeze(0))]], [weight], [[0]])[0]
        return self._alone(weight)

    def found(self, weight: Tensor) -> Tensor | None:
        """The masked weight, if there is one that can be used here."""
        masked = self._links[1].weights.get(id(weight))
        return masked if masked is not None and self._can_be_used(masked, weight) else None

    def stays_apart(self, weight: Tensor) -> bool:
        """Whether its masks may be multiplied with what the weight reads, so that it is not masked in advance."""
        return self.reads and set(self.axes) == {1} and pays_for(weight)

    def factor(self, weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """What is multiplied with its masks in advance, and along which axes: the weight, or ones if it stays apart."""
        if self.stays_apart(weight):
            return weight.new_ones(weight.shape[1]), (0,) * len(self.axes)
        return weight, self.axes

    def may_go_to_inputs(self, weight: Tensor) -> bool:
        """Whether its masks may be multiplied with what the weight reads now; compilers are given the definition."""
        return is_plain(self._links[0]) and self.stays_apart(weight)

    def over_inputs(self, weight: Tensor) -> Tensor:
        """The mask along what a weight that stays apart reads, in the weight's dtype."""
        bank, shared = self._links
        learns = torch.is_grad_enabled() and bank.offset.requires_grad
        vector = shared.vectors.get(id(weight))
        if vector is None or (learns and not vector.requires_grad):
            vector = self._alone(weight)
        # In one node with weights it may seem to learn though offsets do not, and one computed alone would not.
        return vector if learns else vector.detach()

    def _can_be_used(self, masked: Tensor, weight: Tensor) -> bool:
        """For a part of the model, autocast may have been switched off since, or gradients on."""
        if masked.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
            return False
        learns = torch.is_grad_enabled() and (weight.requires_grad or self._links[0].offset.requires_grad)
        return masked.requires_grad or not learns

    def _alone(self, weight: Tensor) -> Tensor:
        """Its factor times masks that are computed for it alone."""
        bank, (factor, axes) = self._links[0], self.factor(weight)

        def vectors(offset: Tensor) -> list[Vectors]:
            return [stacked_vectors([self], axes, [bank.masks(range(gate, gate + 1), offset) for gate in self.gates])]

        return mask_weights(bank.offset, vectors, [factor], [[0]])[0]


def stacked_vectors(group: Sequence[MaskedWeight], axes: tuple[int, ...], masks: Sequence[Tensor]) -> Vectors:
    """The mask vectors along these axes of weights masked alike, from the masks of all their gates, side by side."""
    rows: list[list[Tensor]] = [[] for _ in group[0].sides]
    at = 0
    for mask in group:
        for row, side in zip(rows, mask.sides, strict=True):
            count = len(cast(Side, side).gates)
            row.append(cast(Side, side).vector(masks[at : at + count]))
            at += count
    # Large weights come alone: one operation less for each.
    stacked = (row[0].unsqueeze(0) if len(row) == 1 else torch.stack(row) for row in rows)
    return list(zip(axes, stacked, strict=True))


def is_plain(bank: Bank) -> bool:
    """Neither traced, nor under vmap and its like, nor with substituted offsets: there, plain operations are needed."""
    if torch.compiler.is_compiling() or not isinstance(bank.offset, Offsets):
        return False
    # torch has no public way to ask.
    return not torch._C._are_functorch_transforms_active()
