"""The rule that moves offsets, its bounds, and the groups that carry them."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn, optim

import headgate as hg
from tests.offset_cases import RATE, by_the_rule, drive, offsets, prescribed_loss, toy, weights


def train_on_gradients(gate: hg.Gate, gradients: list[float], rate: float = RATE) -> list[float]:
    """The gate's offsets when its gradients are these, one step each."""
    optimizer = optim.SGD(hg.param_groups(gate, offset_lr=rate), lr=100.0)
    seen = []
    for gradient in gradients:
        gate.offset.grad = torch.full_like(gate.offset, gradient)
        optimizer.step()
        seen.append(gate.offset.item())
    return seen


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_first_three_steps_by_hand():
    # Step 1: 0.5 over its own root. Step 2: (0.9·0.05 - 0.025)/0.19 = 0.105263 over √((0.99·0.0025 + 0.000625)/0.0199)
    # = 0.394688, so 0.266699 of the rate. Step 3: (0.9·0.02 + 0.2)/0.271 = 0.804428 over √(0.043069/0.029701) =
    # 1.204195, so 0.668021.
    moved = train_on_gradients(hg.Gate(4), [0.5, -0.25, 2.0])
    assert moved == pytest.approx([0.99, 0.987333, 0.980653], abs=1e-6)


def test_long_run_follows_the_documented_rule():
    gradients = (torch.randn(300, generator=torch.Generator().manual_seed(3)) + 0.5).tolist()
    assert train_on_gradients(hg.Gate(4), gradients) == pytest.approx(by_the_rule(gradients), abs=1e-5)


def test_a_step_is_never_longer_than_the_rate():
    # After a long silence the first moment runs ahead of the root of the second: 1.25 at the second push, unbounded.
    moved = train_on_gradients(hg.Gate(4), [0.0] * 200 + [1.0] * 10)
    steps = -torch.tensor([1.0, *moved], dtype=torch.float64).diff()
    assert steps.abs().max() <= RATE * (1 + 1e-5)
    assert steps[201:].tolist() == pytest.approx([RATE] * 9, abs=1e-6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e18, 1e20, 3e38])
def test_the_size_of_the_gradient_does_not_matter(size):
    assert train_on_gradients(hg.Gate(4), [size] * 5)[-1] == pytest.approx(1 - 5 * RATE, abs=1e-4)


def test_noise_far_below_epsilon_hardly_moves_an_offset():
    noise = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 1e-7).tolist()
    gate = hg.Gate(4, offset=0.0)
    gate.start.fill_(9.0)  # free to go either way
    moved = train_on_gradients(gate, noise)
    normalised = by_the_rule(noise, start=9.0, lowest=-9.0, epsilon=0.0)
    assert max(abs(offset - 9.0) for offset in normalised) > 50 * RATE
    assert max(map(abs, moved)) < 10 * RATE


def test_zero_gradients_move_nothing():
    assert train_on_gradients(hg.Gate(4), [0.0] * 5) == [1.0] * 5


def test_no_gradient_moves_nothing_and_makes_no_state():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1))
    model(torch.ones(2, 3)).sum().backward()
    model[1].offset.grad = None
    optimizer.step()
    assert model[1].offset.item() == 1.0
    assert model[1].offset not in optimizer.state
    assert model[4].offset in optimizer.state


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when", [0, 2])
def test_a_gradient_that_is_not_finite_is_as_if_it_had_not_been(bad, when):
    sound = [0.5, -0.25, 2.0, 1.0]
    moved = train_on_gradients(hg.Gate(4), [*sound[:when], bad, *sound[when:]])
    unharmed = train_on_gradients(hg.Gate(4), sound)
    assert moved[:when] + moved[when + 1 :] == unharmed
    assert moved[when] == ([1.0, *unharmed])[when]


def test_never_above_the_start():
    moved = train_on_gradients(hg.Gate(4, offset=0.7), [1.0, -1.0, -1.0, -5.0, -5.0])
    assert moved[0] == pytest.approx(0.69)
    assert max(moved) == moved[-1] == pytest.approx(0.7)


@pytest.mark.parametrize(("floor", "lowest", "active"), [(0, -5.0, 0), (1, -4.375, 1), (3, -1.875, 3), (4, -0.625, 4)])
def test_stops_at_the_floor_and_opens_again(floor, lowest, active):
    gate = hg.Gate(4, floor=floor)  # orders 1.25, 2.5, 3.75, 5; the floor is half a unit (0.625) before a closing
    moved = train_on_gradients(gate, [1.0] * 80, rate=0.1)
    assert min(moved) == moved[-1] == pytest.approx(lowest)
    assert gate.active == active
    assert train_on_gradients(gate, [-1.0] * 30, rate=0.1)[-1] == pytest.approx(min(1.0, lowest + 3.0), abs=1e-4)


def test_at_the_floor_the_loss_still_reaches_the_offset():
    gate = hg.Gate(4, floor=2)
    train_on_gradients(gate, [1.0] * 80, rate=0.1)
    gate.offset.grad = None
    gate(torch.ones(1, 4)).sum().backward()
    assert gate.offset.grad is not None and gate.offset.grad > 0


def test_a_baked_gate_stays_where_it_is():
    gate = hg.Gate(4)
    hg.bake_(gate)
    assert train_on_gradients(gate, [1.0] * 3) == [1.0] * 3


def test_works_in_double_precision_and_offsets_stay_long_in_half_a_model():
    gradients = [0.5, -0.25, 2.0, 1.0]
    assert train_on_gradients(hg.Gate(4).double(), gradients) == pytest.approx(by_the_rule(gradients), abs=1e-7)
    assert train_on_gradients(hg.Gate(4).bfloat16(), gradients) == pytest.approx(by_the_rule(gradients), abs=1e-6)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_groups_split_by_identity():
    model = nn.ModuleDict({"offset": nn.Linear(4, 4), "gate": hg.Gate(4), "head": nn.Linear(4, 4)})  # names mislead
    model["again"] = model["gate"]  # a shared gate is one gate
    model["head"].weight = model["offset"].weight  # a tied weight is one parameter
    nn.utils.parametrizations.weight_norm(model["head"])  # and parametrized, it is another two
    rest, gated = hg.param_groups(model)
    assert gated["params"] == [model["gate"].offset]
    ids = [id(parameter) for parameter in rest["params"] + gated["params"]]
    assert len(ids) == len(set(ids)) and set(ids) == {id(parameter) for parameter in model.parameters()}


def test_options_not_given_are_left_to_the_optimizer():
    rest, gated = hg.param_groups(toy())
    assert rest.keys() == {"params"}
    optimizer = optim.SGD([rest, gated], lr=0.3, weight_decay=0.2)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.3, 0.2), (2e-3, 0.0)]


def test_options_given_are_those_of_the_weights():
    rate = torch.tensor(0.3)
    rest, gated = hg.param_groups(toy(), lr=rate, weight_decay=0.2, offset_lr=0.01)
    assert rest["lr"] is rate and rest["weight_decay"] == 0.2
    assert (gated["lr"], gated["offset_lr"], gated["weight_decay"]) == (0.01, 0.01, 0.0)


def test_groups_of_the_users_own():
    model = toy()
    optimizer = optim.AdamW([{"params": model[0].parameters(), "lr": 0.5}, hg.offset_group(model, offset_lr=RATE)])
    optimizer.add_param_group({"params": [*model[3].parameters(), *model[5].parameters()], "lr": 0.1})
    assert drive(model, optimizer, [1.0])[0] == pytest.approx([1 - RATE, 1.0], abs=1e-6)


def test_a_model_of_gates_alone_has_one_group():
    (group,) = hg.param_groups(hg.Gate(4))
    assert len(group["params"]) == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_wrapped_models_give_the_same_parameters(wrap):
    model = toy()
    expected = [[id(p) for p in group["params"]] for group in hg.param_groups(model)]
    assert [[id(p) for p in group["params"]] for group in hg.param_groups(wrap(model))] == expected


@pytest.mark.parametrize(
    "rate", [0.0, -1.0, math.nan, math.inf, "0.1", None, pytest.param(10**400, id="huge"), torch.ones(2)]
)
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(hg.ArgumentError, match=r"(?s)offset_lr.*freeze_"):
        hg.param_groups(toy(), offset_lr=rate)


def test_an_unknown_update_is_refused():
    with pytest.raises(hg.ArgumentError, match=r"offset_update='adam' is unknown; use one of bounded, plain"):
        hg.param_groups(toy(), offset_update="adam")  # type: ignore[arg-type]


def test_a_model_without_gates_is_refused():
    with pytest.raises(hg.GateError, match="Linear has no gates"):
        hg.param_groups(nn.Linear(2, 2))


def test_two_gates_with_one_offset_are_refused_by_name():
    model = toy()
    model[4].offset = model[1].offset
    with pytest.raises(hg.GateError, match="gates '1' and '4' share one offset"):
        hg.param_groups(model)


def test_groups_of_a_model_that_is_not_there_yet():
    with torch.device("meta"):
        model = toy()
    assert [len(group["params"]) for group in hg.param_groups(model)] == [6, 2]


def test_importing_headgate_hooks_in_without_the_compiler():
    program = "import sys, headgate; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- freezing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["bounded", "plain"])
@pytest.mark.parametrize(
    "make",
    [
        lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.1),
        lambda groups: optim.AdamW(groups, lr=0.01, weight_decay=0.1),
        lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.1, fused=True),
    ],
    ids=["SGD", "AdamW", "SGD fused"],
)
def test_frozen_offsets_do_not_move_and_the_weights_do(update, make):
    model = toy()
    optimizer = make(hg.param_groups(model, offset_lr=RATE, offset_update=update))
    drive(model, optimizer, [1.0, 1.0])  # momentum and moments exist by now
    held, before = offsets(model), weights(model)
    hg.freeze_(model)
    assert drive(model, optimizer, [1.0, -3.0, 2.0]) == [held] * 3
    assert not torch.equal(weights(model), before)
    hg.freeze_(model, False)
    assert drive(model, optimizer, [1.0])[0] != held


def test_a_frozen_while_leaves_the_moments_alone():
    model, reference = toy(), toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1))
    drive(model, optimizer, [1.0, -0.3])
    hg.freeze_(model)
    drive(model, optimizer, [100.0, 100.0])
    hg.freeze_(model, False)
    thawed = drive(model, optimizer, [0.2])
    assert thawed == drive(reference, optim.SGD(hg.param_groups(reference, lr=0.1)), [1.0, -0.3, 0.2])[-1:]


def test_freezing_leaves_gradients_and_requires_grad_to_the_user():
    model = toy()
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1))
    hg.freeze_(model)
    prescribed_loss(model, 2.0).backward()
    optimizer.step()
    assert model[1].offset.requires_grad
    assert model[1].offset.grad == 2.0


# --- the paper's way --------------------------------------------------------------------------------------------------


def test_plain_offsets_are_moved_as_the_weights_are():
    model, reference = toy(floor=2), toy(floor=2)
    plain = optim.SGD(hg.param_groups(model, lr=0.5, weight_decay=0.1, offset_update="plain"), momentum=0.9)
    assert [group["lr"] for group in plain.param_groups] == [0.5, 0.5]
    reference_optimizer = optim.SGD(reference.parameters(), lr=0.5, weight_decay=0.1, momentum=0.9)
    pushes = [3.0, 3.0, -1.0, 20.0]
    assert drive(model, plain, pushes) == drive(reference, reference_optimizer, pushes)
    assert min(offsets(model)) < -5  # neither bound nor floor


@pytest.mark.parametrize(("strength", "decay", "count"), [(0.4, 1e-2, 20), (0.1, 5e-3, 10)])
def test_plain_with_decay_settles_at_the_papers_equilibrium(strength, decay, count):
    model = nn.Sequential(*(hg.Gate(4) for _ in range(count)))
    optimizer = optim.SGD(hg.param_groups(model, lr=5.0, weight_decay=decay, offset_update="plain"))
    for _ in range(400):
        optimizer.zero_grad()
        (strength * hg.penalty(model)).backward()
        optimizer.step()
    assert offsets(model) == pytest.approx([-strength / (count * decay)] * count, rel=1e-3)


def test_bounded_offsets_know_no_decay_and_go_to_the_floor():
    model = nn.Sequential(*(hg.Gate(4, floor=1) for _ in range(20)))
    optimizer = optim.SGD(hg.param_groups(model, lr=5.0, weight_decay=0.01, offset_lr=0.1))
    for _ in range(80):
        optimizer.zero_grad()
        (0.4 * hg.penalty(model)).backward()
        optimizer.step()
    assert offsets(model) == pytest.approx([-4.375] * 20)
