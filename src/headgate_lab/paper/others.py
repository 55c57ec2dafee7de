"""Numbers that others print for the same tasks: what ours is to be compared with, not the paper's."""

from __future__ import annotations

from headgate_lab.paper.number import Number

# Network, dataset, whose, fraction of multiply-accumulates or number of parameters, accuracy (%), where it is printed.
_BEYOND: tuple[tuple[str, str, str, dict[str, float | int], str, str], ...] = (
    ("resnet56", "cifar10", "DepGraph", {"macs": 0.469}, "93.77", "Torch-Pruning, reproduce/readme: 93.53 → 93.77"),
    ("resnet56", "cifar10", "DepGraph", {"macs": 0.389}, "93.64", "Torch-Pruning, reproduce/readme: 93.53 → 93.64"),
    ("resnet56", "cifar10", "OCSPruner", {"macs": 0.5}, "93.81", "OCSPruner's logs of three runs: 93.85, 93.66, 93.91"),
    ("resnet18", "cifar10", "HESSO", {"params": 893_000}, "92.81", "OTO, tutorial 01: 93.02 → 92.81"),
    ("vgg19", "cifar100", "DepGraph", {"macs": 0.112}, "70.39", "Torch-Pruning, reproduce/readme: 73.50 → 70.39"),
)

BEYOND = tuple(
    Number(metric, {"network": network, "dataset": dataset, "method": "ours", "against": against, **size}, place, text)
    for network, dataset, against, size, accuracy, place in _BEYOND
    for metric, text in (("accuracy", accuracy), ("pruned", None))
)
