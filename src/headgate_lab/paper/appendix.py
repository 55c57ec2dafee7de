"""Appendix E: LeNet-5, more networks on CIFAR, likeness of features, TinyImageNet."""

from __future__ import annotations

from typing import Any

from headgate_lab.paper.number import Number

# part of the table, activation, gradient noise; then strengths, parameters, pruned (%), accuracy (%)
_LENET = {
    ("a", "tanh", 0.0): """
0     0.01  0.02  0.05  0.1   0.2   0.3   0.4   0.5   1.0
60.0k 33.6k 18.7k 7.0k  3.9k  1.9k  1.4k  1.3k  1.0k  0.7k
0.00  44.15 68.82 88.41 93.59 96.78 97.71 97.85 98.31 98.90
98.85 98.61 98.47 98.16 97.49 96.54 95.47 94.79 93.70 90.12
""",
    ("b", "tanh", 0.05): """
0     0.01  0.02  0.05  0.1   0.2   0.3   0.4   0.5   1.0
60.0k 35.0k 18.8k 5.9k  3.9k  1.8k  1.4k  1.3k  1.0k  0.6k
0.00  41.71 68.70 90.19 93.53 96.97 97.67 97.85 98.31 99.00
98.78 98.57 98.69 98.03 97.69 96.61 95.64 94.78 94.16 90.16
""",
    ("c", "sine", 0.0): """
0     0.01  0.02  0.05  0.1   0.2   0.3   0.4   0.5   0.6
60.0k 21.5k 9.2k  3.4k  1.9k  1.5k  1.1k  1.2k  0.8k  0.6k
0.00  64.24 84.64 94.27 96.84 97.44 98.12 98.05 98.59 98.95
98.93 99.00 98.85 98.53 98.38 97.12 96.12 96.63 94.91 95.49
""",
}

# network, dataset, strength, top-1 (%), parameters, pruned channels (%), pruned parameters (%)
_CIFAR = """
vgg19        cifar10  0.1 93.39 1,627k 71.28 91.88
vgg19        cifar10  0.5 90.92 264k   89.17 98.68
vgg19        cifar100 0.1 73.40 6,190k 41.30 69.17
vgg19        cifar100 0.5 67.17 664k   79.81 96.69
preresnet20  cifar100 0.1 67.33 228k   2.72  5.88
preresnet20  cifar100 0.2 66.53 217k   5.37  10.50
preresnet20  cifar100 0.3 66.46 206k   7.72  15.13
preresnet20  cifar100 0.4 65.83 191k   11.25 21.18
preresnet20  cifar100 0.5 66.17 183k   14.12 24.67
preresnet20  cifar100 1.0 63.15 121k   31.84 50.05
preresnet20  cifar100 2.0 54.79 47k    62.35 80.45
preresnet56  cifar100 0.1 72.74 573k   3.33  6.60
preresnet56  cifar100 0.2 72.64 526k   7.93  14.35
preresnet56  cifar100 0.3 72.49 493k   10.72 19.67
preresnet56  cifar100 0.4 72.28 466k   14.62 24.14
preresnet56  cifar100 0.5 71.73 419k   19.17 31.73
preresnet56  cifar100 1.0 69.94 314k   33.60 48.77
preresnet56  cifar100 2.0 64.31 153k   62.94 75.05
preresnet110 cifar10  0.1 94.51 975k   9.72  15.01
preresnet110 cifar10  0.2 93.73 808k   20.71 29.54
preresnet110 cifar10  0.3 93.28 646k   31.10 43.65
preresnet110 cifar10  0.4 93.35 560k   37.08 51.18
preresnet110 cifar10  0.5 92.97 482k   46.55 58.00
preresnet110 cifar10  1.0 91.61 208k   72.51 81.85
preresnet110 cifar10  2.0 88.90 89k    84.99 92.21
preresnet110 cifar100 0.1 75.55 1110k  4.20  5.15
preresnet110 cifar100 0.2 74.73 1010k  10.24 13.70
preresnet110 cifar100 0.3 75.08 940k   14.54 19.63
preresnet110 cifar100 0.4 73.93 873k   18.37 25.41
preresnet110 cifar100 0.5 73.44 817k   21.87 30.17
preresnet110 cifar100 1.0 71.63 547k   39.68 53.21
preresnet110 cifar100 2.0 68.32 261k   66.45 77.72
"""

# The text does not say on which dataset, so the settings name none; nor does it say which CKA.
_CKA = """
         unpruned paper slimming chipnet
cka_mean 0.273    0.229 0.328    0.295
cka_sd   0.018    0.013 0.021    0.020
cka_max  0.840    0.740 0.893    0.964
"""

# strengths, top-1 (%), pruned channels (%)
_TINYIMAGENET = """
0.0   0.1   0.3   0.5   0.7   1.0   2.0
52.72 52.75 52.51 52.99 52.11 52.89 53.17
0.00  6.03  20.05 30.91 38.71 45.94 68.52
"""


def _across(block: str, metrics: tuple[str, ...], setting: dict[str, Any], place: str) -> tuple[Number, ...]:
    """A table whose first line is strengths and whose others are a metric each."""
    strengths, *lines = (line.split() for line in block.strip().splitlines())
    return tuple(
        Number(metric, {**setting, "strength": float(strength)}, place, text)
        for metric, line in zip(metrics, lines, strict=True)
        for strength, text in zip(strengths, line, strict=True)
    )


LENET = tuple(
    number
    for (part, activation, noise), block in _LENET.items()
    for number in _across(
        block,
        ("params", "pruned", "accuracy"),
        {"network": "lenet5", "activation": activation, "gradient_noise": noise, "method": "paper"},
        f"tab:mnist_dam_lenet ({part})",
    )
)

CIFAR = tuple(
    Number(
        metric,
        {"network": network, "dataset": dataset, "method": "paper", "strength": float(strength)},
        "tab:cifar",
        text,
    )
    for network, dataset, strength, *texts in (line.split() for line in _CIFAR.strip().splitlines())
    for metric, text in zip(("accuracy", "params", "pruned_channels", "pruned"), texts, strict=True)
)


def _cka() -> tuple[Number, ...]:
    methods, *lines = (line.split() for line in _CKA.strip().splitlines())
    settings: list[dict[str, Any]] = [
        # Unpruned is a narrower network to which no size was given.
        {"network": "preresnet164", **({"method": "narrower", "params": None} if m == "unpruned" else {"method": m})}
        for m in methods
    ]
    printed = [
        Number(metric, setting, "tab:cka", text)
        for metric, *texts in lines
        for setting, text in zip(settings, texts, strict=True)
    ]
    further = ("rbf_cka_mean", "rbf_cka_sd", "rbf_cka_max", "features", "accuracy", "pruned")
    return (*printed, *(Number(metric, setting, "tab:cka, not printed") for metric in further for setting in settings))


CKA = _cka()

TINYIMAGENET = _across(
    _TINYIMAGENET,
    ("accuracy", "pruned_channels"),
    {"network": "preresnet164", "dataset": "tinyimagenet", "method": "paper"},
    "tab:tinyimagenet",
)
