"""How long a forward pass takes, and where the time goes: by module, all of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from headgate.channels.example import Example
from headgate.cost import WARM_UP, Latency, latency_of

# Long enough for a median on a busy machine, short enough for a dozen networks: milliseconds, and passes.
ENOUGH_MS, FEWEST, MOST = 500.0, 7, 50
# Something else on the machine only ever adds time: while the spread is above this share, it is tried again so often.
QUIET, ROUNDS = 0.1, 4
# What no module accounts for: before the model returns, after the last of them.
REST = "everything else"


@dataclass(frozen=True)
class Timing:
    """The latency of a network, and milliseconds by module path that add up to its median."""

    latency: Latency
    parts: dict[str, float]


def timed(model: nn.Module, example: Example, paths: Collection[str]) -> Timing:
    """Times a model that the caller owns, in evaluation mode.

    A module's part is the time from the end of the one before to its own end, so that what the code does between
    modules belongs to the next one. A path that is not there has no part.
    """
    first = latency_of(model, example, 2, "Budget").median_ms
    repeats = int(max(FEWEST, min(MOST, ENOUGH_MS / max(first, 1e-3))))
    whole = _quiet(lambda: latency_of(model, example, repeats))
    parts = _parts(model, example, paths, repeats, torch.device(whole.device))
    scale = whole.median_ms / max(sum(parts.values()), 1e-9)
    return Timing(whole, {path: scale * part for path, part in parts.items()})


def _quiet(measure: Callable[[], Latency]) -> Latency:
    """The fastest of a few rounds, or the first one that nothing seems to have disturbed."""
    rounds: list[Latency] = []
    while len(rounds) < ROUNDS and not any(one.spread_ms <= QUIET * one.median_ms for one in rounds):
        rounds.append(measure())
    return min(rounds, key=lambda one: one.median_ms)


@torch.inference_mode()
def _parts(
    model: nn.Module, example: Example, paths: Collection[str], repeats: int, device: torch.device
) -> dict[str, float]:
    """The median part of every module."""
    marks: list[tuple[str, Any]] = []
    mark, between = _marks_on(device)

    def ended(path: str) -> Callable[..., None]:
        return lambda *_: marks.append((path, mark()))

    hooks = [module.register_forward_hook(ended(path)) for path, module in model.named_modules() if path in paths]
    model.eval()
    found: dict[str, list[float]] = {}
    for number in range(WARM_UP + repeats):
        marks[:] = [("", mark())]
        model(*example.args, **example.kwargs)
        marks.append((REST, mark()))
        if number >= WARM_UP:
            sums = dict.fromkeys((path for path, _ in marks[1:]), 0.0)
            for (_, start), (path, end) in pairwise(marks):
                sums[path] += between(start, end)
            for path, part in sums.items():
                found.setdefault(path, []).append(part)
    for hook in hooks:
        hook.remove()
    return {path: statistics.median(values) for path, values in found.items()}


def _marks_on(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """How to mark a moment of a device's work, and the milliseconds between two such marks."""
    if device.type == "cuda":
        return lambda: _event(device), _between_events
    wait = torch.get_device_module(device).synchronize

    def now() -> float:
        wait()
        return time.perf_counter()

    return now, lambda start, end: (end - start) * 1e3


def _event(device: torch.device) -> torch.cuda.Event:
    with torch.cuda.device(device):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    return event


def _between_events(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return float(start.elapsed_time(end))
