"""Questions about gated models: small models whose counts can be read off."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from headgate import ArgumentError, Gate, GateError, GateStatus, Status
from headgate.gated import unwrap


def small() -> nn.Sequential:
    """Two gates: "1" with all of 4 units open, "4.0" with 3 of 8 (order numbers 0.625 … 5, offset -3.2)."""
    inner = nn.Sequential(Gate(8, offset=-3.2), nn.Linear(8, 2))
    return nn.Sequential(nn.Linear(3, 4), Gate(4), nn.Linear(4, 8), nn.ReLU(), inner)


class Sharing(nn.Module):
    """One gate under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Gate(4, offset=-2.0)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


# --- finding ---------------------------------------------------------------------------------------------------------


def test_gates_by_path_in_the_order_of_the_modules():
    model = small()
    assert list(hg.gates(model)) == ["1", "4.0"]
    assert hg.gates(model)["1"] is model[1] and hg.gates(model)["4.0"] is model[4][0]


def test_no_gates_is_an_empty_dict():
    assert hg.gates(nn.Linear(3, 4)) == {}


def test_a_shared_gate_counts_once():
    model = Sharing()
    assert list(hg.gates(model)) == ["first"]
    assert hg.status(model).total == 4 and hg.kept(model) == 0.75


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        torch.compile,
        lambda model: torch.compile(nn.DataParallel(model)),
        lambda model: nn.DataParallel(torch.compile(model)),
    ],
    ids=["DataParallel", "compile", "compile of DataParallel", "DataParallel of compile"],
)
def test_wrappers_do_not_change_the_names(wrap: Callable[[nn.Module], nn.Module]):
    model = small()
    wrapped = wrap(model)
    assert unwrap(wrapped, "test") is model
    assert list(hg.gates(wrapped)) == ["1", "4.0"]
    assert hg.status(wrapped) == hg.status(model) and hg.kept(wrapped) == hg.kept(model)
    hg.freeze_(wrapped)
    hg.bake_(wrapped)
    assert model[1].frozen and bool(model[1].baked)


@pytest.fixture
def one_process(tmp_path: Path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_does_not_change_the_names(one_process: None):
    model = small()
    wrapped = torch.compile(nn.parallel.DistributedDataParallel(model))
    assert hg.status(wrapped) == hg.status(model)
    assert list(hg.gates(wrapped)) == ["1", "4.0"]


def test_sharded_models_are_refused_by_name(one_process: None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(GateError, match="FSDPSequential shards its parameters"):
        hg.gates(model)


def test_a_model_with_a_sharded_part_is_refused_too(one_process: None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = small()
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(GateError, match="FSDPLinear shards its parameters"):
        hg.gates(model)


def test_compiled_parts_do_not_change_the_names():
    model = small()
    names = list(hg.gates(model))
    model[1], model[4] = torch.compile(model[1]), torch.compile(model[4])
    assert list(hg.gates(model)) == names
    assert [gate.name for gate in hg.status(model).gates] == names


ASKING: list[tuple[str, Callable[[nn.Module], Any]]] = [
    ("status", hg.status),
    ("kept", hg.kept),
    ("freeze_", hg.freeze_),
    ("bake_", hg.bake_),
    ("penalty", hg.penalty),
    ("offset_group", hg.offset_group),
    ("offset_group", lambda model: hg.param_groups(model, lr=0.1)),
]


@pytest.mark.parametrize(("name", "ask"), ASKING)
def test_a_model_without_gates_is_refused(name: str, ask: Callable[[nn.Module], Any]):
    with pytest.raises(GateError, match=f"{name}: Linear has no gates"):
        ask(nn.Linear(3, 4))


@pytest.mark.parametrize("model", [None, "model", [nn.Linear(3, 4)], nn.Linear], ids=str)
@pytest.mark.parametrize("ask", [hg.gates, *(ask for _, ask in ASKING)])
def test_what_is_no_model_is_refused(ask: Callable[[Any], Any], model: Any):
    with pytest.raises(ArgumentError, match=f"a model must be a torch.nn.Module, not {type(model).__name__}"):
        ask(model)


# --- status and kept -------------------------------------------------------------------------------------------------


def test_status_by_hand():
    status = hg.status(small())
    assert status == Status(
        (
            GateStatus("1", 1.0, 4, 4, frozen=False, baked=False),
            GateStatus("4.0", pytest.approx(-3.2), 3, 8, frozen=False, baked=False),
        )
    )
    assert (status.open, status.total) == (7, 12)


def test_status_prints_as_a_table():
    model = small()
    assert str(hg.status(model)).split("\n") == [
        "gate  offset   open/total",
        "1     +1.000      4/4",
        "4.0   -3.200      3/8",
        "all               7/12  58.3%",
    ]
    model[1].frozen = True
    hg.bake_(model[4])
    model[1].frozen = True
    first, second = (line.split() for line in str(hg.status(model)).split("\n")[1:3])
    assert (first[-1], second[-1]) == ("frozen", "baked")
    assert second[1] == "–" != first[1]


def test_the_table_is_as_wide_as_the_longest_name():
    model = nn.ModuleDict({"a_rather_long_name": Gate(4)})
    lines = str(hg.status(model)).split("\n")
    assert lines[0].startswith("gate                offset") and lines[1].startswith("a_rather_long_name  +1.000")


def test_a_bare_gate_is_called_root():
    assert str(hg.status(Gate(4))).split("\n")[1].startswith("root  +1.000")


def test_status_is_a_moment_not_a_view():
    model = small()
    before = hg.status(model)
    with torch.no_grad():
        model[1].offset.fill_(-2.0)
    assert before.gates[0].open == 4 and hg.status(model).gates[0].open == 3


def test_kept_is_a_fraction_of_units_not_of_gates():
    assert hg.kept(small()) == 7 / 12


def test_the_sigmoid_counts_as_open():
    assert hg.kept(nn.Sequential(Gate(4, fn="sigmoid", offset=-4.0))) == 1.0


# --- freezing --------------------------------------------------------------------------------------------------------


def test_freezing_marks_every_gate_and_touches_nothing_else():
    model = small()
    before = copy.deepcopy(model.state_dict())
    hg.freeze_(model)
    assert [gate.frozen for gate in hg.status(model).gates] == [True, True]
    assert all(gate.offset.requires_grad for gate in hg.gates(model).values())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    hg.freeze_(model, False)
    assert [gate.frozen for gate in hg.status(model).gates] == [False, False]


@pytest.mark.parametrize("frozen", ["yes", 1, None])
def test_frozen_is_true_or_false(frozen: Any):
    model = small()
    with pytest.raises(ArgumentError, match=f"frozen={frozen!r} must be True or False"):
        hg.freeze_(model, frozen)
    assert not model[1].frozen


def test_a_frozen_gate_still_has_a_gradient():
    model = small()
    hg.freeze_(model)
    model(torch.randn(5, 3)).sum().backward()
    assert model[4][0].offset.grad is not None and model[4][0].offset.grad != 0


# --- baking ----------------------------------------------------------------------------------------------------------


def test_baking_keeps_the_function_of_the_whole_model():
    model, x = small(), torch.randn(5, 3)
    before = model(x)
    hg.bake_(model)
    assert torch.equal(model(x), before)
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-4.9)
    assert torch.equal(model(x), before) and hg.kept(model) == 7 / 12


def test_only_the_given_part_is_baked():
    model = small()
    hg.bake_(model[4])
    assert [gate.baked for gate in hg.status(model).gates] == [False, True]


# --- not a number ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("ask", [hg.status, hg.kept, hg.bake_, hg.offset_group, hg.param_groups])
def test_a_broken_offset_is_reported_with_the_name_of_its_gate(ask: Callable[[nn.Module], Any], value: float):
    model = small()
    with torch.no_grad():
        model[4][0].offset.fill_(value)
    with pytest.raises(GateError, match=rf"not a finite number in 4\.0 \({value}\)$"):
        ask(model)
    assert not any(bool(gate.baked) for gate in hg.gates(model).values())


def test_all_broken_offsets_are_named_and_a_bare_gate_is_the_root():
    model = small()
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(math.nan)
    with pytest.raises(GateError, match=r"1 \(nan\), 4\.0 \(nan\)"):
        hg.status(model)
    with pytest.raises(GateError, match=r"root \(nan\)"):
        hg.status(model[1])
