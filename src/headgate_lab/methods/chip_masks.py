"""The masks of ChipNet: one learned number for every BatchNorm channel, made ever more nearly 0 or 1."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import headgate as hg
from headgate_lab.methods.norm_channels import branches, scales

# What is learned for a channel starts between 0 and this.
START = 0.01
SLOPE, CRISPNESS, ROUNDING = 1.0, 2.0, 10.0


def logistic(psi: Tensor, slope: Tensor | float) -> Tensor:
    """What is learned, squeezed between 0 and 1."""
    return torch.sigmoid(slope * psi)


def heaviside(z: Tensor, crispness: Tensor | float) -> Tensor:
    """A continuous step: 0 stays 0, 1 stays 1, and the crisper, the closer to 1 is all between."""
    sharp = torch.exp(-torch.as_tensor(crispness, dtype=z.dtype, device=z.device))
    return 1 - torch.exp(-crispness * z) + z * sharp


def rounded(z: Tensor, steepness: Tensor | float) -> Tensor:
    """Nearly 0 below one half, nearly 1 above: what is counted."""
    return torch.sigmoid(steepness * (z - 0.5))


class Chipped(nn.Module):
    """A network whose BatchNorm channels, scales and shifts, are multiplied by masks.

    `psi` is what is learned for channels, in units of `pace`: an optimizer that moves it by as much in every step,
    whatever its gradient, moves masks that many times as far.
    """

    slope: Tensor
    crispness: Tensor
    rounding: Tensor

    def __init__(self, network: nn.Module, plan: hg.Plan, seed: int, pace: float = 1.0) -> None:
        super().__init__()
        self.network, self.plan, self.pace = network, plan, pace
        found = scales(network)
        self.sizes = {name: len(scale) for name, scale in found.items()}
        first = next(iter(found.values()))
        drawn = torch.rand(sum(self.sizes.values()), generator=torch.Generator().manual_seed(seed))
        self.psi = nn.Parameter((START / pace * drawn).to(first))
        for name, value in (("slope", SLOPE), ("crispness", CRISPNESS), ("rounding", ROUNDING)):
            self.register_buffer(name, torch.tensor(value, dtype=first.dtype, device=first.device))

    def forward(self, x: Tensor) -> Any:
        """What the network computes with its masked BatchNorms."""
        return functional_call(self.network, self.weights(), (x,))

    def masks(self) -> tuple[Tensor, Tensor]:
        """Of all channels in a row, before and after the step."""
        z = logistic(self.pace * self.psi, self.slope)
        return z, heaviside(z, self.crispness)

    def weights(self) -> dict[str, Tensor]:
        """Scales and shifts times their masks; in few operations, since there may be hundreds of small layers."""
        _, mask = self.masks()
        found: dict[str, Tensor] = {}
        for kind in ("weight", "bias"):
            names = [name.removesuffix("weight") + kind for name in self.sizes]
            products = torch.cat([self.network.get_parameter(name) for name in names]) * mask
            found |= dict(zip(names, products.split(list(self.sizes.values())), strict=True))
        return found

    def remaining(self) -> Tensor:
        """The fraction of channels that counts as staying: a differentiable scalar."""
        return rounded(self.masks()[1], self.rounding).mean()

    def crisp(self) -> Tensor:
        """How far masks are from 0 and 1: a differentiable scalar."""
        before, after = self.masks()
        return (after - before).square().mean()

    @torch.no_grad()
    def stays(self, share: float) -> dict[str, Tensor]:
        """By scale, the channels of the largest `psi`: as many as the share says, rounded up.

        A branch of which one layer loses everything loses all of it; more come in its place. Where that revives a
        branch, the smallest go instead, but never the last one of a layer. A layer in no branch keeps at least one.
        """
        wanted = math.ceil(share * len(self.psi) - 1e-9)
        psi = self.psi.detach().cpu()
        most = bisect_left(range(len(psi)), wanted, key=lambda count: _total(self._of_largest(psi, count)))
        return self._without_smallest(psi, self._of_largest(psi, most), wanted)

    def _of_largest(self, psi: Tensor, count: int) -> dict[str, Tensor]:
        """What is left of the channels of the so many largest values."""
        chosen = torch.zeros(len(psi), dtype=torch.bool)
        chosen[psi.argsort(descending=True, stable=True)[:count]] = True
        keep = self._by_scale(chosen)
        within = branches(self.plan, keep)
        for inside in within.values():
            if not all(bool(keep[name].any()) for name in inside):
                keep |= {name: torch.zeros_like(keep[name]) for name in inside}
        values = self._by_scale(psi)
        for name in keep.keys() - {name for inside in within.values() for name in inside}:
            keep[name][values[name].argmax()] = True
        return keep

    def _without_smallest(self, psi: Tensor, keep: dict[str, Tensor], wanted: int) -> dict[str, Tensor]:
        """Fewer, down to what is wanted; of every layer that has any, one stays."""
        values, extra = self._by_scale(psi), _total(keep) - wanted
        smallest = sorted(
            (value, name, place)
            for name, vector in keep.items()
            for place, value in zip(vector.nonzero().squeeze(1).tolist(), values[name][vector].tolist(), strict=True)
        )
        for _, name, place in smallest:
            if extra > 0 and keep[name].sum() > 1:
                keep[name][place] = False
                extra -= 1
        return keep

    def _by_scale(self, channels: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.sizes, channels.split(list(self.sizes.values())), strict=True))


def _total(keep: Mapping[str, Tensor]) -> int:
    return sum(int(vector.sum()) for vector in keep.values())
