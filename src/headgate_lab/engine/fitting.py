"""How networks that predict ratings are fitted: the numbers, and Adam as they want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

OFFSET = "head.gate.offset"


@dataclass(frozen=True)
class Fitting:
    """How networks are trained; the defaults are IGMC's.

    Attributes:
        strength: weight of the offset of the head's gate, where there is one.
        dropout: how much of the head's hidden units is left out in training.
        edge_dropout: how many edges are, each direction by itself.
        smoothness: weight of the roughness of relations, summed over the layers.
        lr: Adam's learning rate; a tenth of it after every `fall` epochs.
        batch: pairs a step.
        offset_lr: Adam's learning rate for the offset of the gate; None: the same.
    """

    strength: float = 0.0
    dropout: float = 0.0
    edge_dropout: float = 0.2
    smoothness: float = 1e-3
    lr: float = 1e-3
    fall: int = 50
    batch: int = 50
    offset_lr: float | None = None

    @property
    def rates(self) -> list[float]:
        """Of Adam's groups, before they fall: that of everything, or of everything else and of the offset."""
        return [self.lr] if self.offset_lr is None else [self.lr, self.offset_lr]


def adam(parameters: Mapping[str, Tensor], fitting: Fitting, device: torch.device) -> Adam:
    """The optimizer of these parameters. On CUDA its steps can be captured, and its rates are on the device too."""
    captured, alone = device.type == "cuda", fitting.offset_lr is not None
    groups: list[dict[str, Any]] = [
        {"params": [value for name, value in parameters.items() if not alone or name != OFFSET]}
    ]
    if alone:
        groups.append({"params": [parameters[OFFSET]]})
    for group, rate in zip(groups, fitting.rates, strict=True):
        group["lr"] = torch.tensor(rate, device=device) if captured else rate
    return Adam(groups, fused=True, capturable=captured)


def set_rates_(optimizer: Adam, fitting: Fitting, epoch: int) -> None:
    """For an epoch, counted from 0; in place where a captured step reads them."""
    for group, rate in zip(optimizer.param_groups, fitting.rates, strict=True):
        now = rate * 0.1 ** (epoch // fitting.fall)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(now)
        else:
            group["lr"] = now


def load_moments_(optimizer: Adam, state: Mapping[str, Any]) -> None:
    """What Adam has learned, from its `state_dict`. Its settings stay: those of another device would not suit."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})
