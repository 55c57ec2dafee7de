"""A budget and its gates: what happens when one of them goes, or another budget comes."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import headgate as hg

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def gated() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    hg.insert_gates_(model, X)
    return model


def frozen(model: nn.Module) -> bool:
    (gate,) = hg.gates(model).values()
    return gate.frozen


def train(model: nn.Module, budget: hg.Budget, steps: int) -> None:
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.1))
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X).square().mean() + budget.penalty()).backward()
        optimizer.step()
        budget.step()


def test_a_budget_whose_gates_were_removed_says_so() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.5, steps=200)
    hg.remove_gates_(model)
    for use in (budget.penalty, budget.step, budget.by_layer):
        with pytest.raises(hg.GateError, match="were removed"):
            use()


def test_a_later_budget_takes_over() -> None:
    model = gated()
    earlier = hg.Budget(model, params=0.5, steps=200)
    later = hg.Budget(model, params=0.3, steps=200)
    with pytest.raises(hg.GateError, match="another budget"):
        earlier.step()
    train(model, later, 200)
    del earlier
    gc.collect()
    assert later.met and frozen(model)


def test_gates_of_a_budget_that_was_given_up_are_free() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.5, steps=200)
    assert frozen(model)
    del budget
    gc.collect()
    assert not frozen(model)


def test_gates_of_a_budget_that_was_met_rest_without_it() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.5, steps=100)
    train(model, budget, 100)
    assert budget.met
    del budget
    gc.collect()
    assert frozen(model)


def test_the_state_of_a_met_budget_needs_its_model() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.5, steps=100)
    train(model, budget, 100)
    other = gated()
    fresh = hg.Budget(other, params=0.5, steps=100)
    with pytest.raises(hg.ArgumentError, match="load the model's state before"):
        fresh.load_state_dict(budget.state_dict())
    assert not fresh.met
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(budget.state_dict())
    assert fresh.met and fresh.size == budget.size
