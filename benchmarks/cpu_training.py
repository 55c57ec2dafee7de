"""What a training step takes on a CPU with memory kept between steps (`engine/memory.py`), and in bfloat16.

Each way in a process of its own, since what is kept is not given back; processes in turns, one after the other. Writes
a record to results/benchmarks/.

    PYTHONPATH=src OMP_NUM_THREADS=1 python -m benchmarks.cpu_training
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.epoch import options, training
from benchmarks.timing import make_folder_of, ratios, seconds
from headgate_lab.engine.memory import keep_freed_memory
from headgate_lab.engine.precision import CHOICES, learning_in
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "benchmarks"
MEMORY = ("given back", "kept")
FIRST = (MEMORY[0], "float32")


def step_s(args: argparse.Namespace) -> float:
    """The median of seconds of a step, in this process."""
    memory, precision = args.way
    if memory == "kept" and not keep_freed_memory():
        raise SystemExit("memory cannot be kept here: the C library is not glibc, or an old one")
    with learning_in(CHOICES[precision]):
        (network,) = training(args, args.batch * args.steps).networks
        network.begin_epoch()
        seconds(network.step, 3)
        return statistics.median(seconds(network.step) for _ in range(args.steps))


def measured(args: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Every way's seconds, round by round."""
    found: dict[tuple[str, str], list[float]] = {way: [] for way in product(MEMORY, CHOICES)}
    for number in range(args.rounds):
        for way in list(found)[:: -1 if number % 2 else 1]:
            given = [f"--{name}={getattr(args, name)}" for name in ("model", "batch", "steps")]
            command = [sys.executable, "-m", "benchmarks.cpu_training", "--way", *way, *given]
            child = subprocess.run([*command, *(["--dense"] if args.dense else [])], check=True, stdout=subprocess.PIPE)
            found[way].append(float(child.stdout))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measures every way and writes the record."""
    parser = options(__doc__, model="preresnet20", epochs=1, device="cpu")
    parser.add_argument("--together", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dense", action="store_true", help="without gates")
    parser.add_argument("--way", nargs=2, metavar=("MEMORY", "PRECISION"), help="print the seconds of one way only")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.way:
        if tuple(args.way) not in product(MEMORY, CHOICES):
            parser.error(f"--way must be one of {', '.join(MEMORY)} and one of {', '.join(CHOICES)}")
        print(step_s(args))
        return
    what = f"{args.model}-{'dense' if args.dense else 'gated'}"
    out = args.out or RECORD / f"cpu_training-{what}.json"
    make_folder_of(out, parser)
    start = time.perf_counter()
    taken = measured(args)
    faster = {way: statistics.median(ratios(taken[FIRST], times)) for way, times in taken.items()}
    ways: dict[str, Any] = {
        ", ".join(way): {"step_s": [round(one, 4) for one in times], "faster": round(faster[way], 2)}
        for way, times in taken.items()
    }
    headline = (
        f"on a CPU a training step of {what} is {faster['kept', 'float32']:.2f} times as fast with memory kept, "
        f"{faster['given back', 'bfloat16']:.2f} times in bfloat16, {faster['kept', 'bfloat16']:.2f} times with both"
    )
    write_record(
        out,
        recipe=f"cpu_training/{what}",
        config={name: getattr(args, name) for name in ("model", "batch", "steps", "rounds", "dense")},
        metrics=ways,
        headline=headline,
        duration_s=time.perf_counter() - start,
        device="cpu",
        commit=args.commit,
    )
    print(json.dumps(ways))


if __name__ == "__main__":
    main()
