"""Timing what compaction would leave of a gated model, and holding a budget of milliseconds to it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_map

from headgate.channels.example import Example
from headgate.cost import Latency
from headgate.errors import ArgumentError
from headgate.surgery.gauge import Gauge
from headgate.surgery.insert import Insertion
from headgate.surgery.keep import chosen
from headgate.surgery.kept import without_gates
from headgate.surgery.shrink import shrink_
from headgate.surgery.times import PER_MS, Times
from headgate.timing import Timing, timed

# The widths of the networks that are timed at the start, down to that of the floors.
WIDTHS = (1.0, 0.75, 0.5, 0.35, 0.2, 0.1, 0.0)
# Timed again whenever the network should have become this much faster.
AGAIN = 0.8
# How often the network is timed at the end, and how near to the target is near, where the spread is less.
TRIES, NEAR = 6, 0.02

_log = logging.getLogger("headgate")


class Stopwatch:
    """Times the cut network on an example, on a device, and corrects a gauge of picoseconds by it.

    Of several processes that train one model all take the first one's measurements: they must decide alike.

    Args:
        root: the gated model. Copies of it are cut and timed.
        insertion: what was decided when its gates were inserted.
        example: what to call it with; by default the insertion's.
        device: where to time; by default where the model is.
    """

    def __init__(self, root: nn.Module, insertion: Insertion, example: Example | None, device: Any) -> None:
        self._root, self._plan = root, insertion.plan
        given = insertion.example.following(without_gates(root)) if example is None else example
        try:
            self._device = next(root.parameters()).device if device is None else torch.device(device)
            self._example = Example(*tree_map(self._moved, (given.args, given.kwargs)))
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ArgumentError(f"Budget: device={device!r} cannot be used: {error}") from error
        self.latest: Latency | None = None
        self._last = 0

    def learn_(self, gauge: Gauge) -> int:
        """Times networks of several widths for the gauge; returns the size of the smallest network there can be."""
        sizes, least = gauge.sizes.cpu(), gauge.least.cpu().clamp_min(1)
        widths = [torch.maximum((sizes * width).ceil().long(), least) for width in WIDTHS]
        parts = []
        for number, kept in enumerate(widths):
            parts.append(self._timed(gauge, kept).parts)
            _log.info("Budget: timed network %d of %d: %s", number + 1, len(widths) + 1, self.latest)
        times = _times(gauge)
        times.learn_(torch.stack([times.state(gauge.left(kept)) for kept in widths]).to(gauge.sizes.device), parts)
        self._last = gauge.size(gauge.most)
        smallest = self._timed(gauge, gauge.least).latency
        _log.info("Budget: timed network %d of %d: %s", len(widths) + 1, len(widths) + 1, smallest)
        return int(smallest.median_ms * PER_MS)

    def checked_(self, gauge: Gauge, size: int) -> int:
        """The size of the network as it is now; timed, if it should be much faster than when it was last."""
        if size >= AGAIN * self._last:
            return size
        kept = gauge.kept()
        _correct_(gauge, kept, self._timed(gauge, kept).latency)
        self._last = gauge.size(kept)
        return self._last

    def settled_(self, gauge: Gauge, kept: Tensor, target: int, masks: Tensor) -> Tensor:
        """Numbers of kept units whose network takes no longer than the target, within the spread, as measured."""
        tried: list[tuple[Latency, Tensor]] = []
        for _ in range(TRIES):
            settled = gauge.settled(kept, target, masks)
            if any(torch.equal(settled, before) for _, before in tried):
                break
            latency = self._timed(gauge, settled).latency
            tried.append((latency, settled))
            _correct_(gauge, settled, latency)
            if -max(latency.spread_ms, NEAR * target / PER_MS) <= _over(latency, target) <= 0:
                break
        fitting = [one for one in tried if _over(one[0], target) <= one[0].spread_ms]
        by_time = sorted(fitting or tried, key=lambda one: one[0].median_ms)
        under = [one for one in by_time if _over(one[0], target) <= 0]
        self.latest, best = under[-1] if under else by_time[0]
        _correct_(gauge, best, self.latest)
        return best

    def state(self, gauge: Gauge) -> dict[str, Any]:
        """What was learned, to be saved: another machine, or this one when it is busy, would measure otherwise."""
        times = _times(gauge)
        learned = {"works": times.works, "times": times.times, "factor": times.factor}
        return {"last": self._last, **{name: tensor.cpu().clone() for name, tensor in learned.items()}}

    def load_(self, gauge: Gauge, state: Mapping[str, Any]) -> None:
        """Goes on with what was learned before."""
        times, self._last = _times(gauge), int(state["last"])
        device = times.works.device
        times.works, times.times = state["works"].to(device), state["times"].to(device)
        times.factor = state["factor"].to(device)

    def _timed(self, gauge: Gauge, kept: Tensor) -> Timing:
        small = without_gates(self._root)
        shrink_(small, self._plan, chosen(self._plan, gauge.left(kept), "Budget"))
        # Its own copy: tensors that were not cut are still the model's, and a move would take them along.
        own = copy.deepcopy(small).to(self._device)
        found = [timed(own, self._example, {term.name for term in _times(gauge).terms})]
        if distributed.is_available() and distributed.is_initialized():
            distributed.broadcast_object_list(found, src=0)
        self.latest = found[0].latency
        return found[0]

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, Tensor) else leaf


def _times(gauge: Gauge) -> Times:
    assert isinstance(gauge.sizes_of, Times)
    return gauge.sizes_of


def _over(latency: Latency, target: int) -> float:
    """By how many milliseconds a target is exceeded."""
    return latency.median_ms - target / PER_MS


def _correct_(gauge: Gauge, kept: Tensor, latency: Latency) -> None:
    """From now on the gauge gives this state the size that was measured."""
    _times(gauge).factor *= latency.median_ms * PER_MS / max(gauge.size(kept), 1)


def stopwatch_of(
    of: str, root: nn.Module, insertion: Insertion, example: Example | None, device: Any
) -> Stopwatch | None:
    """The one for a budget of milliseconds; budgets `of` anything else need none.

    Raises:
        ArgumentError: a device that cannot be used, or one that nothing is timed on.
    """
    if of == "latency_ms":
        return Stopwatch(root, insertion, example, device)
    if device is not None:
        raise ArgumentError(f"Budget: device={device!r} is for latency_ms=; {of} are the same everywhere")
    return None
