"""Colours of methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate_lab.report.runs import ReportError

# A method looks the same in every figure, whichever others stand beside it.
COLORS = {"paper": "C0", "ours": "C1", "narrower": "C2", "chipnet": "C3", "slimming": "C4", "found": "C5"}
# Of the others, in their order; none of these is a method's own.
SPARE = ("C9", "C6", "C8", "C7", "black", "navy", "gold", "teal", "magenta", "tan")


def colors(keys: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """A colour for each line, no two alike. A key begins with the method; one that has no more has the method's own.

    Raises:
        ReportError: there are more lines than colours.
    """
    found = {key: None if any(key[1:]) else COLORS.get(key[0]) for key in keys}
    others = [key for key, color in found.items() if color is None]
    if len(others) > len(SPARE):
        raise ReportError(f"{len(others)} lines have no colour of their own, and only {len(SPARE)} are spare")
    spare = dict(zip(others, SPARE, strict=False))
    return {key: color or spare[key] for key, color in found.items()}
