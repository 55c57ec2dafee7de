"""How fast compacted networks are: against the same widths built by hand, against dense, and with both kinds of branch.

    PYTHONPATH=src python -m benchmarks.latency

Three records: `latency-native` (a compacted VGG-19 and one whose class was given the same widths, the same weights in
both), `latency-vgg19` (92 % of the parameters gone, the same share from every layer, against dense), `latency-branches`
(PreResNets with half of every group closed and three quarters of what every branch writes, which is therefore narrower
than its stream, `branches="narrow"` against `"full"`). Evaluation mode, float32, images of
32 pixels, no gradients; contestants in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import headgate as hg
from benchmarks.timing import in_turns, median_ms, options, ratios
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG, VGG19
from headgate_lab.records import write_record

SPAN = 5.0
# Of VGG-19's channels, in every layer: what leaves 8 % of its parameters.
UNIFORM = 0.28


def compacted(build: Callable[[], nn.Module], keep: float, written: float | None = None, **insertion: Any) -> nn.Module:
    """A network that keeps this share of every gate's units; what branches write may have a share of its own."""
    torch.manual_seed(0)
    model = build()
    gates = hg.insert_gates_(model, torch.randn(2, 3, 32, 32), **insertion)
    with torch.no_grad():
        for name, gate in gates.items():
            share = written if written is not None and name.endswith(":write") else keep
            gate.offset.fill_((share - 1) * SPAN)
    return hg.compact(model)


def parameters(model: nn.Module) -> int:
    """How many numbers it learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def race(models: Mapping[str, nn.Module], batch: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per forward pass of each model, round by round, some 50 ms of work at a time."""
    images = torch.randn(batch, 3, 32, 32)
    works = {name: partial(model.eval(), images) for name, model in models.items()}
    with torch.inference_mode():
        slowest = max(times[0] for times in in_turns(works, rounds=1, repeats=2).values())
        return in_turns(works, args.rounds, max(1, round(0.05 / slowest)))


def compare(models: Mapping[str, nn.Module], batch: int, args: argparse.Namespace, **row: Any) -> dict[str, Any]:
    """One row: medians of two models in milliseconds, and the median ratio of the first over the second."""
    times = race(models, batch, args)
    first, second = models
    each = ratios(times[first], times[second])
    medians = {f"{name}_ms": median_ms(taken) for name, taken in times.items()}
    quartiles = statistics.quantiles(each, n=4)
    return {**row, "batch": batch, **medians, "ratio": round(statistics.median(each), 4), "spread": quartiles[::2]}


def against_native(args: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """A chain of half the widths."""
    small = compacted(VGG, keep=0.5)
    convolutions = iter(module for module in small.modules() if isinstance(module, nn.Conv2d))
    native = VGG(widths=tuple(width and next(convolutions).out_channels for width in VGG19))
    native.load_state_dict(small.state_dict())
    models = {"compacted": small, "native": native}
    rows = [compare(models, batch, args, model="vgg19") for batch in (1, 32)]
    worst = max(row["ratio"] for row in rows)
    return rows, f"a compacted VGG-19 takes at most {worst:.3f} times as long as one built with the same widths"


def against_dense(args: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """Most of a VGG-19 gone, evenly."""
    dense, small = VGG(), compacted(VGG, keep=UNIFORM)
    left = round(parameters(small) / parameters(dense), 4)
    models = {"dense": dense, "small": small}
    rows = [compare(models, batch, args, model="vgg19", left=left) for batch in (1, 32, 128)]
    gains = ", ".join(f"{row['ratio']:.1f} times (batch {row['batch']})" for row in rows)
    return rows, f"VGG-19 with {1 - left:.1%} of its parameters gone, evenly, is faster than dense: {gains}"


def of_branches(args: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """The same gates, residual branches written back or kept at full width."""
    rows = []
    for depth in (20, 56):
        build = partial(PreResNet, depth)
        models = {kind: compacted(build, keep=0.5, written=0.25, branches=kind) for kind in ("narrow", "full")}
        left = {f"{kind}_left": round(parameters(model) / parameters(build()), 4) for kind, model in models.items()}
        rows += [compare(models, batch, args, model=f"preresnet{depth}", **left) for batch in (1, 128)]
    found = ", ".join(f"{row['ratio']:.2f} ({row['model']}, batch {row['batch']})" for row in rows)
    return (
        rows,
        f"branches that write half of their stream take this many times as long narrow as at full width: {found}",
    )


PARTS = {"native": against_native, "vgg19": against_dense, "branches": of_branches}


def main() -> None:
    """Measures the parts asked for and writes one record each."""
    parser = options(__doc__, rounds=41)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for part in args.parts:
        start = time.perf_counter()
        rows, headline = PARTS[part](args)
        write_record(
            args.out / f"latency-{part}.json",
            recipe=f"latency/{part}",
            config={"image": 32, "rounds": args.rounds, "dtype": "float32"},
            metrics={"rows": rows},
            headline=headline,
            duration_s=time.perf_counter() - start,
            commit=args.commit,
        )
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
