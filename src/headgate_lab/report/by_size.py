"""Networks of the same size side by side: one line a size, one column a method, the printed accuracy first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headgate_lab.paper import PAPER
from headgate_lab.report.runs import Record, Runs, by_recipe, died
from headgate_lab.report.table import NOTHING, Sheet

# The experiments whose methods meet at sizes.
BY_SIZE = ("cifar",)
# Percent of the images.
ROUNDING = 0.1
COLUMNS = {
    "paper": "the paper's way",
    "ours": "ours",
    "found": "found widths",
    "narrower": "narrower",
    "dense": "dense",
}


class Size(NamedTuple):
    """What networks in one line share: at most so many parameters, or this fraction of the multiply-accumulates."""

    network: str
    dataset: str
    params: float | None
    macs: float | None


class Cell(NamedTuple):
    """Which method, at which size."""

    size: Size
    method: str


def by_size(experiment: str, records: Sequence[Record]) -> Sheet:
    """Accuracies in percent, of networks with their gates, as the paper prints them; compaction keeps them.

    A network made small in the paper's way, which ends where it ends, tells its size too, with a + where a compaction
    that did not keep its accuracy ended there.

    Sizes of which nothing has been measured are left out.
    """
    table = list(_printed(experiment))
    printed = {Size(network, dataset, size, None): text for network, dataset, size, _, text in table}
    strengths = {(network, dataset, strength): size for network, dataset, size, strength, _ in table}
    cells: dict[Cell, list[Runs]] = {}
    for group in by_recipe(records):
        if (cell := _cell(group, strengths)) is not None:
            cells.setdefault(cell, []).append(group)
    sizes = dict.fromkeys(cell.size for cell in cells if cell.method != "dense")
    lines = []
    for size in sorted(sizes, key=lambda one: (one.network, one.dataset, -(one.params or 0), -(one.macs or 0))):
        dense = size._replace(params=None, macs=None)
        found = [cells.get(Cell(dense if method == "dense" else size, method), []) for method in COLUMNS]
        lines.append((size.network, size.dataset, _words(size), printed.get(size, NOTHING), *map(_told, found)))
    return Sheet("", 3, ("network", "dataset", "at most", "printed", *COLUMNS.values()), tuple(lines))


def _printed(experiment: str) -> Iterator[tuple[str, str, float, float, str]]:
    """Of every line of the paper's table: network, dataset, parameters, strength, and the accuracy as printed."""
    numbers = PAPER[experiment].numbers
    for number in numbers:
        setting = number.setting
        if number.metric == "params" and number.value is not None:
            (text,) = (other.text for other in numbers if (other.metric, other.setting) == ("accuracy", setting))
            yield setting["network"], setting["dataset"], number.value, setting["strength"], text or NOTHING


def _cell(group: Runs, strengths: dict[tuple[str, str, float], float]) -> Cell | None:
    """A strength stands where the paper's network of that strength ended; one that the paper does not have, nowhere."""
    config = group.config
    network, dataset = config["network"], config["dataset"]
    params, macs, strength = (config.get(name) for name in ("params", "macs", "strength"))
    if strength is not None:
        ended = strengths.get((network, dataset, strength))
        return None if ended is None else Cell(Size(network, dataset, ended, None), "paper")
    method = "dense" if params is None and macs is None else config["method"]
    return Cell(Size(network, dataset, params, macs), method)


def _words(size: Size) -> str:
    return f"{size.macs:.0%} of the MACs" if size.macs is not None else f"{size.params:,.0f} parameters"


def _told(groups: Sequence[Runs]) -> str:
    """The mean accuracy and its spread over seeds, if there are several; one recipe after the other."""
    texts = []
    for group in groups:
        params, text = group.final("params"), _spread(group.final("accuracy_before"))
        if group.config.get("strength") is not None and params:
            text += f" at {statistics.fmean(params) / 1000:,.0f}k{'' if _kept_accuracy(group) else '+'}"
        if dead := sum(map(died, group.records)):
            text += f" ({dead} of {len(group.records)} dead)"
        texts.append(text)
    return ", ".join(texts) or NOTHING


def _kept_accuracy(group: Runs) -> bool:
    """Whether the small networks are as accurate as those with gates, but for images that rounding decides."""
    pairs = zip(*group.finals("accuracy", "accuracy_before"), strict=True)
    return all(abs(small - gated) <= ROUNDING for small, gated in pairs)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean
