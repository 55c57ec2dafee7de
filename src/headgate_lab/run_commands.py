"""The commands that list and run experiments."""

from __future__ import annotations

import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate_lab.commands import CommandError, print_wide

if TYPE_CHECKING:
    import torch

    from headgate_lab.engine.job import Job, Recipe
    from headgate_lab.recipes.experiment import Experiment

# Generators look at 32 bits of what recipes make of a seed.
MOST_SEEDS = 10_000
SETTINGS_SHOWN = 6
# What a command returns that ran out of time: as of any that may be tried again.
OUT_OF_TIME = 75


def list_experiments(parser: ArgumentParser, options: Namespace) -> int:
    """Prints every experiment: how many of its runs are finished, and where it stands in the paper."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from headgate_lab.engine.record import RecordError
    from headgate_lab.engine.run import is_finished
    from headgate_lab.recipes.catalog import EXPERIMENTS

    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out} is not a folder")

    table = Table("experiment", "paper", "finished", "what", box=SIMPLE_HEAD)
    for experiment in EXPERIMENTS.values():
        jobs = _jobs(experiment.recipes(), experiment.seeds)
        try:
            finished = sum(is_finished(job, options.out) for job in jobs)
        except RecordError as error:
            raise CommandError(str(error)) from error
        table.add_row(experiment.id, experiment.place, f"{finished}/{len(jobs)}", experiment.title)
    print_wide(table)
    if not options.out.exists():
        print(f"there is no folder {options.out} yet")
    return 0


def run_experiment(parser: ArgumentParser, options: Namespace) -> int:
    """Runs what is missing of an experiment; 1 if a run failed, `OUT_OF_TIME` if some are left."""
    started = time.monotonic()
    from headgate_lab.engine.checkpoint import CheckpointError
    from headgate_lab.engine.memory import keep_freed_memory
    from headgate_lab.engine.precision import CHOICES, learning_in
    from headgate_lab.engine.record import RecordError
    from headgate_lab.engine.run import Place, is_finished, run
    from headgate_lab.engine.watch import watching
    from headgate_lab.recipes.catalog import EXPERIMENTS
    from headgate_lab.records import environment

    experiment = EXPERIMENTS.get(options.recipe)
    if experiment is None:
        parser.error(f"{options.recipe} is no experiment; see headgate list: {', '.join(EXPERIMENTS)}")
    for name, most in (("seeds", MOST_SEEDS), ("together", sys.maxsize)):
        if (value := getattr(options, name)) is not None and not 1 <= value <= most:
            limit = f"from 1 to {most}" if name == "seeds" else "1 or more"
            parser.error(f"--{name} must be {limit}, not {value}")
    minutes = math.inf if options.minutes is None else options.minutes
    if not minutes > 0:
        parser.error(f"--minutes must be more than 0, not {minutes:g}")
    jobs = _jobs(_asked_for(parser, experiment, options.only or [""]), options.seeds or experiment.seeds)
    device = _device(parser, options.device)
    precision = CHOICES.get(options.precision)
    if precision is not None and not all(job.recipe.takes_precision for job in jobs):
        parser.error(f"--precision {options.precision}: networks of {experiment.id} learn in their own; leave it out")
    _make_folder(parser, options.out)
    made_with = environment(device.type, options.commit or _version_or_commit(), precision)
    place = Place(options.out, device, made_with)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        if done := sum(is_finished(job, options.out) for job in jobs):
            print(f"{done} of {len(jobs)} runs are finished already")
        with watching() as watch, learning_in(precision):
            together, until = options.together or experiment.together, started + 60 * minutes
            failures = run(jobs, place, watch, together=together, until=until)
    except (CheckpointError, RecordError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoint, or begins anew if there is none yet")
        raise
    for failure in failures:
        print(f"failed: {failure}")
    failed = {failure.job for failure in failures}
    if left := sum(job not in failed and not is_finished(job, options.out) for job in jobs):
        print(f"out of time with {left} of {len(jobs)} runs left: the same command goes on with them")
    return 1 if failures else OUT_OF_TIME if left else 0


def _asked_for(parser: ArgumentParser, experiment: Experiment, texts: Sequence[str]) -> list[Recipe]:
    """The recipes that any of the texts fits, each once, in the experiment's order."""
    recipes = experiment.recipes()
    wanted: set[str] = set()
    for text in texts:
        fitting = {recipe.setting for recipe in recipes if text in recipe.setting}
        if not fitting:
            known = list(dict.fromkeys(recipe.setting for recipe in recipes))
            shown = "; ".join(known[:SETTINGS_SHOWN]) + (f"; … ({len(known)} in all)" if known[SETTINGS_SHOWN:] else "")
            parser.error(f"--only {text} fits no setting of {experiment.id}; they are: {shown}")
        # A setting that is named in full is meant alone, also where others contain its name.
        wanted |= {text} if text in fitting else fitting
    return [recipe for recipe in recipes if recipe.setting in wanted]


def _jobs(recipes: Sequence[Recipe], seeds: int) -> list[Job]:
    """One seed of everything first: a table with holes says less than one with fewer seeds."""
    from headgate_lab.engine.job import Job

    return [Job(recipe, seed) for seed in range(seeds) for recipe in recipes]


def _device(parser: ArgumentParser, wanted: str) -> torch.device:
    import torch

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here; use --device cpu")
    return torch.device(wanted)


def _version_or_commit() -> str:
    """What records name: the commit of the checkout, or the version that is installed, which is said."""
    from headgate_lab.records import checkout_commit
    from headgate_lab.version import installed_version

    if (commit := checkout_commit()) is not None:
        return commit
    version = f"headgate {installed_version()}"
    print(f"this is no git checkout: records will name {version} (--commit names another)")
    return version


def _make_folder(parser: ArgumentParser, out: Path) -> None:
    from headgate_lab.files import why_not_writable

    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        parser.error(f"--out {out} is not a folder, or lies below something that is none")
    except OSError as error:
        parser.error(f"--out {out}: cannot make the folder: {error.strerror}")
    if (obstacle := why_not_writable(out / "record.json")) is not None:
        parser.error(f"--out {out}: {obstacle}")
