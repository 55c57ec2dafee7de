"""How every benchmark takes time: contestants in turns, so that a drifting clock meets all, and medians over rounds."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from headgate_lab.files import why_not_writable

Work = Callable[[], Any]
Clock = Callable[[], float]


def seconds(work: Work, repeats: int = 1, device: str = "cpu", clock: Clock = time.perf_counter) -> float:
    """Seconds per call over `repeats` calls, waiting for the device before and after."""
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    synchronise()
    start = clock()
    for _ in range(repeats):
        work()
    synchronise()
    return (clock() - start) / repeats


def in_turns(
    works: Mapping[str, Work],
    rounds: int,
    repeats: int,
    device: str = "cpu",
    warmup: int = 3,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """For each contestant its seconds per call, round by round; every other round goes through them backwards."""
    for work in works.values():
        seconds(work, warmup, device)
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            taken[name].append(seconds(works[name], repeats, device, clock))
    return taken


def median_ms(times: list[float]) -> float:
    """The median of seconds, in milliseconds."""
    return round(1000 * statistics.median(times), 3)


def ratios(over: list[float], under: list[float]) -> list[float]:
    """Round by round, one contestant over another."""
    return [round(left / right, 4) for left, right in zip(over, under, strict=True)]


def make_folder_of(out: Path, parser: argparse.ArgumentParser) -> None:
    """For a record that is to be written there; ends the program now if it could not be."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}")
    if obstacle := why_not_writable(out):
        parser.error(f"--out {out}: {obstacle}")


def asked_of_a_check(description: str | None, record: Path, arguments: list[str] | None) -> argparse.Namespace:
    """The options of a check on a GPU, where its record goes and which commit it names. Without a GPU, the end."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=record)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    make_folder_of(given.out, parser)
    return given


def options(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The options that all benchmarks have, and integers by name with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--commit", default=None, help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser
