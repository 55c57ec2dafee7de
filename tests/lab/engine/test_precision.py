"""The numbers that networks compute in while they learn: asked for, recorded, and of no say in what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headgate_lab.cli import main
from headgate_lab.engine.checkpoint import CheckpointError
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Job
from headgate_lab.engine.network import Network, score
from headgate_lab.engine.precision import computing_on, learning_in, precision_on
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.recipes import cifar
from headgate_lab.recipes.cifar import Cifar
from headgate_lab.recipes.classification import batches_of
from headgate_lab.recipes.experiment import Experiment
from tests.lab.recipes.few_images import few_images

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RECIPE = Cifar("preresnet20", "cifar10", "narrower", length=2, batch_size=20)


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 8, 40)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", lambda classes, width: Seeing(classes))


class Seeing(nn.Module):
    """Counts what its layer returned in half precision, while it learned and while it did not."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, classes)
        self.was_half = {True: 0, False: 0}

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layer(images.float().mean((2, 3)))
        self.was_half[self.training] += out.dtype == torch.bfloat16
        return out


def test_what_is_usual_depends_on_the_device() -> None:
    assert (precision_on(CPU), precision_on(CUDA)) == (torch.float32, torch.bfloat16)
    with learning_in(torch.bfloat16):
        assert (precision_on(CPU), precision_on(CUDA)) == (torch.bfloat16, torch.bfloat16)
        with learning_in(None):
            assert precision_on(CPU) == torch.float32
        with computing_on(CPU):
            assert torch.is_autocast_enabled("cpu")
    with learning_in(torch.float32):
        assert precision_on(CUDA) == torch.float32
    with computing_on(CPU):
        assert not torch.is_autocast_enabled("cpu")


def test_what_was_asked_for_ends_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="lost"), learning_in(torch.bfloat16):
        raise RuntimeError("lost")
    assert precision_on(CPU) == torch.float32


@pytest.mark.parametrize("asked", [None, torch.bfloat16])
def test_networks_learn_in_it_and_are_measured_in_their_own(asked: torch.dtype | None) -> None:
    train, test = RECIPE.data().resident(CPU)
    with learning_in(asked):
        batches = batches_of(RECIPE, train, seed=0)
        model = Seeing(10)
        network = Network(model, RECIPE.pruning(), batches, RECIPE.optimization(), 2, 0)
        network.begin_epoch()
        network.step()
        assert batches.images.dtype == (asked or torch.float32)
        assert score(model, Resident(test.images, test.labels, test.normalisation)).loss > 0
    assert model.was_half == {True: int(asked is not None), False: 0}
    assert model.layer.weight.dtype == torch.float32


def test_the_command_asks_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate_lab.recipes.catalog import EXPERIMENTS

    monkeypatch.setitem(EXPERIMENTS, "cifar", Experiment("cifar", "t", "p", 1, lambda: [RECIPE]))
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", cifar.NETWORKS["preresnet56"])
    losses, known = [], []
    for asked in ("auto", "bfloat16", "float32"):
        out = tmp_path / asked
        arguments = ["run", "cifar", "--device", "cpu", "--commit", "c", "--out", str(out), "--precision", asked]
        assert main(arguments) == 0
        (record,) = read_runs(out, "cifar")
        losses.append(record["metrics"]["epochs"]["loss"])
        known.append(record["environment"].get("precision"))
    assert known == [None, "bfloat16", "float32"]
    assert losses[0] == losses[2] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_what_was_begun_goes_on_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cifar.NETWORKS, "preresnet20", cifar.NETWORKS["preresnet56"])
    place = Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"}, seconds_between_checkpoints=0.0)

    class Leaving(Lines):
        def epoch(self, number: int, metrics: Any) -> None:
            if number == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), learning_in(torch.bfloat16):
        run([Job(RECIPE, 0)], place, Leaving())
    with pytest.raises(CheckpointError, match="has learned in bfloat16, not in float32: go on with --precision bfloat"):
        run([Job(RECIPE, 0)], place, Lines())
    with learning_in(torch.bfloat16):
        assert run([Job(RECIPE, 0)], place, Lines()) == []
    assert "goes on after 1" in capsys.readouterr().out


@pytest.mark.parametrize("experiment", ["dimension", "autoencoder", "link_prediction", "recommender"])
def test_what_would_not_be_heeded_is_refused(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", experiment, "--device", "cpu", "--out", str(tmp_path / "out"), "--precision", "bfloat16"])
    assert f"--precision bfloat16: networks of {experiment} learn in their own" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
