"""Are networks of odd widths trained faster as their stand-ins (`headgate_lab.engine.stand_in`), and to the same end?

Uniformly narrower networks side by side, and networks cut as Network Slimming cuts them, with stand-ins and without,
epochs in turns; and how far their losses lie apart after the first epochs, beside two trainings without. Writes a
record to results/benchmarks/.

    PYTHONPATH=src python -m benchmarks.stand_ins
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.epoch import fresh, random_images
from benchmarks.timing import in_turns, make_folder_of
from headgate_lab.engine import network
from headgate_lab.engine.images import Resident
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.norm_channels import scales
from headgate_lab.methods.slimming import Slimmed
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "benchmarks" / "stand_ins.json"
# What is made smaller, how many parameters it may have, how many are trained side by side.
CASES = (
    ("preresnet20", 121_000, 8),
    ("preresnet20", 47_000, 8),
    ("slimmed preresnet56", 200_000, 8),
    ("vgg19", 264_000, 6),
)


def build(model: str, params: int, example: Tensor) -> nn.Module:
    """One of the networks at that size."""
    if model.startswith("slimmed"):
        whole = PreResNet(56)
        for scale in scales(whole).values():
            nn.init.uniform_(scale)
        return Slimmed(params=params).attach(whole, example)
    kind: Callable[[float], nn.Module] = {
        "vgg19": lambda width: VGG(width=width),
        "preresnet20": lambda width: PreResNet(20, width=width),
    }[model]
    return kind(Narrower(params).width(kind, example))


def training(model: str, params: int, data: Resident, args: argparse.Namespace, stand_ins: bool) -> SideBySide:
    """Fresh networks of that size."""
    before, network.STAND_INS_ON = network.STAND_INS_ON, (args.device,) if stand_ins else ()
    try:
        example = data.normalised(data.images[:2], torch.float32).cpu()
        found = fresh(lambda: build(model, params, example), Narrower(), data, args)
    finally:
        network.STAND_INS_ON = before
    assert all((one.stand_in is not None) == stand_ins for one in found.networks)
    return found


def compare(model: str, params: int, together: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an epoch for each network, both ways, and the losses of the first epoch."""
    args = argparse.Namespace(**{**vars(args), "together": together, "epochs": 50})
    data = random_images(args.images, torch.device(args.device))
    ways = {
        way: training(model, params, data, args, way == "stand-ins") for way in ("stand-ins", "plain", "plain again")
    }
    losses = {way: [round(metrics["loss"], 5) for metrics in found.epoch()] for way, found in ways.items()}
    works = {way: ways[way].epoch for way in ("stand-ins", "plain")}
    taken = in_turns(works, rounds=args.rounds, repeats=1, device=args.device, warmup=1)
    seconds = {way: statistics.median(rounds) / together for way, rounds in taken.items()}
    return {"model": model, "params": params, "together": together, "losses": losses, "epoch_s_each": seconds}


def main(arguments: list[str] | None = None) -> int:
    """Compares and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is none")
    make_folder_of(args.out, parser)
    start = time.perf_counter()
    cases = [compare(*case, args) for case in CASES]
    told = []
    for case in cases:
        faster = case["epoch_s_each"]["plain"] / case["epoch_s_each"]["stand-ins"]
        told.append(f"{faster:.2f} ({case['together']} {case['model']} of {case['params']:,} parameters)")
    headline = "as their stand-ins, networks of odd widths are trained this many times as fast: " + ", ".join(told)
    write_record(
        args.out,
        recipe="stand_ins",
        config={"images": args.images, "batch": args.batch, "rounds": args.rounds},
        metrics={"cases": cases},
        headline=headline,
        duration_s=time.perf_counter() - start,
        device=args.device,
        commit=args.commit,
    )
    print(headline)
    return 0


if __name__ == "__main__":
    sys.exit(main())
