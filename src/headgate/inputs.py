"""Masks on what a large weight reads instead of on the weight, where that is the smaller of the two.

conv(x∘g, W) = conv(x, W∘g). The mask on the weight, in `headgate.product`, is the definition, and whoever asks a layer
for its weight is given the masked one; here the same is computed faster. A batch of small feature maps may be a
hundred times smaller than the weight that reads it, and then gates cost next to nothing. Beside the input its product
with the mask is kept for the backward pass, which is still less than the masked weight would be.

Nothing is remembered from call to call: a checkpointed part of the model decides again when it is recomputed, by the
same sizes.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

# Below this many elements a weight is masked in a stack with others, for less than one more operation costs.
LARGE = 1 << 16
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class InputMask(Protocol):
    """What the forward of a layer asks the mask on its weight."""

    def may_go_to_inputs(self, weight: Tensor) -> bool:
        """Whether the mask lies along the weight's inputs alone, and may be multiplied with them here and now."""

    def over_inputs(self, weight: Tensor) -> Tensor:
        """The mask along the weight's inputs."""


def can_mask_inputs(module: nn.Module) -> bool:
    """Whether this is a layer of torch's own, no subclass, with a large weight that sums over all inputs."""
    if type(module) not in _KINDS or getattr(module, "groups", 1) != 1:
        return False
    return cast(Tensor, module.weight).numel() >= LARGE


def pays_for(weight: Tensor) -> bool:
    """Whether the mask of a large weight should go to its inputs there; on GPUs fused kernels mask weights well."""
    return weight.device.type == "cpu"


def let_inputs_be_masked_(module: nn.Module) -> None:
    """Gives a layer whose weight has just been parametrized, and with it a class of its own, the forward below."""
    type(module).forward = _forward


def _forward(self: nn.Linear | nn.modules.conv._ConvNd, input: Tensor) -> Tensor:
    """As torch's own, but a mask on the weight may be multiplied with the input instead."""
    masks = cast(parametrize.ParametrizationList, cast(nn.ModuleDict, self.parametrizations)["weight"])
    weight, mask = masks.original, cast(InputMask, masks[0])
    alone = len(masks) == 1 and mask.may_go_to_inputs(weight)
    if alone and _fits(input, weight) and _is_smaller(input, weight):
        vector = mask.over_inputs(weight).to(input.dtype)
        input = input * vector.view(-1, *[1] * (weight.dim() - 2))
    else:
        weight = self.weight
    if isinstance(self, nn.Linear):
        return F.linear(input, weight, self.bias)
    return self._conv_forward(input, weight, self.bias)


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether this is an ordinary input for the weight: broadcasting would hide from torch that it is not."""
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested:
        return False
    axis = 1 - weight.dim()
    return x.dim() >= -axis and x.shape[axis] == weight.shape[1]


def _is_smaller(x: Tensor, weight: Tensor) -> bool:
    return x.numel() < weight.numel()
