"""Recurrent modules with masks: torch keeps a list of their weights, which would outlive the masks of one forward.

A list that holds masked weights, which are no leaves of the graph, cannot be copied, and is one more thing that can be
stale. While a module is gated it has no list of its own: whoever asks is given its weights as they are at that moment.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def _weights(self: nn.RNNBase) -> list[Tensor]:
    """All weights, masked where they are; in one dtype, which autocast may have changed of masked matrices alone."""
    dtype = next(self.parameters()).dtype
    return [getattr(self, name).to(dtype) for name in self._flat_weights_names]


def _nothing(self: nn.RNNBase, *unused: Any) -> None:
    """There is no list to look after."""


OVERRIDES = {
    "_flat_weights": property(_weights, _nothing),
    "_init_flat_weights": _nothing,
    "_update_flat_weights": _nothing,
    "flatten_parameters": _nothing,
}


def forget_list_(module: nn.RNNBase) -> None:
    """Takes the list off a module that has just been parametrized, and with it was given a class of its own."""
    for name, override in OVERRIDES.items():
        setattr(type(module), name, override)
    vars(module).pop("_flat_weights", None)


def make_list_(module: nn.RNNBase) -> None:
    """Gives a module without masks its list back."""
    module._init_flat_weights()
