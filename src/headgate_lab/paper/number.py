"""A number of the paper, as it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Number:
    """One number, or one setting of a figure that has none.

    Attributes:
        metric: its name among the final metrics of a record.
        setting: the fields of a record's config, and `seed`, that tell which runs it is about.
        place: where it stands: a figure or table, and where the table has parts, which.
        text: as printed, with the unit of its column; None if the figure shows no number.
        spread: the printed standard deviation.
        statistic: what of the runs is meant: their `mean` or their `relative sd`; where the metric is a map,
            the mean of its `least`, `median` or `most`.
    """

    metric: str
    setting: Mapping[str, Any]
    place: str
    text: str | None = None
    spread: str | None = None
    statistic: str = "mean"

    @property
    def value(self) -> float | None:
        """The number itself.

        >>> Number("params", {}, "tab", "1,627k").value
        1627000.0
        """
        return None if self.text is None else parse(self.text)

    @property
    def sd(self) -> float | None:
        """The printed standard deviation itself."""
        return None if self.spread is None else parse(self.spread)


@dataclass(frozen=True)
class Part:
    """What belongs to one experiment: its numbers, the words above its table, and whose numbers they are.

    Attributes:
        ours: metrics that the paper does not print, to be shown beside its own for every recipe; if it prints none and
            there are none here, all are shown.
    """

    title: str
    place: str
    numbers: tuple[Number, ...] = field(repr=False)
    printed_by: str = "paper"
    ours: tuple[str, ...] = ()


def parse(text: str) -> float:
    """The value of a printed number: commas between thousands, `k` for a thousand, `%` as it stands."""
    plain = text.replace(",", "").rstrip("%")
    return round(float(plain[:-1]) * 1000, 6) if plain.endswith("k") else float(plain)


def alike(value: float, text: str | None) -> str:
    """A value in the manner of a printed number: its unit, its decimals; without one, four significant digits.

    A fraction beside a whole number keeps a decimal: a mean of 5.2 is not 5.

    >>> alike(33561.0, "33.6k"), alike(98.4, "98.61"), alike(5.2, "5"), alike(5.0, "5"), alike(0.0123456, None)
    ('33.6k', '98.40', '5.2', '5', '0.01235')
    """
    if text is None:
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    unit = text[-1] if text[-1] in "k%" else ""
    value = value / 1000 if unit == "k" else value
    decimals = len(text.rstrip("k%").partition(".")[2]) or int(not value.is_integer())
    return f"{round(value, decimals) + 0.0:.{decimals}f}{unit}"  # adding 0.0 turns -0.0 into 0.0
