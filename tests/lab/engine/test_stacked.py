"""Copies in one stack are trained as each alone would be by torch's and headgate's own optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headgate as hg
from headgate_lab.engine.captured import captured_where_possible
from headgate_lab.engine.stacked import Rates, Stack
from headgate_lab.engine.stacked_adam import adam_

CPU = torch.device("cpu")
COPIES = 4


class Regression(nn.Module):
    def __init__(self, seed: int, offset: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(8, 5, generator=generator) / 5**0.5)
        self.gate = hg.Gate(8, dim=-1, offset=offset, floor=2)
        self.last = nn.Linear(8, 1)
        nn.init.normal_(self.last.weight, generator=generator)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        predicted = self.last(self.gate((x @ self.first.T).tanh()))[..., 0]
        return F.mse_loss(predicted, y), hg.penalty(self)


def copies() -> list[nn.Module]:
    return [Regression(seed, 1.0 + 0.1 * seed).double() for seed in range(COPIES)]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(COPIES, 32, 5, generator=generator, dtype=torch.float64)
    return x, x.sum(-1).sin()


def rates(offset_lr: float = 0.0, search: float = 1.0, steps: int = 120) -> Rates:
    return Rates([0.01, 0.02, 0.03, 0.04], [0.0, 0.1, 1e-3, 0.0], [0.1, 0.5, 1.0, 2.0], steps, offset_lr, search)


def double(stack: Stack) -> Stack:
    """Numbers in float64, so that equality means the same arithmetic."""
    for name in ("lr", "weight_decay", "strength"):
        setattr(stack, name, torch.tensor(getattr(stack.rates, name), dtype=torch.float64))
    stack.total, stack.active = stack.total.double(), stack.active.double()
    return stack


def stacked(how: Rates) -> Stack:
    x, y = data()
    return double(Stack(copies(), how, lambda: (x, y), CPU))


def alone(number: int, how: Rates) -> tuple[nn.Module, list[float]]:
    """The same training by torch's optimizer with headgate's groups."""
    model, (x, y) = copies()[number], data()
    update = {"offset_lr": how.offset_lr} if how.offset_lr else {"offset_update": "plain"}
    groups = hg.param_groups(model, lr=how.lr[number], weight_decay=how.weight_decay[number], **update)
    optimizer = torch.optim.Adam(groups)
    losses = []
    for step in range(how.steps):
        settling = step >= how.search * how.steps
        hg.freeze_(model, settling)
        fraction = (how.steps - step) / ((1 - how.search) * how.steps) if settling else 1.0
        optimizer.param_groups[0]["lr"] = how.lr[number] * fraction
        loss, penalty = model(x[number], y[number])
        optimizer.zero_grad()
        (loss + how.strength[number] * penalty).backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_adam_is_torchs_for_every_copy() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    gradients = torch.randn(20, 3, 4, 2, generator=generator, dtype=torch.float64)
    rate, decay = [1e-3, 0.1, 3.0], [0.0, 0.5, 1e-6]
    values, moments = start.clone(), (torch.zeros_like(start), torch.zeros_like(start))
    for count, gradient in enumerate(gradients, start=1):
        done = torch.tensor(float(count), dtype=torch.float64)
        vectors = [torch.tensor(vector, dtype=torch.float64) for vector in (rate, decay)]
        adam_(values, gradient, moments, done, rate=vectors[0], decay=vectors[1])
    for number in range(3):
        own = nn.Parameter(start[number].clone())
        optimizer = torch.optim.Adam([own], lr=rate[number], weight_decay=decay[number])
        for gradient in gradients:
            own.grad = gradient[number].clone()
            optimizer.step()
        torch.testing.assert_close(values[number], own.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", [rates(), rates(0.05, 0.75)], ids=["plain", "bounded, then settling"])
def test_each_copy_is_trained_as_if_it_were_alone(how: Rates) -> None:
    stack = stacked(how)
    mean = stack.run(how.steps)
    close = 1e-5 if how.offset_lr else 1e-12  # headgate counts the bounded steps in float32
    widths = set()
    for number in range(COPIES):
        model, losses = alone(number, how)
        assert mean[number].item() == pytest.approx(sum(losses) / len(losses), rel=close)
        for name, value in model.named_parameters():
            torch.testing.assert_close(stack.parameters[name][number].detach(), value.detach(), rtol=0, atol=close)
        assert isinstance(model.gate, hg.Gate)
        widths.add(model.gate.active)
        own = stack.copy(number)
        assert isinstance(own, Regression) and own.gate.active == model.gate.active
        assert own.gate.start.item() == model.gate.start.item()
    assert len(widths) > 1 and min(widths) < 6  # the gates did move, and not all alike


def test_a_copy_does_not_see_its_neighbours_even_if_they_diverge() -> None:
    sound = stacked(rates())
    sound.run(50)
    broken = stacked(rates())
    broken.lr[1] = torch.inf
    broken.run(50)
    for name, value in sound.parameters.items():
        assert not broken.parameters[name][1].isfinite().all()
        for number in (0, 2, 3):
            assert torch.equal(value[number], broken.parameters[name][number])


def test_going_on_from_a_state_is_bit_identical() -> None:
    how = rates(0.05, 0.5)
    whole, first, second = stacked(how), stacked(how), stacked(how)
    whole.run(120)
    first.run(70)
    second.load_state_dict(first.state_dict())
    second.run(50)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_state_is_a_snapshot() -> None:
    stack = stacked(rates())
    state = stack.state_dict()
    before = state["value first"].clone()
    stack.run(1)
    assert torch.equal(state["value first"], before)


def test_a_resting_copy_stays_as_it_is() -> None:
    stack = stacked(rates())
    stack.run(5)
    before = stack.copy(2).state_dict()
    stack.rest_(torch.tensor([False, False, True, False]))
    stack.run(5)
    assert all(torch.equal(value, before[name]) for name, value in stack.copy(2).state_dict().items())
    assert not torch.equal(stack.copy(1).state_dict()["first"], before["first"])


def test_measuring_changes_nothing_and_may_share_inputs() -> None:
    stack = stacked(rates())
    before = stack.state_dict()
    x, y = data()
    own = stack.measure(x[1].expand(COPIES, -1, -1), y[1].expand(COPIES, -1))
    shared = stack.measure(x[1], y[1], shared=True)
    torch.testing.assert_close(own, shared, rtol=1e-12, atol=1e-12)
    assert shared[0].shape == (COPIES,) and not shared[0].requires_grad
    assert all(torch.equal(value, before[name]) for name, value in stack.state_dict().items())


def test_on_the_cpu_the_step_is_not_captured() -> None:
    def step() -> None:
        raise AssertionError("must not be called")

    assert captured_where_possible(step, [torch.zeros(1)]) is step
