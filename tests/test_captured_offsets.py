"""The script behind `results/checks/captured_offsets.json`, on a CPU: the same steps, only nothing is captured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headgate as hg
from benchmarks import captured_offsets as script
from headgate_lab.records import device_name

SHORT = script.Config(cold_steps=4, warm_steps=26, batch_size=8)
CPU = torch.device("cpu")


def test_the_script_writes_a_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "made" / "record.json"
    assert script.main(["--device", "cpu", "--commit", "abc", "--out", str(out), "--seed", "3"]) == 0
    record = json.loads(out.read_text())
    assert list(record) == ["recipe", "config", "seed", "metrics", "environment", "duration_s", "headline"]
    assert record["environment"] == {"torch": torch.__version__, "device": device_name("cpu"), "commit": "abc"}
    assert record["seed"] == 3 and record["metrics"]["captured"] is False
    assert "nothing to capture" in record["headline"] == capsys.readouterr().out.strip()
    assert [path.name for path in out.parent.iterdir()] == ["record.json"]


def test_a_record_never_replaces_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(script, "check", lambda *_: pytest.fail("trained"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit):
        script.main(["--device", "cpu", "--commit", "abc", "--out", str(tmp_path / "pipe")])
    assert "pipe is not a regular file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("optimizer", script.OPTIMIZERS)
def test_both_loops_make_the_same_steps(optimizer: str):
    result = script.compare(optimizer, SHORT, CPU, seed=0)
    assert result["agree"]
    assert result["offset_difference"] == result["weight_difference"] == 0.0
    assert result["least_travel"] > 0.1


def test_the_phases_freeze_and_capture_where_they_should(monkeypatch: pytest.MonkeyPatch):
    training = script.Training("SGD fused", SHORT, CPU, seed=0)
    captures: list[int] = []
    seen: list[list[float]] = []
    make_step = training.step

    def step() -> None:
        make_step()
        seen.append(training.offsets().tolist())

    def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        captures.append(len(seen))
        return step

    monkeypatch.setattr(script, "captured", captured)
    monkeypatch.setattr(training, "step", step)
    script.train_captured(training)
    assert captures == [3, 4 + 3]  # after the warm-up of each phase
    assert seen[:4] == [[1.0, 1.0, 1.0]] * 4 and len(seen) == 30
    assert max(seen[4]) < 1.0


def test_a_difference_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def forgetful(training: script.Training) -> None:
        """As replays would be that make the offsets' moments anew."""
        for step in range(len(training.batches)):
            hg.freeze_(training.model, step < training.config.cold_steps)
            for gate in hg.gates(training.model).values():
                training.optimizer.state.pop(gate.offset, None)
            training.load(step)
            training.step()

    monkeypatch.setattr(script, "train_captured", forgetful)
    metrics = {"SGD fused": script.compare("SGD fused", SHORT, CPU, seed=0)}
    assert not metrics["SGD fused"]["agree"]
    assert "do NOT end where" in script.headline(metrics, SHORT, "CPU", False)


def test_offsets_that_never_moved_prove_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script, "train_plainly", lambda training: None)
    monkeypatch.setattr(script, "train_captured", lambda training: None)
    assert not script.compare("SGD fused", SHORT, CPU, seed=0)["agree"]
