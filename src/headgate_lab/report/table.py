"""A table to read: one line a setting, the paper's and our numbers side by side in each metric's columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from headgate_lab.paper import PAPER
from headgate_lab.paper.number import alike
from headgate_lab.report.remarks import following, value_of, words
from headgate_lab.report.rows import Row

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "–"
# Not a field of a config, but it tells lines apart as those do.
STATISTIC = "statistic"


@dataclass(frozen=True)
class Sheet:
    """A table as text: what all lines have in common, the head of each column, the cells, what follows from these.

    The first `settings` columns tell the setting.
    """

    common: str
    settings: int
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    following: str = ""


def sheet(rows: Sequence[Row]) -> Sheet:
    """The rows of one experiment, laid out: one or two columns a metric. What all share or tell anyway is a remark."""
    names = [*dict.fromkeys(name for row in rows for name in row.setting), STATISTIC]
    fixed = [name for name in names if len({_value(row, name) for row in rows}) == 1]
    follow = following(rows, [name for name in names if name not in (*fixed, STATISTIC)])
    shown = [name for name in names if name not in fixed and name not in follow]
    columns = [Column(metric, tuple(rows)) for metric in dict.fromkeys(row.metric for row in rows)]
    together: dict[str, list[Row]] = {}
    for row in rows:
        together.setdefault(json.dumps([row.setting, row.statistic], sort_keys=True), []).append(row)
    lines = []
    for line in together.values():
        cells = [_value(line[0], name) for name in shown]
        lines.append((*cells, *(cell for column in columns for cell in column.cells(line)), _runs(line)))
    head = (*map(words, shown), *(name for column in columns for name in column.head), "runs")
    common = {name: _value(rows[0], name) for name in fixed if name != STATISTIC}
    return Sheet(_remark(common, ", "), len(shown), head, tuple(lines), _besides(rows, follow))


def _besides(rows: Sequence[Row], follow: Mapping[str, str]) -> str:
    whose = "Besides, where there are runs" if any(row.n == 0 for row in rows) else "Besides"
    return f"{whose}: {_remark(follow, '; ')}" if follow else ""


def _remark(fields: Mapping[str, str], between: str) -> str:
    return between.join(f"{words(name)} {value}" for name, value in fields.items() if value)


@dataclass(frozen=True)
class Column:
    """What is told of a metric: ours, and the paper's beside it if the paper prints any."""

    metric: str
    rows: tuple[Row, ...]

    @property
    def head(self) -> tuple[str, ...]:
        """One name a column."""
        name = words(self.metric)
        return (f"{name}, {PAPER[self.rows[0].id].printed_by}", f"{name}, ours") if self._is_printed else (name,)

    def cells(self, line: Sequence[Row]) -> tuple[str, ...]:
        """The numbers of one line. Ours is written like the paper's or, if the paper lacks it, like its others."""
        row = next((row for row in line if row.metric == self.metric), None)
        if row is None:
            return (NOTHING, NOTHING) if self._is_printed else (NOTHING,)
        others = (other.text for other in self.rows if (other.metric, other.statistic) == (row.metric, row.statistic))
        like = row.text or next(filter(None, others), None)
        ours = _with_spread(row.ours, row.sd, like)
        return (_with_spread(row.paper, row.paper_sd, row.text), ours) if self._is_printed else (ours,)

    @property
    def _is_printed(self) -> bool:
        return any(row.text for row in self.rows if row.metric == self.metric)


def title(experiment: str, rows: Sequence[Row]) -> str:
    """What stands above the table: what it is about, its place in the paper, what its lines have in common."""
    part, laid = PAPER[experiment], sheet(rows)
    lines = [f"{part.title} ({part.place})" + (f"; {laid.common}" if laid.common else "")]
    return "\n".join([*lines, f"{laid.following}."] if laid.following else lines)


def without_empty_columns(laid: Sheet) -> Sheet:
    """The same without columns in which nothing is told."""
    told = [
        number
        for number in range(len(laid.head))
        if number < laid.settings or any(line[number] != NOTHING for line in laid.lines)
    ]
    head, *lines = (tuple(cells[number] for number in told) for cells in (laid.head, *laid.lines))
    return replace(laid, head=head, lines=tuple(lines))


def rich_table(laid: Sheet) -> Table:
    """The table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(laid.head):
        # Cells broken into lines or cut short are no numbers any more.
        longest = max(len(cells[number]) for cells in (laid.head, *laid.lines))
        justify: Literal["left", "right"] = "left" if number < laid.settings else "right"
        table.add_column(escape(name), justify=justify, min_width=longest)
    for line in laid.lines:
        table.add_row(*map(escape, line))
    return table


def markdown(laid: Sheet) -> str:
    """The table for a page."""
    rule = ["---" if number < laid.settings else "---:" for number in range(len(laid.head))]
    lines = [f"Everywhere: {laid.common}.\n"] if laid.common else []
    lines += [f"{laid.following}.\n"] if laid.following else []
    for cells in (laid.head, rule, *laid.lines):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> str:
    """All rows as a JSON list, a row a line."""
    return "[\n" + ",\n".join(json.dumps(row.as_json(), ensure_ascii=False) for row in rows) + "\n]"


def _value(row: Row, name: str) -> str:
    return row.statistic if name == STATISTIC else value_of(row.setting, name)


def _with_spread(value: float | None, sd: float | None, like: str | None) -> str:
    if value is None:
        return NOTHING
    return alike(value, like) + ("" if sd is None else f" ± {_spread(sd, like)}")


def _spread(sd: float, like: str | None) -> str:
    """In the manner of a printed number; without one, two significant digits, since no more are known."""
    if like is not None:
        return alike(sd, like)
    return f"{sd:.0f}" if sd >= 10 else f"{sd:.2g}"


def _runs(rows: Sequence[Row]) -> str:
    counts = sorted({row.n for row in rows})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
