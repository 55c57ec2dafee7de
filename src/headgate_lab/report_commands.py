"""The commands that show what experiments came to."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate_lab import commands
from headgate_lab.commands import CommandError

if TYPE_CHECKING:
    from headgate_lab.report.runs import Record


def print_table(parser: ArgumentParser, options: Namespace) -> int:
    """Prints the paper's numbers beside ours."""
    _check(parser, options.experiment)

    from headgate_lab.report.by_size import BY_SIZE, by_size
    from headgate_lab.report.rows import rows
    from headgate_lab.report.runs import ReportError, provenance
    from headgate_lab.report.table import as_json, rich_table, sheet, title

    records = _records(options.out, options.experiment)
    try:
        found = rows(options.experiment, records)
    except ReportError as error:
        raise CommandError(str(error)) from error
    if options.json:
        print(as_json(found))
        return 0
    table = rich_table(sheet(found))
    # Not through the console, which would break long lines.
    print(title(options.experiment, found))
    if found:
        commands.print_wide(table)
    if records and options.experiment in BY_SIZE:
        commands.print_wide(rich_table(by_size(options.experiment, records)))
    print(provenance(records) if records else _nothing(options.experiment, options.out))
    return 0


def draw_figure(parser: ArgumentParser, options: Namespace) -> int:
    """Draws a figure and says where it is."""
    from headgate_lab.files import why_not_writable, write_whole

    _check(parser, options.experiment)
    to = options.to or Path(f"headgate-figure-{options.experiment}.png")
    if (obstacle := why_not_writable(to)) is not None:
        parser.error(f"--to {to}: {obstacle}")
    if to.suffix.lower() != ".png":
        parser.error(f"--to {to}: the picture is a PNG, so its name must end in .png")

    from headgate_lab.report.figures import FIGURES, picture
    from headgate_lab.report.runs import ReportError

    if options.experiment not in FIGURES:
        parser.error(f"{options.experiment} has no figure; see headgate table {options.experiment}")
    records = _records(options.out, options.experiment)
    if not records:
        raise CommandError(_nothing(options.experiment, options.out))
    try:
        image = picture(options.experiment, records)
    except ReportError as error:
        raise CommandError(str(error)) from error
    write_whole(to, image)
    print(f"figure: {to.resolve()}")
    return 0


def _check(parser: ArgumentParser, experiment: str) -> None:
    from headgate_lab.paper import PAPER

    if experiment not in PAPER:
        parser.error(f"{experiment} is no experiment of the paper; they are: {', '.join(PAPER)}")


def _records(out: Path, experiment: str) -> list[Record]:
    from headgate_lab.engine.record import RecordError
    from headgate_lab.report.runs import records_of

    if out.exists() and not out.is_dir():
        raise CommandError(f"--out {out} is not a folder")
    try:
        return records_of(out, experiment)
    except RecordError as error:
        raise CommandError(str(error)) from error


def _nothing(experiment: str, out: Path) -> str:
    """What to say where there are no records: which command makes them, if one does."""
    from headgate_lab.recipes.catalog import EXPERIMENTS

    where = "" if out == Path("results") else f" --out {out}"
    if experiment in EXPERIMENTS:
        return f"no records of {experiment} in {out} yet: headgate run {experiment}{where}"
    return f"no records of {experiment} in {out} yet, and no recipe that makes them (see headgate list)"
