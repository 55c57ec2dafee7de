"""The ablation: gates of the builder's, counted apart, and identical after an interruption."""

from __future__ import annotations

import io

import pytest
import torch

from headgate_lab.engine.job import Job, Training
from headgate_lab.recipes import ablation
from headgate_lab.recipes.ablation import Ablation
from tests.lab.recipes.few_images import few_images

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(1, 28, 64)
    monkeypatch.setattr(ablation, "digits_of_mnist", lambda: stored)


def jobs() -> list[Job]:
    kinds = (Ablation(5.0), Ablation(5.0, decay_offsets=True), Ablation(5.0, order="index0", gate_first=True))
    return [Job(Ablation(**{**vars(kind), "length": 4, "batch_size": 16}), 3) for kind in kinds]


def begun() -> Training:
    return Ablation.start(jobs(), CPU)


def test_names_stay() -> None:
    assert Job(Ablation(0.01), 0).name == "90955a3d642a"


def test_resumed_after_any_epoch_it_ends_the_same() -> None:
    whole = begun()
    epochs = [whole.epoch() for _ in range(4)]
    final = whole.finish()
    for stop in range(1, 4):
        first = begun()
        for _ in range(stop):
            first.epoch()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = begun()
        second.load_state_dict(torch.load(file, weights_only=True))
        assert [second.epoch() for _ in range(4 - stop)] == epochs[stop:]
        assert second.finish() == final


def test_a_network_of_which_nothing_is_closed_has_lost_nothing() -> None:
    training = Ablation.start([Job(Ablation(0.0, length=1, batch_size=32), 0)], CPU)
    training.epoch()
    (final,) = training.finish()
    assert (final["params"], final["pruned"]) == (61_706, 0.0)
