"""The commands that list and run experiments."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate_lab.commands import CommandError

if TYPE_CHECKING:
    import torch

    from headgate_lab.engine.job import Job
    from headgate_lab.recipes.experiment import Experiment


def list_experiments(parser: ArgumentParser, options: Namespace) -> int:
    """Prints every experiment: how many of its runs are finished, and where it stands in the paper."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from headgate_lab.engine.run import is_finished
    from headgate_lab.recipes.catalog import EXPERIMENTS

    table = Table("experiment", "paper", "finished", "what", box=SIMPLE_HEAD)
    for experiment in EXPERIMENTS.values():
        jobs = _jobs(experiment, experiment.seeds, "")
        finished = sum(is_finished(job, options.out) for job in jobs)
        table.add_row(experiment.id, experiment.place, f"{finished}/{len(jobs)}", experiment.title)
    Console().print(table)
    return 0


def run_experiment(parser: ArgumentParser, options: Namespace) -> int:
    """Runs what is missing of an experiment; 1 if a run failed."""
    from headgate_lab.engine.checkpoint import CheckpointError
    from headgate_lab.engine.record import RecordError
    from headgate_lab.engine.run import Place, is_finished, run
    from headgate_lab.engine.watch import watching
    from headgate_lab.recipes.catalog import EXPERIMENTS
    from headgate_lab.records import environment

    experiment = EXPERIMENTS.get(options.recipe)
    if experiment is None:
        parser.error(f"{options.recipe} is no experiment; see headgate list: {', '.join(EXPERIMENTS)}")
    for name in ("seeds", "together"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be 1 or more, not {value}")
    jobs = _jobs(experiment, options.seeds or experiment.seeds, options.only)
    if not jobs:
        known = ", ".join(dict.fromkeys(recipe.setting for recipe in experiment.recipes()))
        parser.error(f"--only {options.only} fits no setting of {experiment.id}; they are: {known}")
    device = _device(parser, options.device)
    _make_folder(parser, options.out)
    place = Place(options.out, device, environment(device.type, options.commit))
    try:
        if done := sum(is_finished(job, options.out) for job in jobs):
            print(f"{done} of {len(jobs)} runs are finished already")
        with watching() as watch:
            failures = run(jobs, place, watch, together=options.together or experiment.together)
    except (CheckpointError, RecordError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoint")
        raise
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if failures else 0


def _jobs(experiment: Experiment, seeds: int, only: str) -> list[Job]:
    from headgate_lab.engine.job import Job

    recipes = [recipe for recipe in experiment.recipes() if only in recipe.setting]
    # One seed of everything first: a table with holes says less than one with fewer seeds.
    return [Job(recipe, seed) for seed in range(seeds) for recipe in recipes]


def _device(parser: ArgumentParser, wanted: str) -> torch.device:
    import torch

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here; use --device cpu")
    return torch.device(wanted)


def _make_folder(parser: ArgumentParser, out: Path) -> None:
    from headgate_lab.files import why_not_writable

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: cannot make the folder: {error.strerror}")
    if (obstacle := why_not_writable(out / "record.json")) is not None:
        parser.error(f"--out {out}: {obstacle}")
