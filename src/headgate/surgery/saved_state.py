"""The saved state of a budget: every entry looked at before any of them is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headgate.arguments import true_or_false, whole_number
from headgate.errors import ArgumentError
from headgate.surgery.push import Push

_WHERE = "Budget: load_state_dict: "


@dataclass(frozen=True)
class SavedState:
    """What `Budget.state_dict` gave. `push` are the numbers of its controller, `times` those of its stopwatch."""

    step: int
    met: bool
    size: int
    full: int
    coming: int | None
    push: Mapping[str, Tensor]
    times: Mapping[str, Any] | None

    @staticmethod
    def of(state: Any, own: Mapping[str, Any]) -> SavedState:
        """The state, if it could be of the budget whose own state is given.

        Raises:
            ArgumentError: an entry is missing or cannot be, by name.
        """
        if not isinstance(state, Mapping) or (missing := own.keys() - state.keys()):
            what = f"it has no {', '.join(sorted(missing))}" if isinstance(state, Mapping) else type(state).__name__
            raise ArgumentError(f"Budget: load_state_dict takes what state_dict gave, and this is not it: {what}")
        weights = state["weights"]
        if isinstance(weights, Tensor) and weights.dim() == 1 and weights.shape != own["weights"].shape:
            raise ArgumentError(f"Budget: this state is of {len(weights)} gates, the model has {len(own['weights'])}")
        return SavedState(
            _count("step", state["step"]),
            true_or_false(f"{_WHERE}met", state["met"]),
            _count("size", state["size"]),
            _count("full", state["full"]),
            None if state["coming"] is None else _count("coming", state["coming"]),
            {name: _like(name, state[name], own[name]) for name in Push.STATE},
            _times(state["times"], own["times"]),
        )


def _count(name: str, value: Any) -> int:
    if (number := whole_number(_WHERE + name, value)) < 0:
        raise ArgumentError(f"{_WHERE}{name}={number} must be 0 or more")
    return number


def _like(name: str, value: Any, own: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != own.shape or not bool(value.isfinite().all()):
        raise ArgumentError(f"{_WHERE}{name} must be a tensor of shape {tuple(own.shape)}, of finite numbers")
    return value


def _times(times: Any, own: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of a budget that measures no time all that matters is whether there are any: then its kind is refused."""
    if times is None or own is None:
        return None if times is None else {}
    if not isinstance(times, Mapping) or (missing := own.keys() - times.keys()):
        what = f"has no {', '.join(sorted(missing))}" if isinstance(times, Mapping) else "is none"
        raise ArgumentError(f"{_WHERE}times must be what a stopwatch has learned, and {what}")
    tensors = {name: _like(f"times: {name}", times[name], mine) for name, mine in own.items() if name != "last"}
    return {"last": _count("times: last", times["last"]), **tensors}
