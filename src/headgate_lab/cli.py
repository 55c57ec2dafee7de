"""The `headgate` command. Only the standard library is imported here, so that help and errors come at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

LAB_PACKAGES = frozenset({"rich", "matplotlib", "sklearn", "numpy"})


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("headgate: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in LAB_PACKAGES:
            raise
        print(
            f"headgate: this command needs {missing}, which is not installed; get it with: pip install 'headgate[lab]'",
            file=sys.stderr,
        )
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog="headgate", description="Train a PyTorch network once and get a smaller one back.")
    parser.add_argument("--version", action="version", version=f"headgate {version('headgate')}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")
    demo = commands.add_parser("demo", help="watch a gate find the dimension of synthetic data")
    demo.description = (
        "A linear autoencoder with a gate on its 50 channels is trained on data made from a few hidden factors. "
        "The gate should end with exactly as many channels open. Exit status 1 if it does not."
    )
    demo.add_argument("--dimensions", type=int, nargs="+", default=[5, 10], metavar="R", help="hidden factors, 1 to 49")
    demo.add_argument("--seed", type=int, default=0, help="of data and initial weights (default 0)")
    demo.add_argument("--steps", type=int, default=2000, help="training steps for each dimension (default 2000)")
    demo.add_argument("--out", type=Path, default=Path("headgate-demo.png"), help="the picture (default %(default)s)")
    options = parser.parse_args(arguments)
    return _demo(demo, options.dimensions, options.seed, options.steps, options.out)


def _demo(parser: Parser, dimensions: Sequence[int], seed: int, steps: int, out: Path) -> int:
    import torch
    from rich.console import Console

    from headgate_lab.demo import DemoConfig, run
    from headgate_lab.demo_picture import picture
    from headgate_lab.demo_view import table, watching
    from headgate_lab.files import why_not_writable, write_whole

    # All that can be refused is refused before the training, not after it.
    if len(set(dimensions)) < len(dimensions):
        parser.error(f"--dimensions {' '.join(map(str, dimensions))} names a dimension twice")
    if (obstacle := why_not_writable(out)) is not None:
        parser.error(f"--out {out}: {obstacle}")
    try:
        configs = [DemoConfig(dimension, seed=seed, steps=steps) for dimension in dimensions]
    except ValueError as error:
        parser.error(str(error))

    # The matrices are too small to gain from a second thread, and on a busy machine threads wait for each other.
    torch.set_num_threads(1)
    console = Console()
    with watching(console, live=sys.stdout.isatty() and not console.is_dumb_terminal) as show:
        traces = [run(config, partial(show, config)) for config in configs]
    console.print(table(traces))
    write_whole(out, picture(traces))
    # Not through the console, which would break a long path into lines.
    print(f"picture: {out.resolve()}")
    return 0 if all(trace.exact for trace in traces) else 1


if __name__ == "__main__":
    sys.exit(main())
