"""Records written by hand: what runs would have left, with numbers that can be checked by head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate_lab.engine.record import RECORD

ENVIRONMENT = {"torch": "2.13.0", "device": "two cores", "commit": "0123456789abcdef"}
LINEAR_5 = {"problem": "linear", "factors": 5, "settings": "paper", "lr": 0.01}


def write(
    out: Path,
    experiment: str,
    config: Mapping[str, Any],
    seed: int,
    final: Mapping[str, Any],
    epochs: Mapping[str, list[Any]] | None = None,
    **changes: Any,
) -> Path:
    """One run's record below `out`."""
    record = {
        "experiment": experiment,
        "recipe": "ByHand",
        "setting": " ".join(map(str, config.values())),
        "config": dict(config),
        "seed": seed,
        "metrics": {"epochs": dict(epochs or {}), "final": dict(final)},
        "environment": ENVIRONMENT,
        "seconds": {"train": 1.0},
        "together": 1,
    } | changes
    name = hashlib.sha256(json.dumps([record["recipe"], record["config"], seed]).encode()).hexdigest()[:12]
    path = out / experiment / name / RECORD
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record, allow_nan=False))
    return path


def write_dimension(out: Path) -> None:
    """Two seeds; the paper's settings end one above the truth in one of them, ours always at it."""
    for problem in ("linear", "quadratic", "neural"):
        for factors in (5, 10):
            for settings in ("paper", "ours"):
                for seed in (0, 1):
                    last = factors + (seed if settings == "paper" else 0)
                    config = {"problem": problem, "factors": factors, "settings": settings, "strength": 0.01}
                    path = [50 - (50 - last) * min(step, 8) // 8 for step in range(10)]
                    write(out, "dimension", config, seed, {"dimension": last, "loss": 1e-6}, {"dimension": path})


def write_sensitivity(out: Path) -> None:
    """One map of each kind; a cell has no number."""
    rates = [0.001, 0.01, 0.1]
    for over, values in (("strength", [0.01, 0.1]), ("offset", [0.0, 1.0])):
        dimensions: list[list[int | None]] = [[50, 20], [5, 5], [5, None]]
        losses: list[list[float | None]] = [[1.0, 0.5], [1e-6, 0.0], [1e-3, None]]
        config = {"problem": "linear", "map": over, "rates": rates, "values": values, "factors": 5}
        write(out, "sensitivity", config, 0, {"dimension": dimensions, "loss": losses})


def write_autoencoder(out: Path) -> None:
    """Three seeds of three strengths of each method; a classifier had nothing to learn from in one."""
    for method in ("dam", "l1"):
        for number, strength in enumerate((0.01, 1.0, 10.0)):
            for seed in range(3):
                dimension = 28 - 10 * number + seed
                f1 = None if number == 2 and seed == 2 else 0.95 - 0.02 * number
                final = {"dimension": dimension, "test_mse": 0.05 + 0.01 * number, "macro_f1": f1}
                write(out, "autoencoder", {"method": method, "strength": strength, "batch": 512}, seed, final)


def write_lenet(out: Path) -> None:
    """Two seeds of two strengths as in the paper, ours, and a narrower control that has no strength."""
    both = {"network": "lenet5", "activation": "tanh", "gradient_noise": 0.0}
    for method in ("paper", "ours"):
        for strength, params in ((0.0, 61706), (0.1, 4000)):
            for seed in range(2):
                final = {"accuracy": 98.0 + seed, "params": params + 100 * seed, "pruned": 100 - params / 617.06}
                write(out, "lenet", {**both, "strength": strength, "method": method}, seed, final)
    for seed in range(2):
        final = {"accuracy": 97.0, "params": 4100, "pruned": 93.4}
        write(out, "lenet", {**both, "strength": None, "method": "narrower", "width": 0.25}, seed, final)
