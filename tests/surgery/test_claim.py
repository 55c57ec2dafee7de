"""A budget and its gates: what happens when one of them goes, or another budget comes."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import headgate as hg
from headgate.bank import bank_of

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


@pytest.mark.parametrize("steps", [0, 30])
def test_gates_of_a_copied_model_are_free_until_they_rest_for_good(steps: int) -> None:
    """No budget would ever let go of them: it steers the model that it was made for."""
    model = gated()
    budget = hg.Budget(model, params=0.3, steps=300)
    train(model, budget, steps)
    twin = copy.deepcopy(model)
    bank, copied = bank_of(model), bank_of(twin)
    assert bank is not None and bank.rate is not None and frozen(model) == (steps == 0)
    assert copied is not None and copied.rate is None and not frozen(twin)
    with pytest.warns(hg.HeadgateWarning, match="not met yet"):
        hg.compact(twin)
    train(model, budget, 300 - steps)
    assert frozen(copy.deepcopy(model))


@pytest.mark.parametrize("steps", [0, 40, 90])
def test_a_budget_copied_with_its_model_steers_the_copy(steps: int) -> None:
    model = gated()
    budget = hg.Budget(model, params=0.3, steps=300)
    train(model, budget, steps)
    twin, copied = copy.deepcopy((model, budget))
    assert frozen(twin) == frozen(model)
    before = hg.status(model)
    train(twin, copied, 300 - steps)
    assert copied.met and hg.status(model) == before
    train(model, budget, 300 - steps)
    assert budget.met and budget.size == copied.size
    del copied
    gc.collect()
    assert frozen(twin)


def test_a_copied_budget_that_was_given_up_lets_go() -> None:
    model = gated()
    twin, copied = copy.deepcopy((model, hg.Budget(model, params=0.5, steps=200)))
    assert frozen(twin)
    del copied
    gc.collect()
    assert not frozen(twin)


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


def test_gates_that_are_baked_cannot_be_steered_again() -> None:
    model = gated()
    train(model, hg.Budget(model, params=0.5, steps=100), 100)
    second = hg.Budget(model, params=0.3, steps=100)
    with pytest.raises(hg.GateError, match=r"moved into its weights.*insert_gates_\(compact\(model\), example\)"):
        train(model, second, 1)
    smaller = hg.compact(model)
    hg.insert_gates_(smaller, X)
    third = hg.Budget(smaller, params=0.5, steps=100)
    train(smaller, third, 100)
    assert third.met


def test_a_met_budget_goes_on_in_a_model_that_was_loaded_first() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.5, steps=100)
    train(model, budget, 80)
    other = gated()
    other.load_state_dict(model.state_dict())
    resumed = hg.Budget(other, params=0.5, steps=100)
    resumed.load_state_dict(budget.state_dict())
    train(other, resumed, 20)
    assert resumed.met


def test_a_cut_before_the_budget_is_met_is_told() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.3, steps=200)
    train(model, budget, 30)
    with pytest.warns(hg.HeadgateWarning, match="compact: the budget of this model is not met yet"):
        hg.compact(model)
    train(model, budget, 170)
    hg.compact(model)


def test_a_cut_without_the_budget_that_was_given_up_is_nobodys_concern() -> None:
    model = gated()
    budget = hg.Budget(model, params=0.3, steps=200)
    del budget
    gc.collect()
    hg.compact(model)
