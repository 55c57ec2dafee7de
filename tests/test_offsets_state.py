"""Offsets across save and resume, copies and averages; and the errors where an optimizer no longer fits its model."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import headgate as hg
from headgate.bank import bank_of
from headgate.offsets import _gate_of
from tests.offset_cases import OPTIMIZERS, PUSHES, RATE, MakeOptimizer, drive, expected_trajectory, offsets, toy


def train(model: nn.Sequential, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step)).to(model[0].weight.dtype)
        optimizer.zero_grad()
        (model(x).square().mean() + (-1) ** step * 0.1 * hg.penalty(model)).backward()
        optimizer.step()


def through_a_file(state: dict[str, object]) -> dict[str, dict[str, object]]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, dict[str, object]] = torch.load(file, weights_only=True)
    return loaded


class OwnNAdam(optim.NAdam):
    """What a user derives from an optimizer whose state is looked up on loading."""


@pytest.mark.parametrize("make", [*OPTIMIZERS.values(), OwnNAdam], ids=[*OPTIMIZERS, "derived from NAdam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_resumed_run_continues_bit_for_bit(make: MakeOptimizer, dtype: torch.dtype):
    model = toy().to(dtype)
    optimizer = make(hg.param_groups(model, offset_lr=RATE))
    train(model, optimizer, range(5))
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    resumed = toy(offset=0.9).to(dtype)
    resumed_optimizer = make(hg.param_groups(resumed, offset_lr=RATE / 3))
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(resumed, resumed_optimizer, range(5, 10))
    train(model, optimizer, range(5, 10))
    ours, theirs = resumed.state_dict(), model.state_dict()
    # NAdam itself, gated or not, loads a float32 number of its state as float64 then.
    slack = 1e-6 if isinstance(optimizer, optim.NAdam) and dtype == torch.float64 else 0.0
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=slack)
    assert offsets(model)[0] != 1.0


def test_a_copied_model_with_groups_of_its_own_trains_alone():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1))
    train(model, optimizer, range(3))
    twin = copy.deepcopy(model)
    held = offsets(model)
    train(twin, optim.SGD(hg.param_groups(twin, lr=0.1)), range(3))
    assert offsets(model) == held != offsets(twin)


def test_a_copied_model_is_reported_until_it_has_groups():
    model = toy()
    hg.param_groups(model)
    hg.penalty(model)
    with pytest.warns(hg.HeadgateWarning, match="no optimizer group made by headgate holds the offsets of 1, 4"):
        hg.penalty(copy.deepcopy(model))


@pytest.mark.parametrize("with_model", [False, True], ids=["optimizer alone", "with its model"])
def test_a_copied_optimizer_is_refused_by_name(with_model: bool):
    model = toy()
    optimizer = optim.Adam(hg.param_groups(model))
    train(model, optimizer, range(2))
    trained = model
    if with_model:
        trained, optimizer = copy.deepcopy((model, optimizer))
    else:
        optimizer = copy.deepcopy(optimizer)
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        parameter.grad = torch.ones_like(parameter)
    held = offsets(trained)
    with pytest.raises(hg.OptimizerError, match=r"this Adam holds a parameter .* copied.*load the old one's"):
        optimizer.step()
    assert offsets(trained) == held


@pytest.mark.parametrize("how", ["by hand", "assign"])
def test_an_offset_replaced_behind_the_optimizers_back_is_refused(how: str):
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model))
    if how == "by hand":
        model[1].offset = nn.Parameter(torch.tensor(0.5))
    else:
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(hg.OptimizerError, match=r"an offset that its gate no longer has.*assign=True"):
        optimizer.step()


def test_the_offset_of_a_gate_that_has_left_is_refused():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model))
    model[1] = nn.Identity()
    gc.collect()
    with pytest.raises(hg.OptimizerError, match=r"no gate's offset here.*has left the model"):
        optimizer.step()


FRESH = """
import sys, torch, headgate
model, optimizer = torch.load(sys.argv[1], weights_only=False)
before = [gate.offset.item() for gate in headgate.gates(model).values()]
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
closure = (lambda: None) if sys.argv[2] == "closure" else None
try:
    optimizer.step(closure)
except headgate.OptimizerError as error:
    print(error)
assert before == [gate.offset.item() for gate in headgate.gates(model).values()]
fresh = torch.optim.SGD(headgate.param_groups(model), lr=0.1)
fresh.load_state_dict(optimizer.state_dict())
fresh.step()
assert before != [gate.offset.item() for gate in headgate.gates(model).values()]
"""


@pytest.mark.parametrize("closure", ["closure", "none"])
def test_an_optimizer_unpickled_in_another_process_is_refused_there(closure: str, tmp_path: Path):
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model), lr=0.1)
    train(model, optimizer, range(2))
    torch.save((model, optimizer), tmp_path / "both.pt")
    command = [sys.executable, "-c", FRESH, str(tmp_path / "both.pt"), closure]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this SGD holds a parameter that is no gate's offset here" in done.stdout


def test_moments_follow_the_model_to_another_dtype():
    model, reference = toy(), toy()
    optimizer = optim.SGD(hg.param_groups(model, offset_lr=RATE), lr=0.1)
    drive(model, optimizer, PUSHES[:5])
    model.double()
    seen = drive(model, optimizer, PUSHES[5:])
    state = optimizer.state[model[1].offset]
    assert state["first"].dtype == state["second"].dtype == torch.float64
    expected = drive(reference, optim.SGD(hg.param_groups(reference, offset_lr=RATE), lr=0.1))[5:]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=0, atol=1e-6)


def test_gates_of_two_dtypes_in_one_group():
    model = toy()
    model[4].double()
    seen = drive(model, optim.SGD(hg.param_groups(model, offset_lr=RATE), lr=0.1))
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected_trajectory()), rtol=0, atol=2e-6)


def test_a_dense_checkpoint_is_refused_by_name():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1), momentum=0.9)
    rest = [len(group["params"]) for group in optimizer.param_groups]
    assert rest == [6, 2]
    dense = [nn.Parameter(torch.zeros(1)) for _ in range(8)]
    groups = [{"params": dense[:6]}, {"params": dense[6:]}]  # two groups of the same sizes: torch sees no difference
    optimizer.load_state_dict(optim.SGD(groups, lr=0.1).state_dict())
    with pytest.raises(hg.OptimizerError, match=r"this SGD holds offsets, but not how to move them.*without gates"):
        train(model, optimizer, range(1))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(optim.SGD(dense, lr=0.1).state_dict())


def test_a_checkpoint_with_its_groups_in_another_order_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), hg.Gate(2), nn.Linear(2, 2, bias=False), hg.Gate(2), hg.Gate(2))
    weights, gated = hg.param_groups(model)
    other = optim.SGD([gated, weights], lr=0.1)
    optimizer = optim.SGD(hg.param_groups(model), lr=0.1)
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(hg.OptimizerError, match="no gate's offset"):
        optimizer.step()


def test_offsets_put_into_a_group_of_the_users_own_are_refused():
    model = toy()
    optimizer = optim.SGD([hg.offset_group(model)])
    whole = optim.Adam(model.parameters())  # moves the offsets as well
    optimizer.step()
    with pytest.raises(hg.OptimizerError, match=r"this Adam holds offsets.*a group of your own"):
        drive(model, whole, [1.0])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optim.SGD([{"params": model.parameters()}, hg.offset_group(model)])


def test_the_first_step_cannot_be_captured(monkeypatch: pytest.MonkeyPatch):
    # A replay would make the moments anew, and every step would be as long as the first.
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.OptimizerError, match="step once before capturing a CUDA graph"):
        drive(model, optimizer, [1.0])
    monkeypatch.undo()
    drive(model, optimizer, [1.0])


def test_an_average_of_a_gated_model():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, offset_lr=RATE), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected = 1.0
    for count, pair in enumerate(drive(model, optimizer, [1.0] * 6, after=lambda: average.update_parameters(model))):
        expected = pair[0] if count == 0 else (expected + pair[0]) / 2
    assert offsets(average)[0] == pytest.approx(expected, abs=1e-6)
    assert average(torch.ones(2, 3)).shape == (2, 2)
    assert [gate.name for gate in hg.status(average).gates] == ["module.1", "module.4"]


def test_gates_that_were_taken_off():
    """Their bank may live on until garbage is collected, known by an id that another parameter has by now."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    hg.insert_gates_(model, torch.randn(3, 4))
    optimizer, bank = optim.SGD(hg.param_groups(model, lr=0.1)), bank_of(model)
    assert bank is not None
    hg.remove_gates_(model)
    other = nn.Parameter(torch.zeros(3))
    other.grad = torch.ones(3)
    _gate_of[id(other)] = bank
    optim.SGD([other], lr=0.1).step()
    assert torch.equal(other, torch.full((3,), -0.1))
    with pytest.raises(hg.OptimizerError, match="no longer has"):
        optimizer.step()
