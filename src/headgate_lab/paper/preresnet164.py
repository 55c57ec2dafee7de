"""Which networks the experiments with PreResNet-164 show: the paper's settings and, beside them, ours and controls.

A network is told by fields of its config. One training serves all experiments that show it: recipes are made of these
fields, and reports find records by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]

# Where the records of all of them are kept.
FOLDER = "preresnet164"
# What strength 0.4 leaves of 1.7 million parameters, in the paper's table of permutations.
SIZE = 615_000
# The range over which strengths and ratios spread. Here and below, what other experiments show too comes first.
SIZES = (SIZE, 1_200_000, 800_000, 300_000, 150_000)
# Of the strengths and of the ratios of channels in Appendix D five, or all if there are fewer; least and most are kept.
STRENGTHS = {"cifar10": (0.4, 0.0, 0.2, 0.5, 0.75), "cifar100": (0.4, 0.1, 0.2, 0.75, 1.0)}
RATIOS = {
    ("cifar10", "slimming"): (0.4, 0.1, 0.2, 0.6, 1.0),
    ("cifar10", "chipnet"): (0.4, 0.1, 0.2, 0.6, 1.0),
    ("cifar100", "slimming"): (0.4, 0.2, 0.3, 0.6, 1.0),
    ("cifar100", "chipnet"): (0.4, 0.2, 0.6, 1.0),
}


def _network(method: str, dataset: str = "cifar10", order: str = "index", **much: float | None) -> Fields:
    return {"network": "preresnet164", "dataset": dataset, "method": method, "order": order, **much}


def _curves() -> Iterator[Fields]:
    """CIFAR-10 first; of each dataset every method, and the full network."""
    for dataset, strengths in STRENGTHS.items():
        for size, strength in zip(SIZES, strengths, strict=True):
            yield _network("ours", dataset, params=size)
            yield _network("narrower", dataset, params=size)
            yield _network("paper", dataset, strength=strength)
        yield _network("narrower", dataset, params=None)
        for method in ("slimming", "chipnet"):
            yield from (_network(method, dataset, ratio=ratio) for ratio in RATIOS[dataset, method])


_PRUNED = _network("paper", strength=0.4)
_CHIPPED, _SLIMMED = (_network(method, ratio=0.4) for method in ("chipnet", "slimming"))
_OURS, _NARROWER = (_network(method, params=SIZE) for method in ("ours", "narrower"))

# By experiment, those of the paper first, in its order. Architectures are at 5 and 2 % of the parameters.
SHOWN: dict[str, tuple[Fields, ...]] = {
    "curves": tuple(_curves()),
    "stability": (_PRUNED, _CHIPPED, _SLIMMED, _OURS),
    "permutation": (_PRUNED | {"order": "random"}, _OURS | {"order": "random"}, _PRUNED, _NARROWER),
    "cka": (_network("narrower", params=None), _PRUNED, _SLIMMED, _CHIPPED, _OURS, _NARROWER),
    "architecture": (
        *(_network("paper", strength=strength) for strength in (1.0, 2.0)),
        *(_network("ours", params=size) for size in (85_000, 34_000)),
    ),
}
