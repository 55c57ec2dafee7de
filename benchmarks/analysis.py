"""How long it takes to gate a network and to compact it, and how that grows with depth.

    PYTHONPATH=src python -m benchmarks.analysis

Per network: `insert_gates_`, half of every gate's units closed, `compact`; everything these do counts, trials and
comparisons included. The first network is gone through once before, untimed, so that imports do not count.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import headgate as hg
from benchmarks.timing import options, seconds
from benchmarks.vision import vision_models
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.records import write_record

# Closes half of a gate whose span is 5.
HALF = -2.5

FAMILIES: dict[str, tuple[int, dict[int, Callable[[], nn.Module]]]] = {
    "resnet": (
        224,
        {depth: lambda depth=depth: getattr(vision_models(), f"resnet{depth}")() for depth in (50, 101, 152)},
    ),
    "preresnet": (32, {depth: lambda depth=depth: PreResNet(depth) for depth in (20, 56, 110, 164)}),
}


def halve(build: Callable[[], nn.Module], size: int) -> dict[str, float]:
    """Seconds of both steps on a fresh network, batch 1, and the share of its parameters that is left."""
    torch.manual_seed(0)
    model, example = build(), torch.randn(1, 3, size, size)
    before = sum(parameter.numel() for parameter in model.parameters())
    found: dict[str, Any] = {}
    insertion = seconds(lambda: found.update(gates=hg.insert_gates_(model, example)))
    with torch.no_grad():
        for gate in found["gates"].values():
            gate.offset.fill_(HALF)
    compaction = seconds(lambda: found.update(small=hg.compact(model)))
    after = sum(parameter.numel() for parameter in found["small"].parameters())
    return {"insert_s": insertion, "compact_s": compaction, "left": after / before}


def row(family: str, depth: int, rounds: int) -> dict[str, Any]:
    """The medians over some rounds of one network."""
    size, builds = FAMILIES[family]
    runs = [halve(builds[depth], size) for _ in range(rounds)]
    insertion, compaction, left = (statistics.median(run[key] for run in runs) for key in runs[0])
    total = statistics.median(run["insert_s"] + run["compact_s"] for run in runs)
    return {
        "model": f"{family}{depth}",
        "image": size,
        "insert_s": round(insertion, 2),
        "compact_s": round(compaction, 2),
        "total_s": round(total, 2),
        "ms_per_layer": round(1000 * total / depth, 1),
        "left": round(left, 4),
    }


def main() -> None:
    """Times all networks and writes the record."""
    args = options(__doc__, rounds=3).parse_args()
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    halve(FAMILIES["preresnet"][1][20], 32)
    rows = [row(family, depth, args.rounds) for family, (_, builds) in FAMILIES.items() for depth in builds]
    by_name = {one["model"]: one for one in rows}
    growth = {
        family: by_name[f"{family}{max(builds)}"]["ms_per_layer"] / by_name[f"{family}{min(builds)}"]["ms_per_layer"]
        for family, (_, builds) in FAMILIES.items()
    }
    write_record(
        args.out / "analysis.json",
        recipe="analysis",
        config={"batch": 1, "rounds": args.rounds, "closed": 0.5},
        metrics={"rows": rows, "growth_per_layer": {family: round(value, 3) for family, value in growth.items()}},
        headline=f"gating ResNet-50 at 224 px, closing half of it and compacting it takes "
        f"{by_name['resnet50']['total_s']:.1f} s; ResNet-152 takes {growth['resnet']:.2f} times as long per layer, "
        f"PreResNet-164 {growth['preresnet']:.2f} times as long as PreResNet-20",
        duration_s=time.perf_counter() - start,
        commit=args.commit,
    )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
