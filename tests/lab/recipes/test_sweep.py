"""The sweep of strengths: every network both ways for a few steps, and the watch that is kept on gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.watched import Watched
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from headgate_lab.recipes import cifar, sweep
from headgate_lab.recipes.sweep import Sweep
from tests.lab.recipes.few_images import few_images


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "digits_of_mnist", lambda: few_images(1, 28, 32))
    monkeypatch.setattr(cifar, "_images", lambda dataset: few_images(3, 16, 32))
    monkeypatch.setitem(sweep.NETWORKS, "vgg19", lambda width: VGG(widths=(8, 0, 8)))
    monkeypatch.setitem(sweep.NETWORKS, "preresnet20", lambda width: PreResNet(11))


def test_all_are_there_once_and_datasets_are_not_mixed() -> None:
    found = sweep.recipes()
    assert len(set(found)) == len(found) == 120
    jobs = [Job(Sweep("lenet5", "sgd", "ours", 1.0), 0), Job(Sweep("vgg19", "sgd", "ours", 1.0), 0)]
    assert len(batches(jobs, 6)) == 2


def test_every_network_runs_both_ways(tmp_path: Path) -> None:
    recipes = [recipe for recipe in sweep.recipes() if recipe.strength == 5.0]
    jobs = [Job(replace(recipe, length=2, batch_size=8), 0) for recipe in recipes]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run(jobs, place, Lines(), together=16) == []
    records = read_runs(tmp_path, "sweep")
    assert len(records) == 20
    for record in records:
        assert 0 <= record["metrics"]["epochs"]["jump"][-1] <= 1
        assert ("explained" in record["metrics"]["final"]) == (record["config"]["network"] == "autoencoder")
        if record["config"]["method"] == "ours":
            assert record["metrics"]["final"]["dead"] == 0
            assert record["metrics"]["final"]["jump"] <= 0.25


def test_the_watch_sees_the_largest_change() -> None:
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
    method = Watched(1.0, floor=1)
    method.attach(model, torch.randn(2, 4))
    method.groups(model)  # or a warning would say that nothing moves the offsets
    watcher = method.companion(model, 1)
    gates = hg.gates(model)
    for opened in (7, 8, 4):  # what the last step did is seen when its epoch is told of
        watcher.penalty()
        with torch.no_grad():
            gates["0"].offset.fill_(5 * ((opened - 0.5) / 10 - 1))
    assert watcher.metrics() == {"jump": pytest.approx(0.4)}
    again = method.companion(model, 1)
    again.load_state_dict(watcher.state_dict())
    again.penalty()
    assert again.metrics() == watcher.metrics()
