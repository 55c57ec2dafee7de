"""Arguments that must be a number or a truth value: taken as one, or refused by name."""

from __future__ import annotations

import operator
from typing import Any

import torch

from headgate.errors import ArgumentError

_FLOAT32 = torch.finfo(torch.float32)


def whole_number(name: str, value: Any) -> int:
    """The value as an int, from anything that Python takes as an index (NumPy's integers too, but no bool).

    Example:
        >>> whole_number("n", torch.tensor(8))
        8
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}={value!r} is not a whole number") from None


def true_or_false(name: str, value: Any) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r} must be True or False")
    return value


def number(name: str, value: Any, *, above_zero: bool = False) -> float:
    """The value as a float that is finite in float32, where gates compute, and if asked above 0 there.

    Example:
        >>> number("offset", torch.tensor([0.5]))
        0.5
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        found = float(value)
    except OverflowError:
        raise ArgumentError(f"{name} is too large for a float") from None
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"{name}={value!r} is not a number") from None
    if not (_FLOAT32.tiny if above_zero else -_FLOAT32.max) <= found <= _FLOAT32.max:
        wanted = "a finite number above 0" if above_zero else "a finite number"
        raise ArgumentError(f"{name}={found} must be {wanted} (in float32)")
    return found
