"""How long a training takes that goes on with the small network once its size is met, against the dense one's.

    PYTHONPATH=src python -m benchmarks.training_time --params 1627000 --device cuda
    PYTHONPATH=src python -m benchmarks.training_time --params 1627000 --device cuda --multiple-of 8
    PYTHONPATH=src python -m benchmarks.training_time --params 264000 --images 2560

Epochs of each phase are timed in a short training on random images, a budget's with a size met at half of it. What a
whole training takes follows from its schedule. Writes a record to results/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.epoch import MODELS, fresh, options, random_images
from headgate_lab.engine.images import Resident
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import Narrower
from headgate_lab.records import write_record


def epochs_of(method: Method, data: Resident, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every epoch, in the order trained, of the network as it is built and of the small one."""
    training = fresh(MODELS[args.model], method, data, args)
    taken: dict[str, list[float]] = {"whole": [], "small": []}
    for _ in range(args.epochs):
        started = time.perf_counter()
        training.epoch()  # its metrics are read from the device: it is over when this returns
        kind = "whole" if training.networks[0].at_rest is None else "small"
        taken[kind].append(time.perf_counter() - started)
    return taken


def phases(args: argparse.Namespace) -> dict[str, float]:
    """Seconds of an epoch of each phase, and what the change to the small network takes once."""
    data = random_images(args.images, torch.device(args.device))
    dense = epochs_of(Narrower(), data, args)["whole"]
    ours = epochs_of(Budgeted(args.params, reach=0.5, train_on=True, multiple_of=args.multiple_of), data, args)
    small = statistics.median(ours["small"][1:])
    return {
        "dense_epoch_s": statistics.median(dense[1:]),
        "gated_epoch_s": statistics.median(ours["whole"][1:]),
        "small_epoch_s": small,
        "change_s": max(0.0, ours["small"][0] - small),
    }


def whole(found: dict[str, float], epochs: int, reach: float) -> float:
    """What a training of so many epochs takes, as a multiple of the dense one's."""
    gated = reach * epochs * found["gated_epoch_s"]
    ours = gated + (1 - reach) * epochs * found["small_epoch_s"] + found["change_s"]
    return ours / (epochs * found["dense_epoch_s"])


def main() -> None:
    """Measures and writes the record."""
    parser = options(__doc__, model="vgg19", epochs=8, device="cpu")
    parser.add_argument("--params", type=int, default=1_627_000)
    parser.add_argument("--multiple-of", type=int, default=1, help="widths of the small network, for tensor cores")
    parser.add_argument("--length", type=int, default=160, help="epochs of the training that is projected")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    args = parser.parse_args()
    args.together = 1
    start = time.perf_counter()
    found = phases(args)
    ratios = {f"ratio_reach_{reach:g}": whole(found, args.length, reach) for reach in (0.25, 0.5)}
    metrics: dict[str, Any] = {name: round(value, 4) for name, value in (found | ratios).items()}
    widths = "" if args.multiple_of == 1 else f"-widths-by-{args.multiple_of}"
    kept = ("model", "params", "multiple_of", "batch", "images", "epochs", "length")
    write_record(
        args.out / f"training_time-{args.model}-{args.params}-{args.device}{widths}.json",
        recipe=f"training_time/{args.model}/{args.params}/{args.device}{widths}",
        config={key: getattr(args, key) for key in kept},
        metrics=metrics,
        headline=f"{args.length} epochs of {args.model} that end in {args.params:,} parameters"
        f"{widths and f' and widths that are multiples of {args.multiple_of}'} take "
        f"{metrics['ratio_reach_0.25']:.2f} times the dense training, with the size met at a quarter "
        f"({metrics['ratio_reach_0.5']:.2f} at half)",
        duration_s=time.perf_counter() - start,
        device=args.device,
        commit=args.commit,
    )
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()
