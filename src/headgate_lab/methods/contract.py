"""What every method is: something attached to a network, that adds to its loss, and says in the end what stays.

The training loop knows nothing else of a method, so that all are compared on the same data, by the same steps, by the
same counting on physically smaller networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

# Builds the network at a fraction of its width, with fresh weights.
Build: TypeAlias = Callable[[float], nn.Module]


class Companion(Protocol):
    """What some methods carry from step to step beside the network. It reads nothing from a device within a step."""

    def penalty(self) -> Tensor:
        """What is added to the loss: a differentiable scalar."""

    def step(self) -> bool:
        """Called after every step; whether the training step has become another one."""

    @property
    def settled(self) -> bool:
        """Whether the training may go on with the small network: what does not stay now will never matter again."""

    def metrics(self) -> dict[str, float]:
        """Between epochs, what there is to be recorded; always the same names."""

    def state_dict(self) -> dict[str, Any]:
        """To be saved with the network."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; the network is loaded first."""


class Method(ABC):
    """Holds settings only, so that one method serves many networks: what training changes is in them."""

    def width(self, build: Build, example: Tensor) -> float:
        """The fraction of its width at which the network, for images like the example's, is built."""
        return 1.0

    @property
    def placement(self) -> Hashable:
        """Methods of equal placement attach the same to the same network, so that it need be done only once."""
        return self

    @abstractmethod
    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network ready to be trained: the one given, which may be changed, or another in its place."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The attached network's parameters, for an optimizer."""
        return [{"params": list(model.parameters())}]

    def companion(self, model: nn.Module, steps: int) -> Companion | None:
        """The attached network's companion for a training of so many steps, if the method needs one."""
        return None

    def penalty(self, model: nn.Module) -> Tensor | None:
        """What is added to the loss where there is no companion: a differentiable scalar, or nothing."""
        return None

    def on_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Called before every epoch, counted from 0; whether the training step has become another one."""
        return False

    def keep(self, model: nn.Module) -> dict[str, Tensor]:
        """By site, a bool vector: which of its units stay."""
        return {}

    @abstractmethod
    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network with what does not stay physically removed. The one given is left as it is."""
