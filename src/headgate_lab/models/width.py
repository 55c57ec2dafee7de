"""Widths of networks made uniformly narrower."""

from __future__ import annotations


def scaled(size: int, width: float) -> int:
    """A number of channels at a fraction of the width, never none."""
    return max(1, round(size * width))
