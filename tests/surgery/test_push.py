"""The controller of a budget: its law by hand, its bounds, and the curve that sizes keep to in a short training."""

from __future__ import annotations

import math

import pytest
import torch

from headgate.surgery.push import FIRST_STRENGTH, STRONGEST, WEAKEST, Push
from tests.surgery.test_budget import Training


def pushing() -> Push:
    push = Push(2, torch.device("cpu"))
    push.begin_()
    return push


def test_an_error_counts_at_once_and_over_time() -> None:
    push = pushing()
    push.follow_(torch.tensor(math.exp(0.1)), 1.0, elapsed=0.01)
    assert push.level.item() == pytest.approx(math.log(FIRST_STRENGTH) + 120 * 0.01 * 0.1, abs=1e-5)
    assert push.strength.item() == pytest.approx(FIRST_STRENGTH * math.exp(0.12 + 1.6), rel=1e-5)
    push.follow_(torch.tensor(1.0), 1.0, elapsed=0.01)
    assert push.strength.item() == pytest.approx(FIRST_STRENGTH * math.exp(0.12), rel=1e-5)
    push.follow_(torch.tensor(math.exp(-5)), 1.0, elapsed=0.01)  # far too small counts as a little too small
    assert push.strength.item() == pytest.approx(FIRST_STRENGTH * math.exp(0.12 - 0.12 - 4.8), rel=1e-5)


@pytest.mark.parametrize(("size", "bound"), [(1e9, STRONGEST), (1e-9, WEAKEST)])
def test_a_strength_stays_within_bounds_and_comes_back(size: float, bound: float) -> None:
    push = pushing()
    for _ in range(100):
        push.follow_(torch.tensor(size), 1.0, elapsed=0.01)
    assert push.strength.item() == pytest.approx(bound, rel=1e-4)
    for _ in range(240):
        push.follow_(torch.tensor(1 / size), 1.0, elapsed=0.01)
    assert push.strength.item() == pytest.approx(WEAKEST * STRONGEST / bound, rel=1e-4)


def test_the_strength_is_shared_by_savings_as_long_as_there_are_some() -> None:
    push = pushing()
    push.weigh_(torch.tensor([3, 1]))
    push.weigh_(torch.tensor([0, 0]))
    assert push.weights.tolist() == [0.75, 0.25]
    assert push.on(torch.tensor([1.0, 2.0])).item() == pytest.approx(FIRST_STRENGTH * (0.75 + 2 * 0.25))
    push.end_()
    assert push.on(torch.tensor([1.0, 2.0])).item() == 0


def test_a_short_training_keeps_to_the_curve() -> None:
    training = Training(params=0.2)
    budget = training.budget
    begin, end = 24, 120
    sizes = []
    for step in range(begin, end):
        training.run(step)
        if budget.met:
            break
        sizes.append(budget.size / (budget.full * (budget.target / budget.full) ** ((step - begin) / (end - begin))))
    assert step > 0.9 * end
    assert min(sizes) > 0.7 and max(sizes) < 1.5
