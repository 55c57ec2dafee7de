"""The size that a budget is for: one of several kinds, within what the gates can reach."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.arguments import number
from headgate.errors import ArgumentError
from headgate.surgery.saved_state import SavedState
from headgate.surgery.times import PER_MS


def only_one(targets: Mapping[str, float | None]) -> tuple[str, float]:
    """The kind of size that was asked for, and how much of it."""
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        raise ArgumentError(f"Budget: give exactly one of {', '.join(targets)}, not {', '.join(given) or 'none'}")
    ((name, value),) = given.items()
    return name, number(f"Budget: {name}", value, above_zero=True)


def target_of(of: str, wanted: float, full: int, least: int) -> int:
    """A fraction or a number as a number.

    Raises:
        ArgumentError: no less than the full network has, or less than the gates can leave.
    """
    target = int(wanted * full) if wanted <= 1 else int(wanted)
    if target >= full:
        raise ArgumentError(f"Budget: {of}={wanted:g} is no less than the full network has: {full:,}")
    if target < least:
        raise ArgumentError(
            f"Budget: {of}={wanted:g} asks for {target:,}; with every gate at its floor {least:,} are left "
            f"({least / full:.1%} of {full:,}): the smallest size that can be reached{_meant(of, wanted)}"
        )
    return target


def _meant(of: str, wanted: float) -> str:
    """A number little above 1 was hardly meant as one."""
    return f". Above 1, {of}= is a number of them; a fraction of the network's lies below 1" if wanted > 1 else ""


def time_target_of(wanted_ms: float, full: int, least: int) -> int:
    """Milliseconds in picoseconds; refused as other targets are."""
    target = int(wanted_ms * PER_MS)
    if target >= full:
        raise ArgumentError(
            f"Budget: latency_ms={wanted_ms:g} is no less than the full network takes: {full / PER_MS:.3g}"
        )
    if target < least:
        raise ArgumentError(
            f"Budget: latency_ms={wanted_ms:g}: with every gate at its floor the network still takes "
            f"{least / PER_MS:.3g} ms (the full one {full / PER_MS:.3g}): the shortest time that can be reached"
        )
    return target


def refuse_another_size(of: str, saved: SavedState, full: int, target: int) -> None:
    """Refuses the saved state of a budget of another kind, network or target.

    Of times only the kind can be told: they differ from run to run, and what is counted does not.
    """
    counted = of != "latency_ms"
    if counted != (saved.times is None) or (counted and saved.full != full):
        raise ArgumentError(
            f"Budget: this state is of another kind of size than {of}, or of another network: its full size is "
            f"{saved.full:,}, and here it is {full:,}"
        )
    if counted and saved.met and saved.size > target:
        raise ArgumentError(
            f"Budget: this state has met a target of its own with {saved.size:,} {of}, more than the {target:,} asked "
            "for here; begin a new budget instead of loading it"
        )


def refuse_another_model(of: str, saved: SavedState, size: int) -> None:
    """Refuses the state of a budget that is met where the model's gates leave another size than they did then."""
    if saved.size != size:
        raise ArgumentError(
            f"Budget: this state is of a network cut to {saved.size:,} {of}, and here the gates leave {size:,}; load "
            "the model's state before the budget's"
        )
