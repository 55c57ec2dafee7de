"""Whole trainings, stages and cuts included, by what only a GPU uses: kernels, and stand-ins for odd widths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate_lab.engine import network
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar
from tests import fake_triton
from tests.lab.recipes.few_images import few_images
from tests.lab.recipes.test_compared import WAYS

# What is to be left of networks of 56,306 parameters, with methods that are told.
SIZE = 30_000
PLACE = {"torch": "t", "device": "d", "commit": "c"}


def recorded(method: str, out: Path) -> dict[str, Any]:
    recipe = replace(WAYS[method], params=WAYS[method].params and SIZE)
    assert run([Job(recipe, 0)], Place(out, torch.device("cpu"), PLACE), Lines()) == []
    (record,) = read_runs(out, "preresnets")
    found: dict[str, Any] = record["metrics"]
    return found


def few(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget needs some steps."""
    stored = few_images(3, 8, 60 if method in ("ours", "found") else 20)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(20, classes, width / 2))


@pytest.mark.slow
@pytest.mark.parametrize("method", WAYS)
def test_a_training_ends_as_without_them(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for rounding, and which of channels that are nearly equal are cut."""
    few(method, monkeypatch)
    plain = recorded(method, tmp_path / "plain")
    blocks = fake_triton.blocks_computed(monkeypatch)
    fake_triton.for_preresnets(monkeypatch)
    monkeypatch.setattr(network, "STAND_INS_ON", ("cpu",))
    fast = recorded(method, tmp_path / "fast")
    assert blocks
    losses = {name: plain["epochs"][name] for name in ("loss", "validation_loss")}
    for name, values in losses.items():
        assert fast["epochs"][name] == pytest.approx(values, rel=5e-3), name
        assert fast["epochs"][name][0] == pytest.approx(values[0], rel=1e-4), name
    assert fast["final"]["params"] == pytest.approx(plain["final"]["params"], rel=0.03)
    assert fast["final"]["accuracy"] == pytest.approx(fast["final"]["accuracy_before"])
