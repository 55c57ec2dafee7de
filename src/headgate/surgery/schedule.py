"""When the gates of a budget move: after the start, until the target is reached, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.arguments import number, whole_number
from headgate.errors import ArgumentError

# How far offsets could travel in the time there is, in ways from all open to all closed: room to wait and to turn.
TRAVELS = 3.0
# An offset that moves faster than this jumps.
FASTEST = 0.5
# How often a budget looks at its gates between start and end.
CHECKS = 1000
# Below this many times the target it looks more often, by this factor.
NEAR, OFTENER = 1.2, 8


@dataclass(frozen=True)
class Schedule:
    """Steps: the offsets move after `begin` and rest at `end` at the latest."""

    begin: int
    end: int

    def wanted(self, step: int, full: float, target: float) -> float:
        """The wanted size after so many steps, from full to target by equal factors."""
        done = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return float(full * (target / full) ** done)

    def every(self, size: float, target: float) -> int:
        """Steps from look to look. Few near the end: gates of a large layer close several units in a step."""
        every = (self.end - self.begin) // CHECKS
        return max(1, every // OFTENER if size < NEAR * target else every)

    def rate(self, travel: float) -> float:
        """How far offsets may move in a step, if it is so far from all open to all closed."""
        return TRAVELS * travel / (self.end - self.begin)


def schedule_of(steps: int, reach: float, start: float) -> Schedule:
    """The schedule of so many steps.

    Raises:
        ArgumentError: what is no number of steps, fractions out of order, or fewer steps than the gates need.
    """
    if (steps := whole_number("Budget: steps", steps)) < 1:
        raise ArgumentError(f"Budget: steps={steps} must be 1 or more: all steps of the training")
    start, reach = number("Budget: start", start), number("Budget: reach", reach)
    if not 0 <= start < reach <= 1:
        raise ArgumentError(
            f"Budget: start={start:g} and reach={reach:g} must be fractions of the steps, in that order"
        )
    schedule = Schedule(max(1, round(start * steps)), round(reach * steps))
    needed = round(TRAVELS * 6 / FASTEST)
    if schedule.end - schedule.begin < needed:
        raise ArgumentError(
            f"Budget: between start={start:g} and reach={reach:g} of {steps} steps there are "
            f"{max(0, schedule.end - schedule.begin)}; gates need {needed} or more to close without jumping: "
            f"steps={_enough(needed, reach - start)} or more would do, or a larger part between start and reach"
        )
    return schedule


def _enough(needed: int, part: float) -> int:
    """Steps of which this part is as many as needed, whatever becomes of its two ends when they are rounded."""
    return math.ceil((needed + 1) / part)
