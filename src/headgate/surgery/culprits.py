"""Which sites cannot be cut, found with few trials: halved until they are known, what is written alike at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable

from torch import nn


def alike_in(model: nn.Module) -> Callable[[str], Hashable]:
    """Tells sites by what the code around them is: the same for the same layer of all blocks of one class."""

    def kind(name: str) -> Hashable:
        path = name.rpartition(".")[0]
        return re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name), type(model.get_submodule(path))

    return kind


def culprits(
    names: Iterable[str], problem: Callable[[list[str]], str | None], kind: Callable[[str], Hashable] = str
) -> dict[str, str]:
    """Which of these cannot be cut together with the others, and what happened: halved until they are found.

    Sites of one `kind` are kept together at first. If the first and the last of them fail by themselves, so do all.
    """
    reasons: dict[str, str] = {}
    kinds: dict[Hashable, list[str]] = {}
    for name in names:
        kinds.setdefault(kind(name), []).append(name)

    def settle(sure: list[str], unsure: list[list[str]]) -> list[str]:
        if not unsure:
            return sure
        together = [*sure, *(name for alike in unsure for name in alike)]
        found = problem(together)
        if found is None:
            return together
        if len(unsure) > 1:
            half = len(unsure) // 2
            return settle(settle(sure, unsure[:half]), unsure[half:])
        (alike,) = unsure
        if len(alike) == 1:
            reasons[alike[0]] = found
            return sure
        if len(alike) > 2 and all(problem([*sure, name]) is not None for name in (alike[-1], alike[0])):
            reasons.update((name, found) for name in alike)
            return sure
        return settle(sure, [[name] for name in alike])

    settle([], list(kinds.values()))
    return reasons
