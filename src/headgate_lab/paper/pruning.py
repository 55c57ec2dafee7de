"""Section 5: pruning PreResNet-164."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headgate_lab.paper.number import Number

# Fig. 6 (a) and (b), points without numbers. Appendix D: DAM's strengths, the other methods' ratios of channels.
_CURVES: dict[tuple[str, str, str, str], tuple[float, ...]] = {
    ("cifar10", "paper", "strength", "Fig. 6 (a)"): (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75),
    ("cifar10", "chipnet", "ratio", "Fig. 6 (a)"): (0.1, 0.2, 0.4, 0.6, 1.0),
    ("cifar10", "slimming", "ratio", "Fig. 6 (a)"): (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
    ("cifar100", "paper", "strength", "Fig. 6 (b)"): (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    ("cifar100", "chipnet", "ratio", "Fig. 6 (b)"): (0.2, 0.4, 0.6, 1.0),
    ("cifar100", "slimming", "ratio", "Fig. 6 (b)"): (0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
}

_PRUNED: dict[str, Any] = {"network": "preresnet164", "dataset": "cifar10", "method": "paper", "strength": 0.4}
_CHIPPED: dict[str, Any] = {"network": "preresnet164", "dataset": "cifar10", "method": "chipnet", "ratio": 0.4}
_SLIMMED: dict[str, Any] = {"network": "preresnet164", "dataset": "cifar10", "method": "slimming", "ratio": 0.4}


def _curves() -> Iterator[Number]:
    """Beside where they lead, what three of the settings take: Fig. 6 (c), bars without numbers.

    Appendix D names ratios of 0.4 for it; DAM's strength is not told.
    """
    for (dataset, method, knob, place), values in _CURVES.items():
        for value in values:
            setting = {"network": "preresnet164", "dataset": dataset, "method": method, knob: value}
            for metric in ("accuracy", "pruned"):
                yield Number(metric, setting, place)
            if setting in (_PRUNED, _CHIPPED, _SLIMMED):
                for stage in ("training", "pruning", "finetuning"):
                    yield Number(f"minutes_{stage}", setting, "Fig. 6 (c)")


CURVES = tuple(_curves())

# Fig. 7 shows losses of every epoch; what can stand in a table is where they end.
STABILITY = tuple(
    Number(metric, setting, f"Fig. 7, {panel}")
    for panel, setting in (
        ("left", _PRUNED),
        ("middle", _CHIPPED),
        ("right", _SLIMMED),
    )
    for metric in ("loss", "validation_loss")
)

# runs 1 to 5, then their relative standard deviation
_PERMUTATION = {
    "accuracy": ("94.11%", "93.86%", "93.71%", "93.93%", "93.52%", "0.0024"),
    "pruned_channels": ("43.31%", "43.14%", "43.31%", "43.14%", "43.02%", "0.0029"),
    "pruned": ("64.01%", "63.40%", "63.97%", "63.64%", "63.37%", "0.0048"),
}


def _permutation() -> tuple[Number, ...]:
    """Run 1 of the paper stands beside our seed 0, and so on."""
    numbers, setting = [], {**_PRUNED, "order": "random"}
    for metric, (*runs, relative) in _PERMUTATION.items():
        for seed, text in enumerate(runs):
            numbers.append(Number(metric, {**setting, "seed": seed}, "tab:permutation_invariance", text))
        numbers.append(Number(metric, setting, "tab:permutation_invariance", relative, statistic="relative sd"))
    return tuple(numbers)


PERMUTATION = _permutation()
