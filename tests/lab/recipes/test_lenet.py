"""LeNet-5 recipes: names that stay, every method for a few steps, parameters counted on what is really left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headgate as hg
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.narrower import Narrower
from headgate_lab.models.lenet import LeNet5
from headgate_lab.recipes import lenet
from headgate_lab.recipes.classification import half_cosine
from headgate_lab.recipes.lenet import LeNet
from tests.lab.recipes.few_images import few_images


@pytest.fixture(autouse=True)
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(1, 28, 64)
    monkeypatch.setattr(lenet, "digits_of_mnist", lambda: stored)


def test_names_stay() -> None:
    assert Job(LeNet("lenet5", "tanh", 0.0, "paper", 0.1), 0).name == "8e0f810389b7"
    assert Job(LeNet("lenet5", "sine", 0.0, "narrower", None, 7_000), 3).name == "ce2af563b338"


def test_the_paper_s_tables_are_all_there() -> None:
    found = lenet.recipes()
    assert len(set(found)) == len(found)
    papers = [recipe for recipe in found if recipe.method == "paper"]
    assert len(papers) == 30
    assert {recipe.setting for recipe in papers} >= {
        "lenet5 tanh paper strength 0.01",
        "lenet5 tanh noise 0.05 paper strength 1",
        "lenet5 sine paper strength 0.6",
    }


def test_every_method_runs_and_is_recorded(tmp_path: Path) -> None:
    recipes = [
        LeNet("lenet5", "tanh", 0.0, "paper", 0.02),
        LeNet("lenet5", "sine", 0.05, "ours", 50.0),
        LeNet("lenet5", "tanh", 0.0, "narrower", None, 7_000),
        LeNet("lenet5-caffe", "relu", 0.0, "ours", None, 4_000),
    ]
    jobs = [Job(replace(recipe, length=6, batch_size=4, offset_lr=0.5, settle=0.9), 0) for recipe in recipes]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run(jobs, place, Lines(), together=4) == []
    found = {record["setting"]: record["metrics"] for record in read_runs(tmp_path, "lenet")}
    assert len(found) == 4
    for setting, metrics in found.items():
        final = metrics["final"]
        assert final["accuracy"] == pytest.approx(final["accuracy_before"], abs=1e-9)
        full = 431_080 if "caffe" in setting else 61_706
        assert 0 < final["params"] < full
    assert found["lenet5 tanh narrower 7,000 parameters"]["final"]["params"] <= 7_000
    assert 3_000 < found["lenet5-caffe relu ours 4,000 parameters"]["final"]["params"] <= 4_000


def test_the_rate_falls_from_one_to_almost_nothing() -> None:
    rates = [half_cosine(epoch, 10) for epoch in range(10)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.03


def test_networks_side_by_side_are_each_their_own() -> None:
    recipes = [LeNet("lenet5", activation, 0.0, "narrower", None, 61_706) for activation in ("tanh", "sine")]  # type: ignore[arg-type]
    jobs = [Job(replace(recipe, batch_size=32), 0) for recipe in recipes]
    both: Any = LeNet.start(jobs, torch.device("cpu"))
    alone = LeNet.start(jobs[1:], torch.device("cpu"))
    assert both.epoch()[1] == alone.epoch()[0]
    assert both.networks[0].model.activation is torch.tanh
    assert both.networks[1].model.activation is torch.sin


def test_a_dead_network_is_recorded_as_such(tmp_path: Path) -> None:
    job = Job(LeNet("lenet5", "tanh", 0.0, "paper", 500.0, length=1, batch_size=8), 0)
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([job], place, Lines()) == []
    (record,) = read_runs(tmp_path, "lenet")
    assert (record["metrics"]["final"]["dead"], record["metrics"]["final"]["params"]) == (1, None)


class Deaf(LeNet5):
    """Says the same of every image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(x))


def test_a_network_that_says_one_thing_of_all_images_is_dead_too() -> None:
    job = Job(LeNet("lenet5", "tanh", 0.0, "narrower", None, 61_706, length=1, batch_size=8), 0)
    training: Any = LeNet.start([job], torch.device("cpu"))
    training.networks[0].model.__class__ = Deaf
    (final,) = training.finish()
    assert (final["dead"], final["params"]) == (1, None)


def test_a_network_that_cannot_be_cut_has_no_record_and_those_beside_it_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(method: Narrower, model: LeNet5, example: Tensor) -> LeNet5:
        if model.activation is torch.sin:
            raise hg.CompactionError("it differs")
        return model

    monkeypatch.setattr(Narrower, "small", small)
    recipes = [LeNet("lenet5", activation, 0.0, "narrower", None, 61_706) for activation in ("tanh", "sine")]  # type: ignore[arg-type]
    jobs = [Job(replace(recipe, length=1, batch_size=8), 0) for recipe in recipes]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    (failure,) = run(jobs, place, Lines(), together=2)
    assert (failure.job, failure.reason) == (jobs[1], "it differs")
    (record,) = read_runs(tmp_path, "lenet")
    assert record["config"]["activation"] == "tanh"
