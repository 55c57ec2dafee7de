"""L1: a free mask whose size is penalised, what the paper compares DAM with on an autoencoder."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import headgate as hg
from headgate_lab.methods.contract import Method


class RectifiedMask(nn.Module):
    """Multiplies the `n` channels of the last axis by relu(m), m learned and free, all 1 at the start.

    Example:
        >>> gate = RectifiedMask(3)
        >>> with torch.no_grad():
        ...     _ = gate.values.copy_(torch.tensor([0.5, -1.0, 1.0]))
        >>> gate.mask().tolist(), gate.penalty().item()
        ([0.5, 0.0, 1.0], 0.5)
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the mask."""
        return x * self.mask()

    def mask(self) -> Tensor:
        """The mask, shape (n,); a channel whose entry is 0 is closed."""
        return self.values.relu()

    def penalty(self) -> Tensor:
        """The mean of the mask's absolute values: one differentiable scalar."""
        return self.mask().abs().mean()


@dataclass(frozen=True)
class L1(Method):
    """A free mask on every group of channels; `strength` is the weight of the mean of all their values."""

    strength: float

    @property
    def placement(self) -> str:
        """The same whatever the strength."""
        return "l1"

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network with masks on all that reads the groups."""
        return Masked(model, hg.find_groups(model, example))

    def penalty(self, model: nn.Module) -> Tensor:
        """Of all masks laid end to end."""
        masks = [mask.mask() for mask in cast(Masked, model).masks]  # type: ignore[operator]
        return self.strength * torch.cat(masks).abs().mean()

    def keep(self, model: nn.Module) -> dict[str, Tensor]:
        """What each mask has not closed."""
        return cast(Masked, model).keep()

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network with its masks in its weights, and what they closed removed."""
        masked = cast(Masked, model)
        return hg.shrink(masked.folded(), masked.plan, masked.keep())


class Masked(nn.Module):
    """A network whose groups of channels are multiplied by masks, in the weights that read them."""

    def __init__(self, network: nn.Module, plan: hg.Plan) -> None:
        super().__init__()
        self.network, self.plan = network, plan
        self.masks = nn.ModuleList(RectifiedMask(group.size) for group in plan.groups)
        self.readers = list(dict.fromkeys(reader for group in plan.groups for reader in group.readers))
        # By reader, the place of each index among all masks; what belongs to no group has the one behind them, -1.
        for number, reader in enumerate(self.readers):
            self.register_buffer(f"units{number}", torch.tensor(plan.axes[reader]), persistent=False)
        self.register_buffer("one", torch.ones(1), persistent=False)
        self.to(next(network.parameters()).device)
        self.register_load_state_dict_pre_hook(_accept_bare_names)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Any:
        """What the network computes with its masked weights."""
        return functional_call(self.network, self.weights(), (x,))

    def weights(self) -> dict[str, Tensor]:
        """The weights that read a group, times its mask."""
        values = torch.cat([*(cast(RectifiedMask, mask).mask() for mask in self.masks), self.get_buffer("one")])
        found: dict[str, Tensor] = {}
        for number, (name, axis) in enumerate(self.readers):
            weight = found.get(name, self.network.get_parameter(name))
            shape = [-1 if other == axis else 1 for other in range(weight.dim())]
            found[name] = weight * values[self.get_buffer(f"units{number}")].view(shape)
        return found

    def keep(self) -> dict[str, Tensor]:
        """By group, which of its units are open."""
        groups = zip(self.plan.groups, self.masks, strict=True)
        return {group.name: cast(RectifiedMask, mask).mask().detach() > 0 for group, mask in groups}

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """A copy of the network that computes the same without masks."""
        network = copy.deepcopy(self.network)
        for name, weight in self.weights().items():
            network.get_parameter(name).copy_(weight)
        return network


def _accept_bare_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Loads the network's own state too, as before it was masked; the masks then stay as they are."""
    if any(name.startswith(f"{prefix}network.") for name in state_dict):
        return
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}network.{name.removeprefix(prefix)}"] = state_dict.pop(name)
    masks = cast(Masked, module).masks.state_dict()
    state_dict.update({f"{prefix}masks.{name}": value for name, value in masks.items()})
