"""Runs: named by what decides them, skipped when finished, identical after any interruption."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headgate_lab.engine import run as run_module
from headgate_lab.engine.checkpoint import CheckpointError, checkpoint_path
from headgate_lab.engine.job import FAILED, Job, Metrics, later
from headgate_lab.engine.record import RecordError, read_run, read_runs, write_run
from headgate_lab.engine.run import batches, run
from headgate_lab.engine.watch import Lines
from tests.lab.engine.straight_line import Lined, StraightLine, here


class Silent:
    def __init__(self) -> None:
        self.began: list[int] = []

    def begin(self, jobs: Any, epochs: int, done: int) -> None:
        self.began.append(done)

    def epoch(self, number: int, metrics: Any) -> None: ...

    def end(self, jobs: Any, final: Any) -> None: ...


def metrics_of(out: Path, job: Job) -> dict[str, Any]:
    metrics: dict[str, Any] = read_run(job.folder(out) / "record.json")["metrics"]
    return metrics


def test_a_run_is_named_by_recipe_and_seed() -> None:
    # Records are found by these names: a change here loses every record on disk.
    assert Job(StraightLine(2.0), 0).name == "32e5ce59b210"
    assert Job(StraightLine(2.0), 1).name == "257057973c2d"
    assert Job(StraightLine(2.5), 0).name == "74557ec6b800"


def test_a_field_added_later_leaves_old_names_alone() -> None:
    @dataclass(frozen=True)
    class Line(StraightLine):
        noise: float = later(0.0)

    Line.__name__ = "StraightLine"
    assert Job(Line(2.0), 0).name == Job(StraightLine(2.0), 0).name
    assert Job(Line(2.0, noise=0.1), 0).name != Job(StraightLine(2.0), 0).name


def test_a_record_tells_recipe_config_seed_metrics_environment_and_time(tmp_path: Path) -> None:
    job = Job(StraightLine(2.0), 7)
    assert run([job], here(tmp_path), Silent()) == []
    (record,) = read_runs(tmp_path, "line")
    assert record["config"] == {"slope": 2.0, "lr": 0.1, "length": 5, "pause": 0.0}
    assert (record["recipe"], record["setting"], record["seed"]) == ("StraightLine", "slope 2", 7)
    assert len(record["metrics"]["epochs"]["loss"]) == 5
    assert 0 < record["metrics"]["final"]["slope"] < 2
    assert record["environment"] == {"torch": "t", "device": "d", "commit": "c"}
    assert set(record["seconds"]) == {"train", "finish"}


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    jobs = [Job(StraightLine(2.0), seed) for seed in range(3)]
    run(jobs[:2], here(tmp_path), Silent())
    watch = Silent()
    run(jobs, here(tmp_path), watch)
    assert watch.began == [0]
    assert len(read_runs(tmp_path, "line")) == 3


def test_side_by_side_is_one_training_with_the_same_results(tmp_path: Path) -> None:
    jobs = [Job(StraightLine(slope), seed) for slope in (1.0, 2.0) for seed in range(2)]
    watch = Silent()
    run(jobs, here(tmp_path / "together"), watch, together=8)
    run(jobs, here(tmp_path / "alone"), Silent())
    assert watch.began == [0]
    for job in jobs:
        assert metrics_of(tmp_path / "together", job) == metrics_of(tmp_path / "alone", job)


def test_only_jobs_of_a_cohort_come_together() -> None:
    jobs = [Job(StraightLine(1.0, pause=pause), seed) for seed in range(3) for pause in (0.0, 1.0)]
    assert [len(batch) for batch in batches(jobs, 2)] == [2, 1, 2, 1]


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(StraightLine(2.0, length=6), seed) for seed in range(2)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=2)
    done = Lined.epoch

    def interrupted(training: Lined, calls: list[int] = [0]) -> list[Metrics]:  # noqa: B006
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return done(training)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Lined, "epoch", interrupted)
        run(jobs, here(tmp_path / "broken"), Silent(), together=2)
    watch = Silent()
    run(jobs, here(tmp_path / "broken"), watch, together=2)
    assert watch.began == [3]
    for job in jobs:
        assert metrics_of(tmp_path / "whole", job) == metrics_of(tmp_path / "broken", job)
    assert not list((tmp_path / "broken" / "line").glob("*.pt"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_learned_outlives_an_end_that_fails(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(StraightLine(2.0, length=6), seed) for seed in range(2)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=2)
    place, watch = replace(here(tmp_path / "broken"), seconds_between_checkpoints=1000.0), Silent()

    def failing(training: Lined) -> list[Metrics]:
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(Lined, "finish", failing)
        run(jobs, place, watch, together=2)
    assert run(jobs, place, watch, together=2) == []
    assert watch.began == [0, 6]
    for job in jobs:
        assert metrics_of(tmp_path / "broken", job) == metrics_of(tmp_path / "whole", job)
    assert not checkpoint_path(place.out, jobs).exists()


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_records_that_are_half_written_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(StraightLine(2.0, length=3), seed) for seed in range(3)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=3)
    place, watch = here(tmp_path / "broken"), Silent()

    def only_the_first(out: Path, job: Job, **what: Any) -> Path:
        return write_run(out, job, **what) if job.seed == 0 else full_disk()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(run_module, "write_run", only_the_first)
        run(jobs, place, watch, together=3)
    first = jobs[0].folder(place.out) / "record.json"
    before = first.read_bytes()
    assert len(read_runs(place.out, "line")) == 1
    assert run(jobs, place, watch, together=3) == []
    assert (watch.began, first.read_bytes()) == ([0, 3], before)
    for job in jobs:
        assert metrics_of(tmp_path / "broken", job) == metrics_of(tmp_path / "whole", job)
    assert not list(tmp_path.rglob("*.pt"))


def test_a_checkpoint_of_which_nothing_is_left_to_run_goes(tmp_path: Path) -> None:
    class Leaving(Silent):
        def end(self, jobs: Any, final: Any) -> None:
            raise KeyboardInterrupt

    jobs, watch = [Job(StraightLine(2.0), seed) for seed in range(2)], Silent()
    with pytest.raises(KeyboardInterrupt):
        run(jobs, here(tmp_path), Leaving(), together=2)
    assert len(read_runs(tmp_path, "line")) == 2 and len(list(tmp_path.rglob("*.pt"))) == 1
    run(jobs, here(tmp_path), watch, together=2)
    assert watch.began == [] and not list(tmp_path.rglob("*.pt"))


def test_what_has_no_result_keeps_what_it_has_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, watch, done = [Job(StraightLine(2.0), seed) for seed in range(2)], Silent(), Lined.finish
    with monkeypatch.context() as patch:
        patch.setattr(Lined, "finish", lambda training: [done(training)[0], {FAILED: "it cannot be cut"}])
        (failure,) = run(jobs, here(tmp_path), watch, together=2)
    assert (failure.job, failure.reason) == (jobs[1], "it cannot be cut")
    assert run(jobs, here(tmp_path), watch, together=2) == []
    assert watch.began == [0, 5] and len(read_runs(tmp_path, "line")) == 2
    assert not list(tmp_path.rglob("*.pt"))


def test_what_went_wrong_is_told_even_if_nothing_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(training: Lined) -> list[Metrics]:
        raise ValueError("the reason")

    monkeypatch.setattr(Lined, "finish", failing)
    monkeypatch.setattr(run_module, "save_checkpoint", full_disk)
    with pytest.raises(ValueError, match="the reason"):
        run([Job(StraightLine(2.0), 0)], here(tmp_path, between=1e9), Silent())


@pytest.mark.parametrize("together", [1, 3])
def test_what_was_begun_goes_on_however_many_are_asked_for(together: int, tmp_path: Path) -> None:
    jobs = [Job(StraightLine(2.0, length=6), seed) for seed in range(4)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=4)

    class Leaving(Silent):
        def epoch(self, number: int, metrics: Any) -> None:
            if number == 3:
                raise KeyboardInterrupt

    watch, place = Silent(), here(tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        run(jobs[1:3], place, Leaving(), together=2)
    run(jobs, place, watch, together=together)
    assert watch.began == [2, *([0] * (2 if together == 1 else 1))]
    for job in jobs:
        assert metrics_of(tmp_path / "broken", job) == metrics_of(tmp_path / "whole", job)
    assert not list(tmp_path.rglob("*.pt"))


class LeavingAfter(Silent):
    """Interrupted when so many epochs are done; the last one of them is not saved."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.last = epochs + 1

    def epoch(self, number: int, metrics: Any) -> None:
        if number == self.last:
            raise KeyboardInterrupt


@pytest.mark.parametrize("alone_is_farther", [True, False])
def test_of_a_job_begun_twice_the_farthest_counts_and_none_is_lost(alone_is_farther: bool, tmp_path: Path) -> None:
    jobs = [Job(StraightLine(2.0, length=6), seed) for seed in range(3)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=3)
    place, watch, alone = here(tmp_path / "broken"), Silent(), jobs[2:]
    steps = ((jobs, 1), (alone, 4), (jobs, 4)) if alone_is_farther else ((jobs, 1), (alone, 1), (jobs, 4), (jobs, 5))
    for some, epochs in steps:
        with pytest.raises(KeyboardInterrupt):
            run(some, place, LeavingAfter(epochs), together=3)
        assert checkpoint_path(place.out, some).exists()
    assert set(tmp_path.rglob("*.pt")) == {checkpoint_path(place.out, jobs), checkpoint_path(place.out, alone)}
    run(jobs, place, watch, together=3)
    assert watch.began == ([4, 1] if alone_is_farther else [5])
    for job in jobs:
        assert metrics_of(tmp_path / "broken", job) == metrics_of(tmp_path / "whole", job)
    run(jobs, place, watch, together=3)
    assert not list(tmp_path.rglob("*.pt"))


def test_what_a_kill_left_beside_a_checkpoint_goes_with_it(tmp_path: Path) -> None:
    job = Job(StraightLine(2.0, length=6), 0)
    path = checkpoint_path(tmp_path, [job])
    path.parent.mkdir(parents=True)
    left = path.with_name(f".{path.name}.123.part")
    left.write_bytes(b"half of a check")
    run([job], here(tmp_path), Silent())
    assert not list(tmp_path.rglob("*.part")) and len(read_runs(tmp_path, "line")) == 1


def test_what_is_no_number_between_epochs_is_nothing_and_among_results_fails_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, epoch, done = [Job(StraightLine(2.0), seed) for seed in range(3)], Lined.epoch, Lined.finish
    odd: tuple[dict[str, float], ...] = ({}, {"offset": math.nan}, {})
    monkeypatch.setattr(
        Lined, "epoch", lambda training: [{**a, **b} for a, b in zip(epoch(training), odd, strict=True)]
    )
    with monkeypatch.context() as patch:
        patch.setattr(Lined, "finish", lambda training: [*done(training)[:2], {"slope": math.inf}])
        (failure,) = run(jobs, here(tmp_path), Silent(), together=3)
    assert failure.job == jobs[2] and "cannot be recorded" in failure.reason
    assert len(read_runs(tmp_path, "line")) == 2
    assert metrics_of(tmp_path, jobs[1])["epochs"]["offset"] == [None] * 5
    assert run(jobs, here(tmp_path), Silent(), together=3) == []


def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path) -> None:
    jobs = [Job(StraightLine(3.0, length=40, pause=0.01), seed) for seed in range(2)]
    run(jobs, here(tmp_path / "whole"), Silent(), together=2)
    program = [sys.executable, "-m", "tests.lab.engine.straight_line", str(tmp_path / "killed"), "40", "0.01"]
    path = checkpoint_path(tmp_path / "killed", jobs)
    for wait in (0.0, 0.05, 0.1):
        with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 600
            while not path.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(wait)
            os.kill(process.pid, signal.SIGKILL)
    watch = Silent()
    run(jobs, here(tmp_path / "killed"), watch, together=2)
    assert watch.began in ([], [pytest.approx(20, abs=19)])
    for job in jobs:
        assert metrics_of(tmp_path / "whole", job) == metrics_of(tmp_path / "killed", job)


def test_a_loss_that_is_no_number_fails_its_run_alone(tmp_path: Path) -> None:
    good, bad = Job(StraightLine(2.0, length=800), 0), Job(StraightLine(2.0, lr=1e3, length=800), 0)
    (failure,) = run([good, bad], here(tmp_path), Silent(), together=2)
    assert failure.job == bad
    assert "the loss became" in str(failure) and "slope 2" in str(failure)
    assert [record["config"]["lr"] for record in read_runs(tmp_path, "line")] == [0.1]
    assert not list((tmp_path / "line").glob("*.pt"))


def test_a_full_disk_leaves_records_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run([Job(StraightLine(1.0), 0)], here(tmp_path), Silent())
    before = read_runs(tmp_path, "line")

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_bytes", full)
        run([Job(StraightLine(2.0), 0)], here(tmp_path), Silent())
    assert read_runs(tmp_path, "line") == before
    assert not list(tmp_path.rglob("*.part"))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    job = Job(StraightLine(2.0), 0)
    path = checkpoint_path(tmp_path, [job])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a checkpoint")
    for jobs in ([job], [job, Job(StraightLine(2.0), 1)]):
        with pytest.raises(CheckpointError, match=r"unfinished-.*remove it"):
            run(jobs, here(tmp_path), Silent(), together=2)
    assert path.read_bytes() == b"not a checkpoint"


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"recipe": "x"})])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    job = Job(StraightLine(2.0), 0)
    path = job.folder(tmp_path) / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(RecordError, match=r"record\.json"):
        run([job], here(tmp_path), Silent())


def test_without_a_terminal_there_is_a_line_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkey = pytest.MonkeyPatch()
    monkey.setattr("headgate_lab.engine.watch.SECONDS_BETWEEN_LINES", 0.0)
    run([Job(StraightLine(2.0, length=3), 0)], here(tmp_path), Lines())
    monkey.undo()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "line (slope 2), seed 0: begins, 3 epochs"
    assert [line.partition("  ")[0] for line in lines[1:4]] == [
        f"line (slope 2), seed 0: epoch {number}/3" for number in (1, 2, 3)
    ]
    assert lines[4].startswith("line (slope 2), seed 0: slope ")


def test_checkpoints_are_spaced_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    monkeypatch.setattr(run_module, "save_checkpoint", lambda path, *unused: saved.append(path))
    run([Job(StraightLine(2.0), 0)], here(tmp_path, between=60.0), Silent())
    assert saved == []
    run([Job(StraightLine(2.0), 1)], here(tmp_path), Silent())
    assert len(saved) == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"metrics": []}, "holds list instead of dict under metrics"),
        ({"metrics": {"final": {}}}, "has metrics without epochs or final"),
        ({"seed": "0"}, "holds str instead of int under seed"),
        ({"seed": True}, "holds bool instead of int under seed"),
        ({"environment": None}, "holds NoneType instead of dict under environment"),
    ],
)
def test_a_record_of_wrong_kinds_is_named(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    job = Job(StraightLine(2.0), 0)
    run([job], here(tmp_path), Silent())
    path = job.folder(tmp_path) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match=f"{path.name} {complaint}: .* remove it"):
        read_run(path)


def test_a_field_added_later_is_recorded_only_where_it_says_something() -> None:
    @dataclass(frozen=True)
    class Line(StraightLine):
        noise: float = later(0.0)

    assert Line(2.0).config() == StraightLine(2.0).config()
    assert Line(2.0, noise=0.1).config() == {**StraightLine(2.0).config(), "noise": 0.1}


@pytest.mark.parametrize(
    ("between", "takes", "saved"), [(1.0, 0.0, 9), (1.0, 0.1, 2), (1.0, 1.0, 1), (4.0, 0.01, 2), (0.0, 1.0, 9)]
)
def test_saving_takes_a_small_part_of_the_time(
    between: float, takes: float, saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten epochs of a second each, and checkpoints that take so long."""
    now, at = 0.0, []

    class Ticking(Silent):
        def epoch(self, number: int, metrics: Any) -> None:
            nonlocal now
            now += 1.0

    def save(*_: Any) -> None:
        nonlocal now
        at.append(now)
        now += takes

    monkeypatch.setattr("headgate_lab.engine.run.time.monotonic", lambda: now)
    monkeypatch.setattr(run_module, "save_checkpoint", save)
    place = replace(here(tmp_path), seconds_between_checkpoints=between)
    assert not run([Job(StraightLine(2.0, length=10), 0)], place, Ticking())
    assert len(at) == saved


def test_out_of_time_it_stops_between_epochs_and_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of a second each: in four and a half seconds there are four, and no other training begins."""
    jobs = [Job(StraightLine(slope, length=6), 0) for slope in (2.0, 3.0)]
    run(jobs, here(tmp_path / "whole"), Silent())
    now = 0.0

    class Ticking(Silent):
        def epoch(self, number: int, metrics: Any) -> None:
            nonlocal now
            now += 1.0

    monkeypatch.setattr("headgate_lab.engine.run.time.monotonic", lambda: now)
    place = here(tmp_path / "stopped", between=1e9)
    for until, went_on_after in ((4.5, [0]), (4.0, []), (8.5, [4, 0]), (math.inf, [2])):
        watch = Ticking()
        assert run(jobs, place, watch, until=until) == []
        assert (until, watch.began) == (until, went_on_after)
    assert now == 12.0
    for job in jobs:
        assert metrics_of(tmp_path / "stopped", job) == metrics_of(tmp_path / "whole", job)
    assert not list(tmp_path.rglob("unfinished-*"))
