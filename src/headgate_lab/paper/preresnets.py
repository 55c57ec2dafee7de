"""Which networks the experiments with PreResNets show: the paper's settings and, beside them, ours and controls.

The paper's network is PreResNet-164. PreResNet-20, which a CPU can train too, goes through the same methods.

A network is told by fields of its config. One training serves all experiments that show it: recipes are made of these
fields, and reports find records by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]

# Where the records of all of them are kept.
FOLDER = "preresnets"
# The paper's network, and the one that a CPU can train.
PAPERS, LITTLE = "preresnet164", "preresnet20"
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
# The same share of 219,482 parameters as `SIZE` is of 1,703,258, and a twentieth.
LITTLE_SIZE, LEAST = 79_000, 11_000
# Of 19 gates each is pulled as much as one of 163 by about nine times that. The second one is large.
LITTLE_STRENGTHS = (0.1, 0.5)
# Beside the ratio at which the paper compares its methods: their first stages are the same.
LITTLE_RATIOS = (0.6, 0.2)
# Orders are compared over five seeds each, for less than a third of the epochs and at a strength between these.
LITTLE_ORDERED: Fields = {"strength": 0.2, "length": 6}


def _network(
    method: str, dataset: str = "cifar10", order: str = "index", network: str = PAPERS, **much: float | None
) -> Fields:
    return {"network": network, "dataset": dataset, "method": method, "order": order, **much}


def _by_every_method(network: str, strength: float, size: int) -> tuple[Fields, ...]:
    """The full network, the three that the paper compares, in its order, ours and the narrower one."""
    return (
        _network("narrower", network=network, params=None),
        _network("paper", network=network, strength=strength),
        _network("slimming", network=network, ratio=0.4),
        _network("chipnet", network=network, ratio=0.4),
        _network("ours", network=network, params=size),
        _network("narrower", network=network, params=size),
    )


_BY_METHOD = _by_every_method(PAPERS, STRENGTHS["cifar10"][0], SIZE)
_, _PRUNED, _SLIMMED, _CHIPPED, _OURS, _NARROWER = _BY_METHOD
# The paper's way and the two methods that it is compared with in the order of Fig. 7, then ours.
_IN_TURN = (_PRUNED, _CHIPPED, _SLIMMED, _OURS)

_LITTLE_BY_METHOD = _by_every_method(LITTLE, LITTLE_STRENGTHS[0], LITTLE_SIZE)
_LITTLE_IN_TURN = tuple(_LITTLE_BY_METHOD[place] for place in (1, 3, 2, 4))
# Where nearly nothing is to be left.
_LITTLE_EXTREMES = (
    _network("paper", network=LITTLE, strength=LITTLE_STRENGTHS[1]),
    _network("ours", network=LITTLE, params=LEAST),
    _network("narrower", network=LITTLE, params=LEAST),
)
_LITTLE_FOUND = tuple(_network("found", network=LITTLE, params=size) for size in (LITTLE_SIZE, LEAST))
_LITTLE_RATIOS = tuple(
    _network(method, network=LITTLE, ratio=ratio) for method in ("slimming", "chipnet") for ratio in LITTLE_RATIOS
)
_LITTLE_ORDERED = _network("paper", network=LITTLE, **LITTLE_ORDERED)


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
        yield from (_network("found", dataset, params=size) for size in SIZES)
    yield from (*_LITTLE_BY_METHOD, *_LITTLE_EXTREMES, *_LITTLE_FOUND, *_LITTLE_RATIOS)


# By experiment, those of the paper first, in its order. Architectures of PreResNet-164 are at 5 and 2 % of the
# parameters.
SHOWN: dict[str, tuple[Fields, ...]] = {
    "curves": tuple(_curves()),
    "stability": (*_IN_TURN, *_LITTLE_IN_TURN),
    "permutation": (
        *(_PRUNED | {"order": "random"}, _OURS | {"order": "random"}, _PRUNED, _NARROWER),
        *(_LITTLE_ORDERED | {"order": "random"}, _LITTLE_ORDERED),
    ),
    "cka": (*_BY_METHOD, *_LITTLE_BY_METHOD),
    "architecture": (
        *(_network("paper", strength=strength) for strength in (1.0, 2.0)),
        *(_network("ours", params=size) for size in (85_000, 34_000)),
        *_LITTLE_IN_TURN,
        *_LITTLE_EXTREMES[:2],
    ),
}
