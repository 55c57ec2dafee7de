"""When something fails half-way, the model is as it was: values, objects, order, classes, hooks, ties."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import headgate as hg
from headgate import bank, masked, unmask
from headgate.channels.example import Example
from headgate.surgery import compact as compact_module
from headgate.surgery import insert, placement, planning
from headgate.surgery.shrink import shrink_
from tests.surgery.gated_nets import inserted, move_


class Mixed(nn.Module):
    """A tie, a parametrization and a hook of the user's own, a frozen layer, buffers, and something to gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(4, 4))
        self.entry = nn.Linear(4, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.frozen = nn.Linear(8, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_forward_pre_hook(count_calls)
        self.out.register_forward_hook(nothing)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(self.first(x).tanh()).relu()
        x = self.second(x).relu() + self.third(x).tanh()
        return self.out(self.norm(self.frozen(x)).relu()) * self.scale


def count_calls(module: nn.Module, args: Any) -> None:
    module.called = getattr(module, "called", 0) + 1


def nothing(module: nn.Module, args: Any, output: Tensor) -> None: ...


class Interrupted(BaseException):
    """Stands for the interruption from the keyboard, which pytest would take for itself."""


class Photograph:
    """All there is to know about a model: every object in it, by identity and order, and every value."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.structure = self._structure()
        self.values = {name: (t, t.detach().clone()) for name, t in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters(remove_duplicate=False)) | dict(
            self.model.named_buffers(remove_duplicate=False)
        )

    def _structure(self) -> list[Any]:
        return [
            (
                path,
                module,
                type(module),
                [(name, id(p)) for name, p in module._parameters.items()],
                [(name, id(b)) for name, b in module._buffers.items()],
                sorted(module._non_persistent_buffers_set),
                [(name, id(m)) for name, m in module._modules.items()],
                [
                    {number: id(hook) for number, hook in table.items()}
                    for name, table in sorted(vars(module).items())
                    if "hooks" in name
                ],
                [name for name in vars(module) if name != "called"],
                {name: value for name, value in vars(type(module)).items() if isinstance(value, property)},
            )
            for path, module in self.model.named_modules(remove_duplicate=False)
        ]

    def check(self) -> None:
        assert self._structure() == self.structure
        now = self._tensors()
        assert list(now) == list(self.values)
        for name, (tensor, value) in self.values.items():
            assert now[name] is tensor and torch.equal(tensor, value), name


def rows() -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def analysed() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Mixed().eval()
    return model, hg.find_groups(model, rows())


@pytest.fixture
def mixed(analysed: tuple[nn.Module, Any], monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    model, plan = analysed
    monkeypatch.setattr(insert, "planned", lambda *_: plan)
    return copy.deepcopy(model)


def failing(function: Callable[..., Any], after: int, error: BaseException, late: bool = False) -> Callable[..., Any]:
    """The function, but its call number `after` (from 0) raises; `late`, when it has done its work."""
    calls = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= after:
            return function(*args, **kwargs)
        if late:
            function(*args, **kwargs)
        raise error

    return broken


ERRORS = [ValueError("injected"), Interrupted()]


@pytest.mark.parametrize("error", ERRORS, ids=["error", "interrupt"])
@pytest.mark.parametrize("stage", ["analysed", "proven"])
def test_the_analysis_fails(stage: str, error: BaseException, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planning, stage, failing(getattr(planning, stage), 0, error))
    mixed = Mixed().eval()
    before = Photograph(mixed)
    with pytest.raises(type(error)):
        hg.insert_gates_(mixed, rows(), floor=2)
    before.check()


STAGES: list[tuple[Any, str, int]] = [
    (insert, "_places", 0),
    (insert, "install_bank_", 0),
    (bank, "find_last_", 0),
    (bank, "guarded", 2),
    (bank, "guarded", 5),
    (insert, "attach_", 0),
    (placement, "put_mask_on_", 0),
    (placement, "put_mask_on_", 2),
    (masked, "Side", 1),
    (parametrize, "register_parametrization", 1),
    (parametrize, "_inject_new_class", 0),
    (parametrize, "_inject_new_class", 2),
    (parametrize, "_inject_property", 1),
]


@pytest.mark.parametrize("error", ERRORS, ids=["error", "interrupt"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("where", "name", "after"), STAGES, ids=[f"{name}-{after}" for _, name, after in STAGES])
def test_an_insertion_fails(
    where: Any,
    name: str,
    after: int,
    late: bool,
    error: BaseException,
    mixed: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
):
    before, expected = Photograph(mixed), mixed(rows())
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(where, name, failing(getattr(where, name), after, error, late))
        hg.insert_gates_(mixed, rows(), floor=2)
    before.check()
    assert torch.equal(mixed(rows()), expected)
    hg.insert_gates_(mixed, rows(), floor=2)
    assert torch.equal(mixed(rows()), expected), "and now it works"


def test_a_where_of_the_users_that_raises(mixed: nn.Module):
    before = Photograph(mixed)
    with pytest.raises(hg.ArgumentError, match="where\\('entry', Linear\\) failed \\(ZeroDivisionError"):
        hg.insert_gates_(mixed, rows(), where=lambda name, module: bool(1 // 0))
    before.check()


def test_a_model_that_cannot_be_traced():
    class Untraceable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) if float(x.sum()) > 0 else self.b(self.a(x) + 1)

    model = Untraceable()
    before = Photograph(model)
    with pytest.raises(hg.HeadgateError):
        hg.insert_gates_(model, rows())
    before.check()
    assert model.training


@pytest.mark.parametrize("error", ERRORS, ids=["error", "interrupt"])
@pytest.mark.parametrize(
    ("where", "name", "after"),
    [
        (compact_module, "folded_weights", 0),
        (compact_module, "discard_gates_", 0),
        (unmask, "_take_mask_off_", 0),
        (unmask, "_take_mask_off_", 2),
        (unmask, "detach_", 0),
        (unmask, "uninstall_bank_", 0),
        (compact_module, "write_all_", 0),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_removal_fails(
    where: Any,
    name: str,
    after: int,
    late: bool,
    error: BaseException,
    mixed: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
):
    if name == "write_all_" and late:
        pytest.skip("all has been written by then")
    hg.insert_gates_(mixed, rows(), floor=2)
    move_(mixed)
    before, expected = Photograph(mixed), mixed(rows())
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(where, name, failing(getattr(where, name), after, error, late))
        hg.remove_gates_(mixed)
    before.check()
    assert torch.equal(mixed(rows()), expected)


class Stubborn(nn.Parameter):
    """A parameter that fails while it is written, half-way."""

    broken = False

    def copy_(self, source: Tensor, *args: Any) -> Tensor:
        if Stubborn.broken:
            Stubborn.broken = False
            torch.Tensor.copy_(self.view(-1)[:3], source.reshape(-1)[:3])
            raise Interrupted
        return torch.Tensor.copy_(self, source, *args)


@pytest.mark.parametrize("function", [hg.bake_, hg.remove_gates_])
def test_writing_the_weights_fails(function: Callable[[nn.Module], None], mixed: nn.Module):
    mixed.out.weight = Stubborn(mixed.out.weight.detach())
    hg.insert_gates_(mixed, rows(), floor=2)
    move_(mixed)
    before, expected = Photograph(mixed), mixed(rows())
    Stubborn.broken = True
    with pytest.raises(Interrupted):
        function(mixed)
    before.check()
    assert torch.equal(mixed(rows()), expected)
    function(mixed)
    assert torch.allclose(mixed(rows()), expected, atol=1e-6)


@pytest.mark.parametrize("function", [hg.bake_, hg.compact])
def test_a_nan_is_refused_by_name_and_nothing_changes(function: Callable[[nn.Module], Any], mixed: nn.Module):
    found = hg.insert_gates_(mixed, rows(), floor=2)
    name = list(found)[1]
    with torch.no_grad():
        found[name].offset.fill_(float("nan"))
    before = Photograph(mixed)
    with pytest.raises(hg.GateError, match=name):
        function(mixed)
    assert mixed.headgate_offsets[1].isnan()
    with torch.no_grad():
        found[name].offset.fill_(1.0)
        before.values["headgate_offsets"] = (inserted(mixed).offset, torch.ones(len(found)))
    before.check()


def test_compacting_fails_and_the_gated_model_is_untouched(mixed: nn.Module, monkeypatch: pytest.MonkeyPatch):
    hg.insert_gates_(mixed, rows(), floor=2)
    move_(mixed)
    before = Photograph(mixed)
    monkeypatch.setattr(compact_module, "shrink_", failing(shrink_, 0, Interrupted()))
    with pytest.raises(Interrupted):
        hg.compact(mixed)
    before.check()


def test_the_photograph_sees_differences(mixed: nn.Module):
    for change in (
        lambda m: m.out.bias.data.add_(1),
        lambda m: m.register_buffer("more", torch.zeros(1)),
        lambda m: m.out.register_forward_hook(nothing),
        lambda m: setattr(m.out, "weight", nn.Parameter(m.out.weight.detach().clone())),
        lambda m: m.out._parameters.__setitem__("weight", m.out._parameters.pop("weight")),
        lambda m: setattr(m.third, "weight", nn.Parameter(m.third.weight.detach().clone())),
    ):
        model = copy.deepcopy(mixed)
        before = Photograph(model)
        before.check()
        change(model)
        with pytest.raises(AssertionError):
            before.check()


def test_the_example_is_left_alone(mixed: nn.Module):
    given = rows()
    hg.insert_gates_(mixed, given, floor=2)
    assert torch.equal(given, rows()) and Example.of(given).args[0] is given
