"""Tasks, by hand: what is lost, and how much of an image is done."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headgate_lab.data.images import Normalisation
from headgate_lab.engine.images import Resident
from headgate_lab.engine.network import score
from headgate_lab.engine.task import CLASSIFY, RECONSTRUCT


def test_classification() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]]), torch.tensor([1, 1])
    images = torch.zeros(2, 1, 1, 1)
    assert CLASSIFY.loss(logits, images, labels).tolist() == pytest.approx([math.log(2), math.log(4)])
    assert CLASSIFY.share(logits, images, labels).tolist() == [False, False]


def test_reconstruction() -> None:
    images = torch.tensor([[[[1.0, 3.0]]], [[[2.0, 0.0]]]])
    outputs = torch.tensor([[[[1.0, 2.0]]], [[[-2.0, 0.0]]]])
    labels = torch.zeros(2, dtype=torch.int64)
    assert RECONSTRUCT.loss(outputs, images, labels).tolist() == [0.5, 8.0]
    assert RECONSTRUCT.share(outputs, images, labels).tolist() == pytest.approx([0.9, -3.0])


def test_a_score_is_the_mean_over_all_images() -> None:
    pixels = torch.tensor([0, 51, 255, 255], dtype=torch.uint8).view(4, 1, 1, 1)
    data = Resident(pixels, torch.tensor([0, 0, 0, 1]), Normalisation((0.0,), (1.0,)))
    halved = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(halved.weight, 0.5)
    found = score(halved, Resident(pixels[1:], data.labels[1:], data.normalisation), RECONSTRUCT)
    assert found.percent == pytest.approx(75)
    assert found.loss == pytest.approx((0.01 + 0.25 + 0.25) / 3)
