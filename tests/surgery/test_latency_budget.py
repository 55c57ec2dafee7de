"""A budget of milliseconds, under clocks whose every answer is known; and once under the real one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.channels.example import Example
from headgate.cost import Latency
from headgate.surgery import stopwatch
from headgate.surgery.compact import insertion_of
from headgate.surgery.gauge import gauge_of
from headgate.surgery.stopwatch import Stopwatch
from headgate.surgery.times import PER_MS, rising
from headgate.timing import REST, Timing, _quiet, timed
from tests.surgery.exactness import move_offsets_
from tests.surgery.test_budget import IMAGE, NETWORKS, OPTIONS, STEPS, Digits, Training, gate_offsets

Clock = Callable[[nn.Module], dict[str, float]]
SPREAD = 0.01


def elements(model: nn.Module) -> dict[str, float]:
    """Every module takes time for its elements, besides what the call itself takes; and something is always there."""
    parts = {
        path: 0.01 + 1e-4 * sum(p.numel() for p in module.parameters(recurse=False))
        for path, module in model.named_modules()
        if path and list(module.parameters(recurse=False))
    }
    return {**parts, REST: 0.2}


def stairs(model: nn.Module) -> dict[str, float]:
    """As kernels are: in steps of eight channels, and inputs matter less than outputs."""
    parts = {REST: 0.1}
    for path, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            outputs, inputs = module.weight.shape[:2]
            parts[path] = 0.05 + 0.02 * -(-outputs // 8) * inputs**0.5
        elif list(module.parameters(recurse=False)):
            parts[path] = 0.005
    return parts


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock, noise: float = 0.0) -> list[float]:
    """Time goes by this clock from now on; returns the list of what it has shown."""
    generator, shown = torch.Generator().manual_seed(0), list[float]()

    def fake(model: nn.Module, example: Example, paths: Collection[str]) -> Timing:
        parts = clock(model)
        assert not set(parts) - set(paths) and not any(m._forward_hooks for m in model.modules())
        wrong = 1 + noise * (2 * float(torch.rand((), generator=generator)) - 1)
        parts = {path: wrong * part for path, part in parts.items()}
        shown.append(sum(parts.values()))
        return Timing(Latency(shown[-1], SPREAD * shown[-1], "cpu", 2), parts)

    monkeypatch.setattr(stopwatch, "timed", fake)
    return shown


def total(model: nn.Module, clock: Clock) -> float:
    return sum(clock(model).values())


def floor_offset(gate: Any) -> float:
    return 5 * ((gate.floor - 0.5) / gate.n - 1) if gate.floor else -5.0


# ---- the model of time ----


@pytest.mark.parametrize(
    ("works", "times", "expected"),
    [
        ([1, 2, 3], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([1, 2, 3], [3.0, 2.0, 1.0], [2.0, 2.0, 2.0]),
        ([1, 2, 3, 4], [1.0, 4.0, 2.0, 5.0], [1.0, 3.0, 3.0, 5.0]),
        ([7, 7, 7], [1.0, 2.0, 6.0], [3.0, 3.0, 3.0]),
        ([1, 2, 2], [5.0, 1.0, 3.0], [3.0, 3.0, 3.0]),
    ],
)
def test_curves_never_fall(works: list[float], times: list[float], expected: list[float]) -> None:
    assert rising(works, times) == expected


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_what_adds_up_is_foretold_exactly(network: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that is linear in every module's elements, at states that were never timed; silent branches among them."""
    set_clock(monkeypatch, elements)
    model = NETWORKS[network]()
    hg.insert_gates_(model, IMAGE, **OPTIONS[options])
    insertion = insertion_of(model, "test")
    gauge = gauge_of(model, insertion, "latency_ms", None)
    least = Stopwatch(model, insertion, None, None).learn_(gauge)
    for seed in range(3):
        move_offsets_(model, seed)
        with torch.no_grad():  # a budget leaves the floors open
            for gate in hg.gates(model).values():
                gate.offset.clamp_(min=floor_offset(gate))
        expected = total(hg.compact(model), elements)
        kept = gauge.kept()
        assert gauge.size(kept) == pytest.approx(expected * PER_MS, rel=1e-6)
        assert sum(gauge.by_name(kept).values()) == gauge.size(kept)
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(floor_offset(gate))
    assert least == pytest.approx(total(hg.compact(model), elements) * PER_MS, rel=1e-6)


def test_a_clock_that_goes_wrong_ends_at_the_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """If measurements say in the end that the target cannot be met, the smallest network is what comes nearest."""
    set_clock(monkeypatch, elements)
    model = Digits()
    hg.insert_gates_(model, IMAGE)
    insertion = insertion_of(model, "test")
    gauge = gauge_of(model, insertion, "latency_ms", None)
    watch = Stopwatch(model, insertion, None, None)
    watch.learn_(gauge)
    set_clock(monkeypatch, lambda model: {path: 100 * part for path, part in elements(model).items()})
    settled = watch.settled_(gauge, gauge.most, PER_MS, torch.ones(int(gauge.most.sum())))
    assert torch.equal(settled, gauge.least)
    assert watch.latest is not None and gauge.size(settled) == pytest.approx(watch.latest.median_ms * PER_MS)


# ---- budgets ----


@pytest.mark.parametrize("clock", [elements, stairs])
@pytest.mark.parametrize("share", [0.8, 0.5])
def test_the_cut_network_is_as_fast_as_was_asked_for(
    clock: Clock, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = set_clock(monkeypatch, clock)
    wanted = share * total(Digits(), clock)
    training = Training(latency_ms=wanted)
    budget = training.budget
    assert budget.full == pytest.approx(total(Digits(), clock)) and budget.target == pytest.approx(wanted)
    training.run(STEPS // 2)
    assert budget.met
    measured = total(hg.compact(training.model), clock)
    assert budget.size == pytest.approx(measured) and budget.latency is not None
    assert budget.latency.median_ms == pytest.approx(measured)
    assert 0.85 * wanted <= measured <= wanted
    assert sum(budget.by_layer().values()) == pytest.approx(measured)
    assert len(shown) < 30
    training.run(STEPS)
    assert total(hg.compact(training.model), clock) == measured
    assert training.accuracy(hg.compact(training.model)) > 0.6


def test_a_noisy_clock_is_off_by_its_noise_only(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, stairs, noise=0.04)
    wanted = 0.6 * total(Digits(), stairs)
    training = Training(latency_ms=wanted)
    training.run(STEPS)
    assert training.budget.met
    assert 0.7 * wanted <= total(hg.compact(training.model), stairs) <= wanted * (1 + SPREAD) / 0.96


def test_gates_close_where_time_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first convolution takes time for its channels: its gate is the one that closes."""

    def first_only(model: nn.Module) -> dict[str, float]:
        parts = dict.fromkeys((path for path in elements(model) if path != REST), 0.01)
        return {**parts, "c1": 0.1 * len(next(model.get_submodule("c1").parameters())), REST: 0.2}

    set_clock(monkeypatch, first_only)
    training = Training(latency_ms=0.7 * total(Digits(), first_only))
    training.run(STEPS // 2)
    left = {gate.name: gate.open / gate.total for gate in hg.status(training.model).gates}
    assert left["c1"] < 0.75 and left["c2"] > left["c1"] and left["c3"] > left["c1"]


def test_milliseconds_are_never_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, lambda model: {path: 0.2 * part for path, part in elements(model).items()})
    budget = Training(latency_ms=0.25).budget
    assert budget.target == 0.25 < budget.full < 1


def test_resumed_training_is_the_same_training_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was learned about the first machine is resumed with the rest."""
    set_clock(monkeypatch, stairs)
    wanted = 0.6 * total(Digits(), stairs)
    whole, broken = Training(latency_ms=wanted), Training(latency_ms=wanted)
    whole.run(100)
    broken.run(60)
    state = broken.model.state_dict(), broken.optimizer.state_dict(), broken.budget.state_dict()
    set_clock(monkeypatch, lambda model: {path: 1.1 * part for path, part in stairs(model).items()})
    broken = Training(latency_ms=wanted)
    set_clock(monkeypatch, stairs)
    broken.model.load_state_dict(state[0])
    broken.optimizer.load_state_dict(state[1])
    broken.budget.load_state_dict(state[2])
    broken.done = 60
    broken.run(100)
    assert torch.equal(gate_offsets(whole.model), gate_offsets(broken.model))
    assert whole.budget.full == broken.budget.full and whole.budget.size == broken.budget.size


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (None, "another kind of size than latency_ms"),
        (7, "times must be what a stopwatch has learned, and is none"),
        ({"last": 3}, "and has no factor, times, works"),
        ({"last": -3}, "times: last=-3 must be 0 or more"),
        ({"works": torch.ones(2, 3)}, r"times: works must be a tensor of shape \(\d+, 7\), of finite numbers"),
        ({"factor": 1.0}, r"times: factor must be a tensor of shape \(\)"),
    ],
)
def test_a_state_without_what_was_learned_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, times: Any, words: str
) -> None:
    set_clock(monkeypatch, elements)
    budget = Training(latency_ms=0.6 * total(Digits(), elements)).budget
    before = budget.state_dict()
    if isinstance(times, dict) and words.startswith("times"):
        times = {**before["times"], **times}
    other = {"step": 70, "strength": torch.tensor(0.5), "times": times}
    with pytest.raises(hg.ArgumentError, match=words):
        budget.load_state_dict({**before, **other})
    after = budget.state_dict()
    assert after["step"] == 0 and float(after["strength"]) == 0
    assert all(
        torch.equal(torch.as_tensor(one), after["times"][name])
        for name, one in before["times"].items()
        if name != "last"
    )


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, elements)
    model = Digits().train()
    hg.insert_gates_(model, IMAGE)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    objects = [*map(id, model.parameters())]
    hg.Budget(model, IMAGE, latency_ms=1.0, steps=STEPS)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert objects == [*map(id, model.parameters())]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_processes_agree_on_the_first_ones_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, elements)
    others = Timing(Latency(7.0, 0.1, "cpu", 2), {**elements(Digits()), "c1": 3.0})

    def from_the_first(objects: list[Any], src: int) -> None:
        assert src == 0
        objects[0] = others

    model = Digits()
    hg.insert_gates_(model, IMAGE)
    insertion = insertion_of(model, "test")
    gauge = gauge_of(model, insertion, "latency_ms", None)
    watch = Stopwatch(model, insertion, None, None)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", from_the_first)
    assert watch.learn_(gauge) == 7 * PER_MS
    assert gauge.by_name(gauge.most)["c1"] == 3 * PER_MS and watch.latest == others.latency


def refused(arguments: Mapping[str, Any]) -> str:
    model = Digits()
    hg.insert_gates_(model, IMAGE)
    with pytest.raises(hg.ArgumentError) as caught:
        hg.Budget(model, IMAGE, steps=STEPS, **arguments)
    return str(caught.value)


def test_what_cannot_be_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, elements)
    full = total(Digits(), elements)
    assert f"no less than the full network takes: {full:.3g}" in refused({"latency_ms": 9.0})
    message = refused({"latency_ms": 0.2})
    assert "latency_ms=0.2: with every gate at its floor the network still takes 0.3" in message
    assert "the shortest time that can be reached" in message
    assert "latency_ms" in refused({"latency_ms": -1})
    assert "device='cpu' is for latency_ms=" in refused({"params": 0.3, "device": "cpu"})
    assert "device='abacus' cannot be used" in refused({"latency_ms": 1.0, "device": "abacus"})
    assert "exactly one of params, macs, channels, latency_ms, not macs, latency_ms" in refused(
        {"latency_ms": 1.0, "macs": 0.5}
    )


def test_widths_that_take_no_time_cannot_meet_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, lambda model: dict.fromkeys(elements(model), 0.5))
    assert "the shortest time that can be reached" in refused({"latency_ms": 3.0})


# ---- where the time goes ----


class Nap(nn.Linear):
    """Takes the given time on a clock that nothing else moves."""

    clock = 0.0

    def __init__(self, seconds: float) -> None:
        super().__init__(3, 3)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        Nap.clock += self.seconds
        return super().forward(x)


def test_every_module_has_its_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: Nap.clock)
    model = nn.Sequential(Nap(0.001), nn.ReLU(), Nap(0.02), nn.ReLU(), Nap(0.004))
    found = timed(model, Example.of(torch.randn(2, 3)), {"0", "2", "gone"})
    assert found.latency.median_ms == pytest.approx(25)
    assert found.parts == pytest.approx({"0": 1, "2": 20, REST: 4})
    assert not any(module._forward_hooks for module in model.modules())


def test_a_disturbed_measurement_is_repeated() -> None:
    def measured(*found: tuple[float, float]) -> tuple[float, int]:
        rounds = iter(found)
        latency = _quiet(lambda: Latency(*next(rounds), "cpu", 2))
        return latency.median_ms, len(found) - len(list(rounds))

    assert measured((5.0, 0.1), (3.0, 0.1)) == (5.0, 1)
    assert measured((9.0, 4.0), (5.0, 0.1), (3.0, 0.1)) == (5.0, 2)
    assert measured((9.0, 4.0), (6.0, 4.0), (7.0, 3.0), (8.0, 3.0), (1.0, 0.0)) == (6.0, 4)


# ---- the real clock ----


def test_the_example_of_the_insertion_is_timed_in_the_models_dtype() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    hg.insert_gates_(model, torch.randn(4, 8))
    with pytest.raises(hg.ArgumentError, match="the shortest time that can be reached"):
        hg.Budget(model.double(), latency_ms=1e-6, steps=100)


def test_a_real_network_becomes_faster() -> None:
    """On whatever machine, however busy: the target is met as it was measured, and the small network is faster."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)), torch.randn(256, 512)
    full = min(_passes(model, x))
    hg.insert_gates_(model, x)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=1e-3))
    budget = hg.Budget(model, x, latency_ms=0.5 * full, steps=100)
    for _ in range(50):
        loss = model(x).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step()
    assert budget.met and budget.latency is not None
    assert min(_passes(hg.compact(model), x)) < 0.9 * full


@torch.inference_mode()
def _passes(model: nn.Module, x: Tensor) -> list[float]:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        model(x)
        times.append((time.perf_counter() - start) * 1e3)
    return times
