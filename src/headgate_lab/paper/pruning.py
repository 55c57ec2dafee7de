"""Section 5: pruning PreResNet-164."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from headgate_lab.paper.number import Number
from headgate_lab.paper.preresnets import PAPERS, SHOWN

_PLACES = {"cifar10": "Fig. 6 (a)", "cifar100": "Fig. 6 (b)"}
_KNOBS = {"paper": "strength", "slimming": "ratio", "chipnet": "ratio"}


def _curves() -> Iterator[Number]:
    """Points without numbers and, of three settings, bars without numbers: the time of each stage, Fig. 6 (c).

    Appendix D names ratios of 0.4 for these; DAM's strength is not told.
    """
    for (dataset, place), (method, knob) in product(_PLACES.items(), _KNOBS.items()):
        wanted = (PAPERS, dataset, method)
        alike = [one for one in SHOWN["curves"] if (one["network"], one["dataset"], one["method"]) == wanted]
        for setting in sorted(alike, key=lambda one: float(one[knob])):
            for metric in ("accuracy", "pruned"):
                yield Number(metric, setting, place)
            if setting in SHOWN["stability"]:
                for stage in ("training", "pruning", "finetuning"):
                    yield Number(f"minutes_{stage}", setting, "Fig. 6 (c)")


CURVES = tuple(_curves())

# Fig. 7 shows losses of every epoch; what can stand in a table is where they end.
STABILITY = tuple(
    Number(metric, setting, f"Fig. 7, {panel}")
    for panel, setting in zip(("left", "middle", "right"), SHOWN["stability"], strict=False)
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
    numbers, setting = [], SHOWN["permutation"][0]
    for metric, (*runs, relative) in _PERMUTATION.items():
        for seed, text in enumerate(runs):
            numbers.append(Number(metric, {**setting, "seed": seed}, "tab:permutation_invariance", text))
        numbers.append(Number(metric, setting, "tab:permutation_invariance", relative, statistic="relative sd"))
    return tuple(numbers)


PERMUTATION = _permutation()
