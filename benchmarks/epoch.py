"""The engine's speed: seconds per epoch of 50,000 CIFAR-sized images, networks side by side, gated as by default.

    PYTHONPATH=src python benchmarks/epoch.py --model preresnet164 --together 8

Also says how far captured training is from plain training after one epoch of a small network (`--check`).
Writes a record to results/benchmarks/ or results/checks/.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headgate_lab.data.images import Normalisation
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.network import Network, Optimization
from headgate_lab.engine.precision import precision_on
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import Dam
from headgate_lab.methods.narrower import Narrower
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from headgate_lab.records import write_record

MODELS: dict[str, Callable[[], nn.Module]] = {
    "preresnet20": lambda: PreResNet(20),
    "preresnet56": lambda: PreResNet(56),
    "preresnet164": lambda: PreResNet(164),
    "vgg19": VGG,
}


def options(description: str | None, model: str, epochs: int, device: str) -> argparse.ArgumentParser:
    """What is asked of every benchmark that times epochs, with its defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default=model)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--commit", default=None)
    return parser


def random_images(count: int, device: torch.device) -> Resident:
    """As many as an epoch has, resident on the device."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return Resident(pixels, labels, Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))).to(device)


def fresh(build: Callable[[], nn.Module], method: Method, data: Resident, args: argparse.Namespace) -> SideBySide:
    """Fresh networks on these images, for `args.epochs` epochs."""
    dtype = precision_on(data.images.device)
    how = Optimization("sgd", 0.05, 5e-4, lambda epoch, epochs: 1.0)
    torch.manual_seed(0)
    model = build().to(data.images.device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    template = method.attach(model, data.normalised(data.images[:2], torch.float32))
    networks = []
    for seed in range(args.together):
        model = copy.deepcopy(template)
        batches = Batches(data, args.batch, seed, pad=4, flip=True, dtype=dtype)
        networks.append(Network(model, method, batches, how, epochs=args.epochs, seed=seed))
    return SideBySide(networks, lambda number, network: {})


def training(args: argparse.Namespace, images: int) -> SideBySide:
    """Networks of the kind asked for."""
    method: Method = Narrower() if args.dense else Dam(0.1)
    return fresh(MODELS[args.model], method, random_images(images, torch.device(args.device)), args)


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per epoch after the first, which captures; per network too, and the peak memory."""
    side_by_side = training(args, args.images)
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(1 + args.epochs):
        started = time.perf_counter()
        side_by_side.epoch()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    return {
        "first_epoch_s": round(seconds[0], 3),
        "epoch_s": round(median, 3),
        "epoch_s_each": round(median / args.together, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def check(args: argparse.Namespace) -> dict[str, Any]:
    """The largest relative difference of weights between captured and plain training, and between two plain ones."""
    weights = []
    for captured in (True, False, False):
        side_by_side = training(args, images=20 * args.batch)
        if not captured:
            side_by_side.plain_steps = 10**9
        losses = [metrics["loss"] for metrics in side_by_side.epoch()]
        weights.append([p.detach().float() for n in side_by_side.networks for p in n.model.parameters()])
    captured_off, plain_off = (
        max(((a - b).norm() / b.norm().clamp_min(1e-12)).item() for a, b in zip(one, weights[2], strict=True))
        for one in weights[:2]
    )
    return {"captured_against_plain": captured_off, "plain_against_plain": plain_off, "losses": losses}


def main() -> None:
    """Measures and writes the record."""
    parser = options(__doc__, model="preresnet164", epochs=2, device="cuda")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--dense", action="store_true", help="without gates")
    parser.add_argument("--check", action="store_true", help="compare captured with plain training instead")
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    start = time.perf_counter()
    metrics = check(args) if args.check else speed(args)
    kind = "dense" if args.dense else "gated"
    what = f"{args.model}-{kind}-{args.together}"
    write_record(
        args.out / ("checks" if args.check else "benchmarks") / f"{'captured' if args.check else 'epoch'}-{what}.json",
        recipe=f"epoch/{what}",
        config={key: getattr(args, key) for key in ("model", "together", "batch", "images", "epochs", "dense")},
        metrics=metrics,
        headline=f"captured and plain training of {args.together} {kind} {args.model} differ by "
        f"{metrics['captured_against_plain']:.1e}, two plain ones by {metrics['plain_against_plain']:.1e}"
        if args.check
        else f"an epoch of {args.images:,} images takes {metrics['epoch_s_each']:.2f} s for each of {args.together} "
        f"{kind} {args.model} side by side",
        duration_s=time.perf_counter() - start,
        device=args.device,
        commit=args.commit,
    )
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()
