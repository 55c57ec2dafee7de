"""What gates cost in training: the time of one step and the peak memory, gated against dense, in one run.

    PYTHONPATH=src python -m benchmarks.gated_step --model preresnet164 --device cuda --mode captured
    PYTHONPATH=src python -m benchmarks.gated_step --model resnet18 --batch 32

Modes: `eager` is float32 as a user would write it; `captured` is bfloat16 autocast, channels_last, with the whole step
in a CUDA graph. Dense and gated steps are timed in turns, so that a drifting clock meets both. Writes a record to
results/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import headgate as hg
from benchmarks.timing import in_turns, median_ms, options, ratios
from benchmarks.vision import vision_models
from headgate_lab.engine.captured import captured_where_possible
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from headgate_lab.records import write_record

MODELS: dict[str, Callable[[], nn.Module]] = {
    "preresnet20": lambda: PreResNet(20),
    "preresnet164": lambda: PreResNet(164),
    "resnet18": lambda: vision_models().resnet18(num_classes=10),
    "vgg19": VGG,
}


def make_step(model: nn.Module, batch: int, device: str, mode: str) -> Callable[[], None]:
    """One training step on fixed random images, penalty included where there are gates."""
    captured = mode == "captured"
    layout = torch.channels_last if captured else torch.contiguous_format
    images = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device=device)
    gated = bool(hg.gates(model))
    groups = hg.param_groups(model) if gated else [{"params": list(model.parameters())}]
    rate: Any = torch.tensor(0.05, device=device) if captured else 0.05
    # `fused=False` would not be the default: it rules the grouped kernels out that torch chooses by itself.
    fused = True if captured else None
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=5e-4, fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=captured, cache_enabled=False):
            loss = nn.functional.cross_entropy(model(images), labels)
        if gated:
            loss = loss + 0.1 * hg.penalty(model)
        loss.backward()
        optimizer.step()

    return captured_where_possible(step, list(model.parameters())) if captured else step


def build(name: str, gated: bool, device: str, mode: str) -> nn.Module:
    """A fresh model, the same weights for both variants."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    if mode == "captured":
        model = model.to(memory_format=torch.channels_last)
    if gated:
        hg.insert_gates_(model, torch.randn(2, 3, 32, 32, device=device))
    return model


def peak_memory(name: str, gated: bool, args: argparse.Namespace) -> float | None:
    """GiB allocated at most during steps, on CUDA."""
    if args.device != "cuda":
        return None
    model = build(name, gated, args.device, args.mode)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = make_step(model, args.batch, args.device, args.mode)
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per step of both, the median ratio of rounds, and peak memory."""
    memory = {kind: peak_memory(args.model, kind == "gated", args) for kind in ("dense", "gated")}
    steps = {
        kind: make_step(build(args.model, kind == "gated", args.device, args.mode), args.batch, args.device, args.mode)
        for kind in ("dense", "gated")
    }
    times = in_turns(steps, args.rounds, args.repeats, args.device)
    each = ratios(times["gated"], times["dense"])
    metrics: dict[str, Any] = {f"{kind}_ms": median_ms(taken) for kind, taken in times.items()}
    metrics |= {"ratio": round(statistics.median(each), 4), "ratios": each}
    if memory["dense"] and memory["gated"]:
        metrics |= {f"{kind}_gib": round(value, 3) for kind, value in memory.items() if value is not None}
        metrics["memory_ratio"] = round(memory["gated"] / memory["dense"], 4)
    return metrics


def main() -> None:
    """Measures one model in one mode and writes the record."""
    parser = options(__doc__, batch=128, repeats=20, rounds=5)
    parser.add_argument("--model", choices=MODELS, default="preresnet20")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", choices=("eager", "captured"), default="eager")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    metrics = measure(args)
    write_record(
        args.out / f"gated_step-{args.model}-{args.device}-{args.mode}.json",
        recipe=f"gated_step/{args.model}/{args.device}/{args.mode}",
        config={key: getattr(args, key) for key in ("model", "mode", "batch", "repeats", "rounds")},
        metrics=metrics,
        headline=f"a gated training step of {args.model} ({args.mode}, batch {args.batch}) takes "
        f"{metrics['ratio']:.2f} times the dense one",
        duration_s=time.perf_counter() - start,
        device=args.device,
        commit=args.commit,
    )
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()
