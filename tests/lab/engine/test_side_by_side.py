"""Networks side by side: each as if alone, each as if never interrupted, captured when the step is settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headgate_lab.data.images import Normalisation
from headgate_lab.engine import side_by_side
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.network import Network, Optimization, accuracy
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.chipnet import ChipNet
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import Dam
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.slimming import Sparse

EPOCHS = 4


def data() -> Resident:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (60,), generator=generator)
    images = (torch.rand(60, 1, 6, 6, generator=generator) * 100 + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return Resident(images, labels, Normalisation((0.5,), (0.25,)))


def network(seed: int, method: Method, kind: str = "sgd", noise: float = 0.0, batch: int = 16) -> Network:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False),  # one before BatchNorm would learn from rounding errors alone, and by Adam fast
        *(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)),
    )
    model = method.attach(model, torch.zeros(2, 1, 6, 6))
    how = Optimization(kind, 0.02, 1e-4, lambda epoch, epochs: 1 - epoch / epochs, noise)  # type: ignore[arg-type]
    batches = Batches(data(), batch, seed, pad=1, flip=True, dtype=torch.float32)
    return Network(model, method, batches, how, EPOCHS, seed)


GATED = Dam(1.0, cold_start=1, settle=3, floor=2, offset_lr=0.5)
CASES: dict[str, dict[str, Any]] = {
    "gated": {"method": GATED},
    "gated, Adam": {"method": GATED, "kind": "adam"},
    "the paper's way": {"method": Dam(0.5, offset_update="plain", scale="plain", floor=1)},
    "noise": {"method": GATED, "noise": 0.05},
    "dense": {"method": Narrower()},
    "sparse": {"method": Sparse(1e-3)},
    "chipnet": {"method": ChipNet(0.5, EPOCHS), "kind": "adamw"},
    "budgeted": {"method": Budgeted(400, start=0.1, reach=0.9, floor=1), "batch": 2},
    "budgeted, then small": {"method": Budgeted(400, start=0.1, reach=0.5, floor=1, train_on=True), "batch": 2},
}


def weights(one: Network) -> list[torch.Tensor]:
    return [value.clone() for value in one.model.state_dict().values()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_network_learns_the_same_alone_and_beside_others(case: str) -> None:
    together = SideBySide([network(seed, **CASES[case]) for seed in (0, 1)], lambda *unused: {})
    for _ in range(EPOCHS):
        metrics = together.epoch()
    for seed in (0, 1):
        alone = SideBySide([network(seed, **CASES[case])], lambda *unused: {})
        for _ in range(EPOCHS):
            (found,) = alone.epoch()
        assert found == metrics[seed]
        assert equal(weights(alone.networks[0]), weights(together.networks[seed]))


@pytest.mark.parametrize("case", CASES)
def test_a_network_goes_on_bit_by_bit(case: str) -> None:
    whole = SideBySide([network(0, **CASES[case])], lambda *unused: {})
    expected = [whole.epoch() for _ in range(EPOCHS)]
    broken = SideBySide([network(0, **CASES[case])], lambda *unused: {})
    found = []
    for _ in range(EPOCHS):
        found.append(broken.epoch())
        state = broken.state_dict()
        broken = SideBySide([network(0, **CASES[case])], lambda *unused: {})
        broken.load_state_dict(state)
    assert found == expected
    assert equal(weights(broken.networks[0]), weights(whole.networks[0]))


class NoReading(TorchDispatchMode):
    """Refuses what would make a host wait for its device, and cannot be captured."""

    REFUSED = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.REFUSED, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ["gated", "the paper's way", "sparse", "chipnet"])
def test_a_step_reads_nothing_back(case: str) -> None:
    one = network(0, CASES[case]["method"])  # with SGD: on a CPU Adam counts its steps there
    one.begin_epoch()
    one.step()
    with NoReading():
        one.step()
        assert one.after_step() is False
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoReading():
        one.loss.item()


def test_gates_close_and_the_network_learns() -> None:
    training = SideBySide([network(0, GATED)], lambda *unused: {})
    history = [training.epoch()[0] for _ in range(EPOCHS)]
    assert history[0]["kept"] == 1.0
    assert history[2]["kept"] < 1.0
    assert history[3]["kept"] == history[2]["kept"]
    assert accuracy(training.networks[0].model, data()) > 90


def test_noise_changes_the_training() -> None:
    still, noisy = network(0, GATED), network(0, GATED, noise=0.05)
    for one in (still, noisy):
        SideBySide([one], lambda *unused: {}).epoch()
    assert not equal(weights(still), weights(noisy))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_going_on_small_is_the_same_training(kind: str) -> None:
    ends = []
    for train_on in (False, True):
        method = Budgeted(400, start=0.1, reach=0.5, floor=1, train_on=train_on)
        training = SideBySide([network(0, method, kind, batch=2)], lambda *unused: {})
        metrics = [training.epoch()[0] for _ in range(EPOCHS)]
        one = training.networks[0]
        one.model.eval()
        small = method.small(one.model, torch.zeros(2, 1, 6, 6))
        assert (small is one.model) == train_on
        ends.append((metrics, small.state_dict()))
    (gated, theirs), (shrunk, ours) = ends
    for a, b in zip(gated, shrunk, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


def test_a_step_is_captured_after_plain_ones_and_anew_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    captures, replays = 0, 0

    def counted(step: Callable[[], None], generators: Sequence[torch.Generator]) -> Callable[[], None]:
        nonlocal captures
        captures += 1

        def replay() -> None:
            nonlocal replays
            replays += 1
            step()

        return replay

    monkeypatch.setattr(side_by_side, "captured", counted)
    monkeypatch.setattr(side_by_side, "fork_and_join", lambda networks, streams: [one.step() for one in networks])
    captured = SideBySide([network(0, GATED)], lambda *unused: {})
    captured.streams = [object()]  # type: ignore[list-item]
    counts = []
    for _ in range(EPOCHS):
        captures = replays = 0
        captured.epoch()
        counts.append((captures, replays))
    # 60 images in batches of 16 are 4 steps. The step changes when offsets begin to move (epoch 1) and rest (epoch 3).
    assert counts == [(1, 1), (1, 1), (0, 4), (1, 1)]
    plain = SideBySide([network(0, GATED)], lambda *unused: {})
    for _ in range(EPOCHS):
        plain.epoch()
    assert equal(weights(captured.networks[0]), weights(plain.networks[0]))


def test_the_rate_of_a_captured_optimizer_is_written_in_place() -> None:
    from headgate_lab.engine.network import _set_rate_

    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate, fused=True)
    _set_rate_(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25
