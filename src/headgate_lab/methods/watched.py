"""DAM under observation: how far a gate ever moved in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.dam import Dam


@dataclass(frozen=True)
class Watched(Dam):
    """As DAM, and measures the largest share of a layer's channels that opened or closed in one step."""

    def companion(self, model: nn.Module, steps: int) -> Watcher:
        """The observer."""
        return Watcher(model, self)


class Watcher:
    """Looks at all gates before every step, as part of it: on a GPU this is captured with it."""

    def __init__(self, model: nn.Module, method: Watched) -> None:
        self.model, self.method = model, method
        self.opened = self._open()
        self.jump = torch.zeros((), device=self.opened.device)

    def penalty(self) -> Tensor:
        """The method's own, after a look at what the step before has done."""
        self._look()
        return self.method.strength * hg.penalty(self.model)

    def step(self) -> bool:
        """Nothing is left to do."""
        return False

    @property
    def settled(self) -> bool:
        """The network stays as it is."""
        return False

    def metrics(self) -> dict[str, float]:
        """The largest share so far."""
        self._look()
        return {"jump": self.jump.item()}

    def state_dict(self) -> dict[str, Any]:
        """What was seen."""
        return {"opened": self.opened.clone(), "jump": self.jump.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.opened.copy_(state["opened"])
        self.jump.copy_(state["jump"])

    @torch.no_grad()
    def _look(self) -> None:
        """Compares with the look before."""
        now = self._open()
        torch.maximum(self.jump, (now - self.opened).abs().max(), out=self.jump)
        self.opened.copy_(now)

    @torch.no_grad()
    def _open(self) -> Tensor:
        """The share of open channels, gate by gate."""
        return torch.stack([(gate.mask() > 0).float().mean() for gate in hg.gates(self.model).values()])
