"""Of another source: what the authors of Network Slimming print of their code, to check our runs of it."""

from __future__ import annotations

from headgate_lab.paper.number import Number

# network, dataset, ratio of channels that stays; accuracy (%) after sparse training, after the cut, after fine-tuning;
# parameters. They warn of ± 0.5 points from run to run on CIFAR-10 and ± 1.5 on CIFAR-100.
_SLIMMING = """
vgg19        cifar10  0.3 93.30 32.54 93.78 2,250k
vgg19        cifar100 0.5 72.05 5.31  73.32 4,930k
preresnet164 cifar10  0.6 94.76 94.58 95.05 1,450k
preresnet164 cifar10  0.4 94.76 47.73 93.81 1,120k
preresnet164 cifar100 0.6 76.87 48.0  77.36 1,490k
"""

SLIMMING = tuple(
    Number(
        metric,
        {"network": network, "dataset": dataset, "method": "slimming", "ratio": float(ratio)},
        "README of Network Slimming",
        text,
    )
    for network, dataset, ratio, *texts in (line.split() for line in _SLIMMING.strip().splitlines())
    for metric, text in zip(("accuracy_uncut", "accuracy_cut", "accuracy", "params"), texts, strict=True)
)
