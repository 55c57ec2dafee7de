"""How hard a budget pushes its gates, and which: a controller that keeps a network's size on a curve.

The strength sets how fast the network shrinks, so its logarithm follows the error, the logarithm of size over wanted
size, in two parts. One is proportional to it and lets go at once when the network becomes too small; the other sums it
up and finds the strength that this network and its loss need. With the sum alone sizes swing about the curve, and in
trainings of a few hundred steps run past it. How far the sum moves is a matter of the whole schedule, so that short
trainings are steered as long ones are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

FIRST_STRENGTH = 0.1
# A size of e^0.1 times the wanted one makes the strength e^1.6 times what it is on the curve.
PROPORTIONAL = 16.0
# An error that lasts for the whole schedule moves the other part by so many times itself; in one look at most by MOST.
INTEGRAL, MOST = 120.0, 0.5
# A network that is too small grows only as fast as its loss reopens gates, however little they are pushed. So it counts
# for no more than this, at once and in the sum: else a strength is so weak by then that it takes long to come back.
TOO_SMALL, TOO_SMALL_IN_SUM = 0.3, 0.1
# And the strength stays within these. Steps of offsets are bounded, and gradients below 1e-6 move none: beyond, a
# strength does nothing more, and leaves nothing of the weights' gradients where norms are clipped.
WEAKEST, STRONGEST = 1e-6, 1e6


class Push:
    """The strength, and how it is shared among the gates. All on their device, so that nothing waits for it."""

    STATE = ("strength", "level", "weights")

    def __init__(self, gates: int, device: torch.device) -> None:
        self.strength = torch.zeros((), device=device)
        self.level = torch.zeros((), device=device)  # the logarithm of the strength that keeps to the curve
        self.weights = torch.full((gates,), 1 / gates, device=device)

    def on(self, offsets: Tensor) -> Tensor:
        """The penalty on these offsets, differentiable."""
        return self.strength * (self.weights * offsets).sum()

    def to_(self, device: torch.device) -> None:
        """Goes where the offsets have gone. Where they are still, nothing changes: graphs may hold these tensors."""
        if self.strength.device != device:
            for name in self.STATE:
                setattr(self, name, getattr(self, name).to(device))

    def begin_(self) -> None:
        """From here on gates are pushed."""
        self.level.fill_(math.log(FIRST_STRENGTH))
        self.strength.fill_(FIRST_STRENGTH)

    def end_(self) -> None:
        """From here on they are not."""
        self.strength.zero_()

    def follow_(self, size: Tensor, wanted: float, elapsed: float) -> None:
        """Pushes harder at sizes above the wanted one, less below; `elapsed` of the schedule since the last look."""
        error = (size / wanted).log()
        self.level.add_((INTEGRAL * elapsed * error.clamp(min=-TOO_SMALL_IN_SUM)).clamp(-MOST, MOST))
        self.level.clamp_(math.log(WEAKEST), math.log(STRONGEST))
        pushed = self.level + PROPORTIONAL * error.clamp(min=-TOO_SMALL)
        self.strength.copy_(pushed.exp().clamp(WEAKEST, STRONGEST))

    def weigh_(self, savings: Tensor) -> None:
        """Shares the strength in proportion to what a gate saves; as before if nothing saves anything."""
        weights = savings.to(self.weights)
        total = weights.sum()
        self.weights.copy_(torch.where(total > 0, weights / total, self.weights))

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the three."""
        return {name: getattr(self, name).clone() for name in self.STATE}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken, of as many gates."""
        for name in self.STATE:
            getattr(self, name).copy_(state[name])
