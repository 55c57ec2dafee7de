"""The `headgate` command. Only the standard library is imported at once, so that help and errors come at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headgate_lab import commands, draw_command, report_commands, run_commands
from headgate_lab.version import installed_version

LAB_PACKAGES = frozenset({"rich", "matplotlib", "sklearn", "numpy", "PIL"})


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    0 done, 1 failed, 2 wrong arguments, 75 out of time, 130 interrupted, 141 nobody reads the output any more.
    """
    if sys.stdout is None:
        return _complain("standard output is closed")
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:
        _drop_output()
        return _complain("nobody reads the output any more", 141)
    except commands.CommandError as error:
        return _complain(str(error))
    except OSError as error:
        _drop_output()
        return _complain(str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in LAB_PACKAGES:
            raise
        return _complain(
            f"this command needs {missing}, which is not installed; get it with: pip install 'headgate[lab]'"
        )


def _complain(message: str, status: int = 1) -> int:
    print(f"headgate: {message}", file=sys.stderr)
    return status


def _drop_output() -> None:
    """What could not be written would be tried again when Python ends, with a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog="headgate", description="Train a PyTorch network once and get a smaller one back.")
    parser.add_argument("--version", action="version", version=f"headgate {installed_version()}")
    known = parser.add_subparsers(required=True, dest="command", metavar="command")
    demo = _demo_parser(known.add_parser("demo", help="prune a network on handwritten digits, from start to file"))
    plan = _plan_parser(known.add_parser("plan", help="print what can be removed from a model of yours"))
    draw = _draw_parser(known.add_parser("draw", help="draw what is left of a model of yours, layer by layer"))
    listing = _list_parser(known.add_parser("list", help="list the paper's experiments and what is finished of them"))
    run = _run_parser(known.add_parser("run", help="run an experiment, or go on with it"))
    table = _table_parser(known.add_parser("table", help="print the paper's numbers and ours side by side"))
    figure = _figure_parser(known.add_parser("figure", help="draw what the runs of an experiment came to"))
    options = parser.parse_args(arguments)
    if options.command == "demo":
        return commands.demo(demo, options)
    if options.command == "plan":
        return commands.plan(plan, options)
    if options.command == "draw":
        return draw_command.draw(draw, options)
    if options.command == "list":
        return run_commands.list_experiments(listing, options)
    if options.command == "table":
        return report_commands.print_table(table, options)
    if options.command == "figure":
        return report_commands.draw_figure(figure, options)
    return run_commands.run_experiment(run, options)


def _demo_parser(parser: Parser) -> Parser:
    parser.description = (
        "A small residual network learns scikit-learn's handwritten digits with gates, is compacted, checked, saved. "
        "Two controls are trained by the same recipe: the full network, and one made uniformly narrower to about the "
        "size of the compacted one."
    )
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and batches (default 0)")
    parser.add_argument("--epochs", type=int, help="of each of the three trainings (default 24)")
    parser.add_argument("--params", type=float, help="the fraction of the parameters wanted (default 0.1)")
    parser.add_argument("--out", type=Path, default=Path("headgate-demo"), metavar="DIR", help="default %(default)s")
    return parser


def _plan_parser(parser: Parser) -> Parser:
    parser.description = (
        "Builds a model of yours, analyses it, and prints which channels can be removed together, and what must stay "
        "and why. Nothing is trained or changed. Example: headgate plan torchvision.models:resnet18 --input 1,3,224,224"
    )
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _draw_parser(parser: Parser) -> Parser:
    parser.description = (
        "Draws a small model that headgate.save wrote beside the full one: the channels of every layer before and "
        "after, residual streams, and blocks that are gone. Example: headgate draw mypackage.nets:Net "
        "small.safetensors --input 1,3,224,224 --to small.svg"
    )
    _add_model(parser)
    parser.add_argument("file", type=Path, metavar="FILE.safetensors", help="the small model")
    parser.add_argument(
        "--to", type=Path, default=Path("headgate-architecture.png"), metavar="FILE", help="default %(default)s"
    )
    return parser


def _add_model(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="MODULE:FACTORY", help="a function or class that needs no arguments, or a model"
    )
    parser.add_argument(
        "--input", action="append", required=True, metavar="SHAPE", help="such as 1,3,224,224; may repeat"
    )
    parser.add_argument(
        "--dtype", action="append", metavar="TYPE", help="for all inputs, or one each (default float32)"
    )


def _list_parser(parser: Parser) -> Parser:
    parser.description = "Every experiment of the paper that has recipes, and how many of its runs have their record."
    _add_out(parser)
    return parser


def _run_parser(parser: Parser) -> Parser:
    parser.description = (
        "Runs an experiment of the paper. Finished runs are skipped; interrupted ones go on from their last checkpoint."
    )
    parser.add_argument("recipe", metavar="EXPERIMENT", help="an id that headgate list shows")
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="only this setting, or all that contain this text; may be given several times",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1 (default: as many as the tables use)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default %(default)s")
    parser.add_argument(
        "--precision",
        choices=("auto", "bfloat16", "float32"),
        default="auto",
        help="of networks that learn images (default: bfloat16 on a GPU, float32 on a CPU)",
    )
    parser.add_argument("--together", type=int, metavar="N", help="runs to train side by side (default: as tried)")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="begin no epoch that would end later; what is left then is told, and the same command goes on with it",
    )
    parser.add_argument("--commit", help="to be recorded (default: that of headgate's checkout, or its version)")
    _add_out(parser)
    return parser


def _table_parser(parser: Parser) -> Parser:
    parser.description = (
        "Every number the paper prints for an experiment beside the mean and standard deviation of our runs, made from "
        "records only; below them our own variants and controls."
    )
    parser.add_argument("experiment", metavar="ID", help="such as lenet; a wrong one gets the list of all")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a number")
    _add_out(parser)
    return parser


def _figure_parser(parser: Parser) -> Parser:
    parser.description = "Draws the figure of an experiment from the records of its runs."
    parser.add_argument("experiment", metavar="ID", help="such as lenet; a wrong one gets the list of all")
    parser.add_argument("--to", type=Path, metavar="FILE.png", help="the picture (default headgate-figure-ID.png)")
    _add_out(parser)
    return parser


def _add_out(parser: Parser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="where records live (default %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main())
