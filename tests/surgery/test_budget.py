"""A budget: met in time, never exceeded, hardly undercut, counted as compaction counts; and whatever it cannot do."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

import headgate as hg
from headgate.bank import bank_of
from headgate.surgery.compact import insertion_of
from headgate.surgery.gauge import Gauge, gauge_of
from headgate.surgery.schedule import schedule_of
from headgate_lab.data.digits import digits
from headgate_lab.models.preresnet import PreResNet
from tests.surgery.exactness import move_offsets_, parameters
from tests.toys import PostBlock, PreBlock, conv

STEPS = 240
IMAGE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.c3, self.b3 = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.b1(self.c1(x)))
        x = max_pool2d(torch.relu(self.b2(self.c2(x))), 2)
        return self.head(torch.relu(self.b3(self.c3(x))).mean((2, 3)))


class Training:
    """Digits with a budget, step by step."""

    def __init__(self, insertion: dict[str, Any] | None = None, steps: int = STEPS, **budget: Any) -> None:
        torch.manual_seed(0)
        self.model = Digits()
        hg.insert_gates_(self.model, IMAGE, **(insertion or {}))
        self.optimizer = torch.optim.SGD(hg.param_groups(self.model, lr=0.1, weight_decay=5e-4), momentum=0.9)
        self.budget = hg.Budget(self.model, IMAGE, steps=steps, **budget)
        self.data, self.done = digits(), 0

    def run(self, until: int) -> None:
        while self.done < until:
            chosen = torch.randperm(1280, generator=torch.Generator().manual_seed(self.done))[:32]
            loss = cross_entropy(self.model(self.data.train_images[chosen]), self.data.train_labels[chosen])
            self.optimizer.zero_grad()
            (loss + self.budget.penalty()).backward()
            self.optimizer.step()
            self.budget.step()
            self.done += 1

    def accuracy(self, model: nn.Module) -> float:
        return float((model.eval()(self.data.test_images).argmax(1) == self.data.test_labels).float().mean())


def gauge(model: nn.Module, of: str = "params") -> Gauge:
    return gauge_of(model, insertion_of(model, "test"), of, None)


def residual() -> nn.Module:
    return nn.Sequential(conv(1, 8), PostBlock(8, 8), PreBlock(8, 12, 2), nn.Flatten(), nn.Linear(192, 4))


NETWORKS = {"chain": Digits, "residual": residual}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "random order": {"order": "random:3"},
    "multiples": {"multiple_of": 4},
    "full branches": {"branches": "full"},
    "readers": {"readers": True, "floor": 2},
    "no streams": {"streams": False, "floor": 1},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_gauge_counts_what_compaction_leaves(network: str, options: str) -> None:
    model = NETWORKS[network]()
    hg.insert_gates_(model, IMAGE, **OPTIONS[options])
    for seed in range(3):
        move_offsets_(model, seed)
        small = hg.compact(model)
        kept = gauge(model).kept()
        assert gauge(model).size(kept) == parameters(small)
        assert gauge(model, "macs").size(kept) == hg.cost(small, IMAGE).macs
        assert sum(gauge(model).by_name(kept).values()) == parameters(small)
        assert gauge(model, "channels").size(kept) / int(gauge(model).sizes.sum()) == hg.kept(model)


def test_the_gauge_counts_silent_branches() -> None:
    model = PreResNet(11)
    image = torch.randn(1, 3, 8, 8)
    gates = hg.insert_gates_(model, image)
    with torch.no_grad():
        for name in gates:
            gates[name].offset.fill_(-9.0 if name.endswith(":write") and "stage2" in name else -1.0)
    small = hg.compact(model)
    assert gauge(model).size(gauge(model).kept()) == parameters(small)
    assert gauge(model, "macs").size(gauge(model, "macs").kept()) == hg.cost(small, image).macs


def test_savings_are_differences_of_sizes() -> None:
    model = residual()
    hg.insert_gates_(model, IMAGE, floor=2)
    measure = gauge(model)
    kept = measure.most
    size, savings = measure.size_and_savings(kept)
    assert size == parameters(residual())
    for number in range(len(kept)):
        fewer = kept.clone()
        fewer[number] -= 1
        assert savings[number] == size - measure.size(fewer)
    assert measure.size_and_savings(measure.least)[1].abs().sum() == 0


def blocks() -> nn.Module:
    """Residual blocks that can leave altogether."""
    return nn.Sequential(
        conv(1, 8), *(PreBlock(8, 8) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def test_a_branch_of_full_width_saves_what_goes_when_all_of_it_closes() -> None:
    """Nothing goes before: counted unit by unit it would never be worth closing."""
    model = blocks()
    names = list(hg.insert_gates_(model, IMAGE, branches="full"))
    measure = gauge(model)
    kept = measure.most.clone()
    number = next(number for number, name in enumerate(names) if name.endswith(":write"))
    kept[number] = 5
    size, savings = measure.size_and_savings(kept)
    silent = torch.where(torch.arange(len(kept)) == number, 0, kept)
    assert savings[number] == (size - measure.size(silent)) / 5 > 0
    # In the end such a branch goes whole, and by the mean of its masks: the smallest one says little of the others.
    target = measure.size(silent)
    masks = torch.full((int(kept.sum()) + 3,), 0.9)
    first = int(measure.sizes[:number].sum())
    masks[first : first + 8] = torch.tensor([0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert measure.settled(kept, target, masks).tolist() == silent.tolist()
    masks[first : first + 8] = torch.tensor([0.0, 0.0, 0.0, 1e-6, 1.0, 1.0, 1.0, 1.0])
    masks[:first] = 0.1
    assert measure.settled(kept, size - 1, masks)[number] > 0


def test_branches_of_full_width_close_on_the_way_and_not_at_its_end() -> None:
    torch.manual_seed(0)
    model, x, labels = blocks(), torch.randn(16, 1, 8, 8), torch.arange(16) % 4
    hg.insert_gates_(model, x, branches="full")
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.05), momentum=0.9)
    budget = hg.Budget(model, x, channels=0.4, steps=150)
    while not budget.met:
        before = budget.size
        optimizer.zero_grad()
        (cross_entropy(model(x), labels) + budget.penalty()).backward()
        optimizer.step()
        assert budget._push.strength < 100
        budget.step()
    assert before < 1.2 * budget.target


TARGETS: list[dict[str, Any]] = [{"params": 0.3}, {"params": 0.08}, {"macs": 0.2}, {"channels": 0.4}, {"params": 3000}]


def test_the_last_units_close_where_masks_are_smallest_each_time() -> None:
    """The gate that gives the first unit does not give all."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    hg.insert_gates_(model, torch.randn(2, 4), floor=1)
    channels = gauge(model, "channels")
    masks = torch.arange(1, 17).reshape(8, 2).T.flatten() / 20  # 1, 3, 5 … of the one gate and 2, 4, 6 … of the other
    assert channels.settled(channels.most, 10, masks).tolist() == [5, 5]
    assert channels.settled(channels.most, 9, masks).tolist() == [4, 5]
    alone = torch.cat([torch.full((8,), 0.01), torch.full((8,), 0.9)])
    assert channels.settled(channels.most, 10, alone).tolist() == [2, 8]


@pytest.mark.parametrize("wanted", TARGETS, ids=str)
def test_a_target_is_met_in_time_and_hardly_undercut(wanted: dict[str, Any]) -> None:
    training = Training(**wanted)
    budget, model = training.budget, training.model
    training.run(STEPS // 2)
    assert budget.met
    (of,) = wanted
    measure = gauge(model, of)
    kept = measure.kept()
    left = measure.size(kept)
    assert left == budget.size <= budget.target
    closed = [number for number in range(len(kept)) if kept[number] < measure.sizes[number]]
    one_more = min(measure.size(kept + (torch.arange(len(kept)) == number)) for number in closed)
    assert left >= 0.99 * budget.target or one_more > budget.target
    training.run(STEPS)
    small = hg.compact(model)
    assert measure.size(measure.kept()) == left
    assert training.accuracy(small) > 0.6  # a tenth of it would be chance


def test_widths_are_multiples_within_the_budget() -> None:
    training = Training({"multiple_of": 8}, params=0.4)
    training.run(STEPS // 2)
    small = hg.compact(training.model)
    assert training.budget.met and parameters(small) <= training.budget.target
    assert all(layer.out_channels % 8 == 0 for layer in (small.c1, small.c2, small.c3))
    # What the budget pays for is open: it learns, here as in the small network.
    assert [gate.open for gate in hg.status(training.model).gates] == [
        layer.out_channels for layer in (small.c1, small.c2, small.c3)
    ]


@pytest.mark.parametrize("wanted", [{"params": 0.4}, {"macs": 0.4}, {"channels": 0.5}], ids=str)
def test_what_is_left_by_layer_adds_up_at_any_time(wanted: dict[str, Any]) -> None:
    """Units that are closed but fill a width up to a multiple are kept, so they count."""
    training = Training({"multiple_of": 8}, bake=False, **wanted)
    for until in (30, 60, STEPS):
        training.run(until)
        measure = gauge(training.model, *wanted)
        assert sum(training.budget.by_layer().values()) == measure.size(measure.kept())
    assert training.budget.met and sum(training.budget.by_layer().values()) == training.budget.size


def test_gates_wait_then_close_a_little_at_a_time_then_rest() -> None:
    training = Training(params=0.3, start=0.2, reach=0.6)
    offsets: list[Tensor] = []
    for step in range(STEPS):
        training.run(step + 1)
        offsets.append(gate_offsets(training.model))
    moves = torch.stack([(b - a).abs().max() for a, b in pairwise(offsets)])
    begin, end = round(0.2 * STEPS), round(0.6 * STEPS)
    assert moves[: begin - 1].max() == 0
    assert 0 < moves[begin:end].max() <= 3 * 6 / (end - begin) + 1e-6
    assert moves[end:].max() == 0


def gate_offsets(model: nn.Module) -> Tensor:
    return torch.stack([gate.offset.detach().clone() for gate in hg.gates(model).values()])


def test_the_last_units_are_few() -> None:
    training = Training(params=0.5)
    while not training.budget.met:
        before = gauge(training.model).kept()
        training.run(training.done + 1)
    assert all(gate.baked and gate.frozen for gate in hg.status(training.model).gates)
    assert (gauge(training.model).kept() - before).abs().max() <= 4


def test_reopened_units_start_at_zero_and_leave_the_function_alone() -> None:
    training = Training(params=0.5)
    training.run(STEPS // 4)
    model, budget = training.model.eval(), training.budget
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-3.5)
    expected = model(training.data.test_images)
    small_before = gauge(model).kept()
    budget._finish()
    budget._settle_bank()
    assert (gauge(model).kept() >= small_before).all() and gauge(model).kept().sum() > small_before.sum()
    torch.testing.assert_close(model(training.data.test_images), expected)
    torch.testing.assert_close(hg.compact(model)(training.data.test_images), expected, rtol=1e-4, atol=1e-4)


def test_resumed_training_is_the_same_training() -> None:
    whole, broken = Training(params=0.3), Training(params=0.3)
    whole.run(STEPS)
    for stop in (40, 90, 150, STEPS):
        broken.run(stop)
        state = broken.model.state_dict(), broken.optimizer.state_dict(), broken.budget.state_dict()
        broken = Training(params=0.3)
        broken.model.load_state_dict(state[0])
        broken.optimizer.load_state_dict(state[1])
        broken.budget.load_state_dict(state[2])
        broken.done = stop
    assert whole.budget.met and broken.budget.met
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, broken.model.state_dict()[name]), name


def test_a_budget_waits_closes_and_rests() -> None:
    training = Training(params=0.3, start=0.1, reach=0.5)
    stages = []
    for step in range(STEPS):
        stages.append(training.budget.stage)
        training.run(step + 1)
    changes = [step for step in range(1, STEPS) if stages[step] != stages[step - 1]]
    assert [stages[0], *(stages[step] for step in changes)] == ["waiting", "closing", "met"]
    assert changes[0] == round(0.1 * STEPS) and changes[1] <= 0.5 * STEPS


def test_what_a_look_finds_is_acted_upon_at_the_next_one() -> None:
    training = Training(params=0.5)
    training.run(60)
    with torch.no_grad():
        for gate in hg.gates(training.model).values():
            gate.offset.fill_(-4.0)
    training.run(61)
    assert gauge(training.model).size(gauge(training.model).kept()) <= training.budget.target
    assert not training.budget.met
    training.run(62)
    assert training.budget.met


def test_a_step_captured_while_gates_closed_leaves_them_alone_once_they_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(params=0.3)
    training.run(STEPS // 2)
    # A replayed step does not see what the bank says on the host.
    bank = bank_of(training.model)
    assert training.budget.met and bank is not None
    monkeypatch.setattr(training.budget, "_settle_bank", lambda: None)
    bank.held = False
    before, masks = bank.offset.detach().clone(), bank.masks(range(len(bank.gates)))
    training.run(STEPS)
    assert torch.equal(bank.offset, before)
    assert torch.equal(bank.masks(range(len(bank.gates))), masks)


@pytest.mark.parametrize("option", [{"bake": False}, {"weigh": "mean"}], ids=str)
def test_other_ways_meet_the_target_too(option: dict[str, Any]) -> None:
    training = Training(params=0.3, **option)
    training.run(STEPS)
    budget = training.budget
    assert budget.met and 0.9 * budget.target < budget.size <= budget.target
    assert all(gate.frozen and bool(gate.baked) == ("bake" not in option) for gate in hg.status(training.model).gates)
    small = hg.compact(training.model)
    assert parameters(small) == budget.size
    assert training.accuracy(small) > 0.6


def test_weighing_saves_parameters_where_they_are() -> None:
    left = {}
    for weigh in ("savings", "mean"):
        training = Training(params=0.3, weigh=weigh)
        training.run(STEPS // 2)
        left[weigh] = hg.status(training.model)
    first = {weigh: status.gates[0].open for weigh, status in left.items()}
    # The first layer of 16 channels holds 144 of 14,442 parameters.
    assert first["savings"] > first["mean"]


def test_the_schedule_wins_over_freeze() -> None:
    training = Training(params=0.3)
    hg.freeze_(training.model, False)
    training.run(10)
    assert torch.equal(gate_offsets(training.model), torch.ones(3))
    training.run(STEPS)
    hg.freeze_(training.model, False)
    assert hg.status(training.model).gates[0].frozen


def bad(**arguments: Any) -> str:
    model = Digits()
    hg.insert_gates_(model, IMAGE)
    with pytest.raises(hg.ArgumentError) as caught:
        hg.Budget(model, IMAGE, **{"steps": STEPS, **arguments})
    return str(caught.value)


def small_training(steps: int = 900, **budget: Any) -> tuple[nn.Module, torch.optim.Optimizer, hg.Budget, Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)), torch.randn(8, 4)
    hg.insert_gates_(model, x)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.01))
    return model, optimizer, hg.Budget(model, x, params=0.3, steps=steps, **budget), x


def test_a_strength_that_changes_nothing_does_not_run_away() -> None:
    """Gates that lag behind, or have run ahead, for hundreds of looks: it must still come back in a few."""
    _, _, budget, _ = small_training()
    with pytest.warns(hg.HeadgateWarning, match=r"3\.\d times as large.*penalty\(\) in the loss"):
        for _ in range(500):
            budget.step()
            assert float(budget.penalty().detach()) <= 1e6
    assert budget.met
    model, _, budget, _ = small_training(reach=1.0)
    with torch.no_grad():
        hg.gates(model)["0"].offset.fill_(-3.0)
    for _ in range(400):
        budget.step()
    assert not budget.met
    assert float(budget.penalty().detach()) <= -1e-6


def test_the_strength_waits_for_gates_that_the_user_holds() -> None:
    model, optimizer, budget, x = small_training()
    hg.freeze_(model)
    for _ in range(440):
        loss = model(x).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step()
    assert float(budget.penalty().detach()) == pytest.approx(0.1)
    assert not budget.met


def test_a_budget_that_is_never_stepped_says_so() -> None:
    _, _, budget, _ = small_training(steps=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            budget.penalty()
    with pytest.warns(hg.HeadgateWarning, match="100 times since the last step"):
        budget.penalty()
    budget.step()
    budget.penalty()


def test_what_cannot_be_is_refused_at_the_start() -> None:
    assert "exactly one of params, macs, channels, latency_ms, not none" in bad()
    assert "exactly one of params, macs, channels, latency_ms, not params, macs" in bad(params=0.3, macs=0.3)
    assert "no less than the full network" in bad(params=1.0)
    assert "no less than the full network" in bad(params=10**9)
    assert "params=0.001 asks for 14; with every gate at its floor" in bad(params=0.001)
    assert "weigh='size' is unknown; use one of savings, mean" in bad(params=0.3, weigh="size")
    assert "bake='no' must be True or False" in bad(params=0.3, bake="no")
    assert "params" in bad(params=-1)
    assert "params" in bad(params=float("nan"))
    assert "steps=0" in bad(params=0.3, steps=0)
    assert "steps=2.5" in bad(params=0.3, steps=2.5)
    assert "in that order" in bad(params=0.3, start=0.6)
    assert "in that order" in bad(params=0.3, reach=1.5)
    assert "gates need 36 or more" in bad(params=0.3, steps=50)
    few = bad(params=1.5)
    assert "params=1.5 asks for 1;" in few and "Above 1, params= is a number of them; a fraction" in few
    assert "Above 1" not in bad(params=0.001)


def test_steps_may_be_of_any_kind_of_whole_number() -> None:
    """As other whole numbers may: what comes out of NumPy or a tensor is one."""
    model, _, budget, _ = small_training(steps=torch.tensor(200))  # type: ignore[arg-type]
    plain = hg.Budget(model, params=0.3, steps=200)
    assert budget._schedule == plain._schedule and budget._patience == plain._patience


@pytest.mark.parametrize(("start", "reach"), [(0.1, 0.5), (0.0, 1.0), (0.499, 0.5), (0.33, 0.66), (0.0, 0.013)])
def test_too_few_steps_tell_how_many_would_do(start: float, reach: float) -> None:
    with pytest.raises(hg.ArgumentError, match=r"steps=\d+ or more would do") as caught:
        schedule_of(30, reach, start)
    enough = int(re.findall(r"steps=(\d+) or more", str(caught.value))[0])
    for steps in range(enough, enough + 500):
        schedule_of(steps, reach, start)
    with pytest.raises(hg.ArgumentError, match="would do"):
        schedule_of(int(enough - 4 / (reach - start)), reach, start)


def test_gates_that_have_diverged_are_named_and_spoil_no_weight() -> None:
    """A NaN is not above 0: such a gate looks closed, and the target met."""
    model, _, budget, _ = small_training(steps=200)
    weights = [parameter.clone() for parameter in model.parameters()][1:]
    with torch.no_grad():
        hg.gates(model)["0"].offset.fill_(torch.nan)
    with pytest.raises(hg.GateError, match=r"training has diverged: the offset is not a finite number in 0 \(nan\)"):
        for _ in range(200):
            budget.step()
    assert not budget.met and not any(gate.baked for gate in hg.gates(model).values())
    assert all(torch.equal(a, b) for a, b in zip(weights, list(model.parameters())[1:], strict=True))


def test_models_without_inserted_gates_are_refused() -> None:
    with pytest.raises(hg.GateError, match="insert_gates_"):
        hg.Budget(Digits(), IMAGE, params=0.3, steps=STEPS)
    by_hand = nn.Sequential(nn.Linear(4, 8), hg.Gate(8), nn.Linear(8, 2))
    with pytest.raises(hg.GateError, match=r"gates placed by hand \('1'\)"):
        hg.Budget(by_hand, torch.randn(2, 4), params=0.3, steps=STEPS)


def test_work_that_parameters_do_not_tell_is_refused_with_what_to_give_instead() -> None:
    class Similar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.down(torch.relu(self.up(x)))
            return y @ y.transpose(1, 2)

    model = Similar()
    hg.insert_gates_(model, torch.randn(2, 5, 3))
    with pytest.raises(hg.GateError, match=r"macs: what Similar computes.*give params=, channels= or latency_ms="):
        hg.Budget(model, macs=0.5, steps=STEPS)
    assert hg.Budget(model, channels=0.5, steps=STEPS).target == 6


def test_a_state_of_another_model_is_refused() -> None:
    budget = Training(params=0.3).budget
    state = budget.state_dict()
    state["weights"] = torch.ones(7)
    with pytest.raises(hg.ArgumentError, match="of 7 gates, the model has 3"):
        budget.load_state_dict(state)


def test_a_state_of_another_size_is_refused() -> None:
    model, optimizer, budget, x = small_training(steps=200)
    for _ in range(200):
        optimizer.zero_grad()
        (model(x).square().mean() + budget.penalty()).backward()
        optimizer.step()
        budget.step()
    state = budget.state_dict()
    for other, complaint in (
        (hg.Budget(model, x, macs=0.3, steps=200), "another kind of size than macs"),
        (hg.Budget(model, x, params=0.2, steps=200), "more than the"),
    ):
        with pytest.raises(hg.ArgumentError, match=complaint):
            other.load_state_dict(state)
        assert not other.met


def test_a_budget_follows_its_model_to_another_device() -> None:
    """No number can be read from the device of this test, so this is as far as it goes without a GPU."""
    model, _, budget, _ = small_training()
    for _ in range(90):
        budget.step()
    model.to("meta")
    with torch.no_grad():
        assert budget.penalty().device.type == "meta"
    budget.step()
    assert {tensor.device.type for tensor in (budget._push.strength, budget._push.weights)} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("wanted", [{"params": 0.3}, {"macs": 0.3}, {"channels": 0.4}], ids=str)
@pytest.mark.parametrize("moved", ["before the budget is made", "after"])
def test_a_budget_of_a_model_that_was_moved_is_met(wanted: dict[str, Any], moved: str) -> None:
    torch.manual_seed(0)
    model, x = Digits(), torch.randn(16, 1, 8, 8)
    hg.insert_gates_(model, x)
    if moved != "after":
        model.cuda()
    budget = hg.Budget(model, steps=STEPS, **wanted)
    model.cuda()
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.05))
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x.cuda()).square().mean() + budget.penalty()).backward()
        optimizer.step()
        budget.step()
    assert budget.met and sum(budget.by_layer().values()) == budget.size <= budget.target
