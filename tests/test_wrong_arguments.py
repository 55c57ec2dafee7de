"""Every public function called with what it cannot use: an error of ours that names the function, and no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def rows() -> Tensor:
    return torch.randn(4, 6)


@pytest.fixture(scope="module")
def plan() -> hg.Plan:
    return hg.find_groups(plain(), rows())


def gated() -> nn.Sequential:
    model = plain()
    hg.insert_gates_(model, rows(), floor=1)
    return model


def small() -> nn.Module:
    return hg.compact(gated())


ANY: Any = None
NO_MODULE: dict[str, Callable[[Any], Any]] = {
    "find_groups": lambda model: hg.find_groups(model, rows()),
    "insert_gates_": lambda model: hg.insert_gates_(model, rows()),
    "compact": lambda model: hg.compact(model, rows()),
    "remove_gates_": hg.remove_gates_,
    "shrink": lambda model: hg.shrink(model, hg.find_groups(plain(), rows()), {}),
    "gates": hg.gates,
    "status": hg.status,
    "penalty": hg.penalty,
    "offset_group": lambda model: hg.param_groups(model, lr=0.1),
    "freeze_": hg.freeze_,
    "bake_": hg.bake_,
    "kept": hg.kept,
    "cost": lambda model: hg.cost(model, rows()),
    "save": lambda model: hg.save(model, "never"),
    "export_onnx": lambda model: hg.export_onnx(model, rows(), "never"),
    "transfer_": lambda model: hg.transfer_(torch.optim.SGD(plain().parameters()), model, plain()),
    "Budget": lambda model: hg.Budget(model, params=0.5, steps=1000),
}


@pytest.mark.parametrize("name", NO_MODULE)
@pytest.mark.parametrize("model", [None, "model", nn.Linear], ids=["None", "str", "class"])
def test_what_is_no_model(name: str, model: Any) -> None:
    kind = type(model).__name__
    with pytest.raises(hg.ArgumentError, match=rf"^{name}: a model must be a torch\.nn\.Module, not {kind}$"):
        NO_MODULE[name](model)


@pytest.mark.parametrize(
    ("given", "keep", "words"),
    [
        (None, {}, r"^shrink: plan must be what find_groups\(model, example\) returned, and is NoneType"),
        ("plan", None, "^shrink: keep must map names of sites to bool vectors, and is NoneType"),
        ("plan", [True], "^shrink: keep must map names of sites to bool vectors, and is list"),
        ("plan", {"0": None}, r"^shrink: keep\['0'\] must be a bool vector, not NoneType"),
        ("plan", {"0": "open"}, r"^shrink: keep\['0'\] must be a bool vector, not str"),
        ("plan", {"0": torch.ones(8)}, r"^shrink: keep\['0'\] must be a bool vector of 8 entries, got torch.float32"),
        ("plan", {"nowhere": torch.ones(8) > 0}, r"^shrink: the plan has no site 'nowhere'; print\(plan\)"),
    ],
)
def test_shrink(given: Any, keep: Any, words: str, plan: hg.Plan) -> None:
    with pytest.raises(hg.ArgumentError, match=words):
        hg.shrink(plain(), plan if given == "plan" else given, keep)


def test_nothing_to_remove_is_a_copy(plan: hg.Plan) -> None:
    model = plain()
    twin = hg.shrink(model, plan, {})
    assert twin is not model
    assert torch.equal(twin(x := rows()), model(x))


@pytest.mark.parametrize("path", [None, 3, Path], ids=["None", "int", "class"])
def test_what_is_no_path(path: Any) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "save": lambda: hg.save(small(), path),
        "load": lambda: hg.load(path, plain),
        "export_onnx": lambda: hg.export_onnx(small(), rows(), path),
    }
    for name, use in uses.items():
        with pytest.raises(hg.ArgumentError, match=rf"^{name}: path=.* is no path of a file"):
            use()


@pytest.mark.parametrize("factory", [None, plain()], ids=["None", "a model"])
def test_what_is_no_factory(factory: Any, tmp_path: Path) -> None:
    hg.save(small(), tmp_path / "small")
    with pytest.raises(hg.ArgumentError, match=r"^load: factory=.* must be a class or function without arguments"):
        hg.load(tmp_path / "small", factory)


@pytest.mark.parametrize("state", [None, [], {}, {"step": 3}])
def test_what_is_no_state_of_a_budget(state: Any) -> None:
    budget = hg.Budget(gated(), params=0.5, steps=1000)
    before = budget.state_dict()
    with pytest.raises(hg.ArgumentError, match=r"^Budget: load_state_dict takes what state_dict gave"):
        budget.load_state_dict(state)
    assert budget.state_dict().keys() == before.keys() and budget.state_dict()["step"] == before["step"]


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("step", -5, "step=-5 must be 0 or more"),
        ("step", "x", "step='x' is not a whole number"),
        ("step", None, "step=None is not a whole number"),
        ("met", "no", "met='no' must be True or False"),
        ("size", 2.5, "size=2.5 is not a whole number"),
        ("full", -1, "full=-1 must be 0 or more"),
        ("coming", [3], r"coming=\[3\] is not a whole number"),
        ("strength", 0.5, r"strength must be a tensor of shape \(\), of finite numbers"),
        ("level", torch.tensor(math.nan), r"level must be a tensor of shape \(\), of finite numbers"),
        ("weights", 7, r"weights must be a tensor of shape \(1,\), of finite numbers"),
    ],
)
def test_an_entry_that_no_state_of_a_budget_has(entry: str, value: Any, words: str) -> None:
    """The others would all change something: none of them does."""
    budget = hg.Budget(gated(), params=0.5, steps=1000)
    before = budget.state_dict()
    other = {"step": 70, "size": 50, "coming": 60, "strength": torch.tensor(0.5), "level": torch.tensor(0.1)}
    with pytest.raises(hg.ArgumentError, match=f"^Budget: load_state_dict: {words}$"):
        budget.load_state_dict({**before, **other, entry: value})
    assert budget.state_dict() == before
    budget.load_state_dict({**before, **other})
    assert budget.state_dict()["step"] == 70 and float(budget.state_dict()["strength"]) == 0.5


def test_a_where_that_fails_changes_nothing() -> None:
    model = plain()
    only_one: Any = lambda name: True  # noqa: E731
    with pytest.raises(hg.ArgumentError, match=r"^insert_gates_: where\('0', Linear\) failed \(TypeError: "):
        hg.insert_gates_(model, rows(), where=only_one, floor=1)
    assert hg.gates(model) == {} and list(model.state_dict()) == list(plain().state_dict())


def test_what_is_no_optimizer() -> None:
    model = gated()
    hg.bake_(model)
    with pytest.raises(hg.OptimizerError, match=r"^transfer_: NoneType is no optimizer"):
        hg.transfer_(ANY, model, small())


@pytest.mark.parametrize("arguments", [{"repeats": "a"}, {"repeats": None}, {"trace": 3}, {"latency": None}])
def test_cost(arguments: dict[str, Any]) -> None:
    with pytest.raises(hg.ArgumentError, match=f"^cost: {next(iter(arguments))}="):
        hg.cost(plain(), rows(), **arguments)
