"""What each command does. Packages are imported when a command needs them, so that help and errors come at once."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    import headgate as hg


# Wide enough for every table: without a terminal nothing is gained by breaking cells into lines.
COLUMNS_WITHOUT_TERMINAL = 240


class CommandError(Exception):
    """A command could not do what it was asked for; the message is one line for the user."""


def print_wide(table: Table) -> None:
    """Prints a table as wide as the terminal; without one, or where cells would be cut short, as wide as it needs."""
    from rich.console import Console

    console = Console()
    width = console.width if console.is_terminal else COLUMNS_WITHOUT_TERMINAL
    needed = Console(width=COLUMNS_WITHOUT_TERMINAL).measure(table).minimum
    Console(width=max(width, needed)).print(table)


def demo(parser: ArgumentParser, options: Namespace) -> int:
    """Trains, compacts, checks and saves; prints what came of it."""
    import torch
    from rich.console import Console

    import headgate as hg
    from headgate_lab.data.digits import digits
    from headgate_lab.files import write_whole
    from headgate_lab.pruning import PruningConfig
    from headgate_lab.pruning_outcome import run
    from headgate_lab.pruning_picture import picture
    from headgate_lab.pruning_view import lines_to_add, results, verdict, watching

    given = {name: value for name in ("epochs", "params") if (value := getattr(options, name)) is not None}
    try:
        config = PruningConfig(seed=options.seed, **given)
    except ValueError as error:
        parser.error(str(error))
    # The network is too small to gain from a second thread, and on a busy machine threads wait for each other.
    torch.set_num_threads(1)
    console = Console()
    with _folder(parser, options.out) as out:
        with watching(console, config, live=sys.stdout.isatty() and not console.is_dumb_terminal) as show:
            try:
                outcome = run(config, digits(), out / "small.safetensors", show)
            except hg.ArgumentError as error:
                raise CommandError(str(error)) from error
        write_whole(out / "architecture.png", picture(outcome))
    console.print(results(outcome))
    # Not through the console, which would break long lines.
    print(verdict(outcome))
    print(f"small model: {(out / 'small.safetensors').resolve()}\npicture: {(out / 'architecture.png').resolve()}")
    print(f"\nWhat to add to a script of your own:\n\n{lines_to_add(config)}")
    return 0


@contextmanager
def _folder(parser: ArgumentParser, out: Path) -> Iterator[Path]:
    """The folder for results, made if need be; one that was made and stayed empty is taken away again."""
    from headgate_lab.files import why_not_writable

    new = not out.exists()
    try:
        out.mkdir(exist_ok=True)
    except FileExistsError:
        parser.error(f"--out {out}: {out} is not a folder")
    except OSError as error:
        parser.error(f"--out {out}: cannot make the folder: {error.strerror}")
    try:
        for name in ("small.safetensors", "architecture.png"):
            if (obstacle := why_not_writable(out / name)) is not None:
                parser.error(f"--out {out}: {obstacle}")
        yield out
    finally:
        if new and not any(out.iterdir()):
            out.rmdir()


def plan(parser: ArgumentParser, options: Namespace) -> int:
    """Prints the plan of a user's model."""
    model, found = planned(parser, options)

    from headgate_lab.plan import as_json, as_text

    print(as_json(found) if options.json else as_text(model, found))
    return 0


def planned(parser: ArgumentParser, options: Namespace) -> tuple[nn.Module, hg.Plan]:
    """The user's model that `model`, `input` and `dtype` name, and its plan."""
    module, _, factory = options.model.partition(":")
    if not module or not factory:
        parser.error(f"{options.model} must be MODULE:FACTORY, such as mypackage.nets:Net")
    shapes = [_shape(parser, text) for text in options.input]
    types = options.dtype or ["float32"]
    types = types * len(shapes) if len(types) == 1 else types
    if len(types) != len(shapes):
        parser.error(f"{len(types)} --dtype for {len(shapes)} --input: give one for all, or one each")

    from headgate_lab.plan import DTYPES, PlanError, plan_of

    if unknown := [name for name in types if name not in DTYPES]:
        parser.error(f"--dtype {unknown[0]} is unknown; use one of {', '.join(DTYPES)}")
    try:
        return plan_of(options.model, shapes, types)
    except PlanError as error:
        raise CommandError(str(error)) from error


def _shape(parser: ArgumentParser, text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        parser.error(f"--input {text} must be sizes of 1 or more with commas between them, such as 1,3,224,224")
    return shape
