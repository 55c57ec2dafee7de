"""Offsets go the same way whatever optimizer carries them and whatever a scheduler or a training loop does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

import headgate as hg
from tests.offset_cases import (
    OPTIMIZERS,
    PUSHES,
    RATE,
    SPECIAL,
    MakeOptimizer,
    drive,
    expected_trajectory,
    offsets,
    prescribed_loss,
    toy,
    weights,
)


def assert_as_expected(trajectory: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(trajectory), torch.tensor(expected_trajectory()), rtol=0, atol=2e-6)


def sgd(model: nn.Module) -> optim.SGD:
    return optim.SGD(hg.param_groups(model, lr=0.1, offset_lr=RATE), momentum=0.9)


class Scripted(Optimizer):
    """An optimizer of somebody else's: halves whatever it sees a gradient of, and asks its closure twice."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1.0})
        self.fail = False

    def step(self, closure: Any = None) -> Any:
        loss = [closure(), closure()] if closure is not None else None
        if self.fail:
            raise RuntimeError("as asked")
        with torch.no_grad():
            for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                parameter.mul_(0.5)
        return loss


# --- every optimizer --------------------------------------------------------------------------------------------------


def test_the_table_knows_every_optimizer_torch_has():
    here = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)} - {"Optimizer"}
    assert {name.split()[0] for name in OPTIMIZERS} | SPECIAL == here


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_same_offsets_under_every_optimizer(make: MakeOptimizer):
    model = toy()
    before = weights(model)
    assert_as_expected(drive(model, make(hg.param_groups(model, offset_lr=RATE))))
    assert (weights(model) != before).all()


@pytest.mark.parametrize("name", sorted({name for name in OPTIMIZERS if " " not in name or "fused" in name}))
def test_who_maximises_moves_offsets_uphill(name: str):
    model = toy()
    optimizer = OPTIMIZERS[name](hg.param_groups(model, offset_lr=RATE))
    for group in optimizer.param_groups:
        assert group["maximize"] is False
        group["maximize"] = True
    seen = []
    for push in PUSHES:
        optimizer.zero_grad()
        (-prescribed_loss(model, push)).backward()
        optimizer.step()
        seen.append(offsets(model))
    assert_as_expected(seen)


def test_an_optimizer_of_somebody_elses():
    model = toy()
    assert_as_expected(drive(model, Scripted(hg.param_groups(model, offset_lr=RATE))))


def test_weights_in_one_optimizer_offsets_in_another():
    model, reference = toy(), toy()
    weight_group, offset_group = hg.param_groups(model, lr=0.1, offset_lr=RATE)
    for_weights, for_offsets = optim.SGD([weight_group], momentum=0.9), optim.Adam([offset_group])
    assert_as_expected(drive(model, for_weights, after=for_offsets.step))
    drive(reference, sgd(reference))
    assert torch.equal(weights(model), weights(reference))


def test_two_models_with_gates_do_not_disturb_each_other():
    model, other = toy(), toy()
    other_optimizer = sgd(other)
    assert_as_expected(drive(model, sgd(model), after=lambda: drive(other, other_optimizer, [1.0])))


def test_other_peoples_optimizers_are_left_alone():
    gated, plain = toy(), nn.Linear(2, 1)
    sgd(gated)
    optimizer = optim.SGD(plain.parameters(), lr=0.5)
    plain(torch.ones(1, 2)).sum().backward()
    before = plain.weight.detach().clone()
    optimizer.step()
    assert torch.equal(plain.weight, before - 0.5)


# --- those that cannot ------------------------------------------------------------------------------------------------


def closure_for(model: nn.Module, optimizer: Optimizer, push: float = 1.0) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = prescribed_loss(model, push)
        loss.backward()
        return loss

    return closure


def test_lbfgs_is_refused_by_name():
    model = toy()
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        optim.LBFGS(hg.param_groups(model))
    optimizer = optim.LBFGS([hg.offset_group(model)])
    with pytest.raises(hg.OptimizerError, match=r"LBFGS .* cannot carry offsets.*offset_group\(model\) to a second"):
        optimizer.step(closure_for(model, optimizer))
    assert offsets(model) == [1.0, 1.0]


def test_lbfgs_for_the_weights_beside_another_for_the_offsets():
    model = toy()
    weight_group, offset_group = hg.param_groups(model, offset_lr=RATE)
    lbfgs, for_offsets = optim.LBFGS(weight_group["params"], max_iter=4), optim.SGD([offset_group])
    before = prescribed_loss(model, 0.0).item()
    seen = []
    for push in PUSHES:
        lbfgs.step(closure_for(model, lbfgs, push))
        for_offsets.zero_grad()
        prescribed_loss(model, push).backward()
        for_offsets.step()
        seen.append(offsets(model))
    assert_as_expected(seen)
    assert prescribed_loss(model, 0.0).item() < before / 100


def test_muon_says_what_it_takes_and_works_beside_another():
    model = toy()
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optim.Muon([hg.offset_group(model)])
    weight_group, offset_group = hg.param_groups(model, offset_lr=RATE)
    matrices = [parameter for parameter in weight_group["params"] if parameter.ndim == 2]
    vectors = [parameter for parameter in weight_group["params"] if parameter.ndim < 2]
    muon, rest = optim.Muon(matrices), optim.AdamW([{"params": vectors}, offset_group])
    before = weights(model)
    assert_as_expected(drive(model, muon, after=rest.step))
    assert (weights(model) != before).all()


def test_sparse_adam_carries_offsets_beside_sparse_weights_only():
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), hg.Gate(4))
    optimizer = optim.SparseAdam(hg.param_groups(model, offset_lr=RATE), lr=0.1)
    before = model[0].weight.detach().clone()
    (model(torch.tensor([1, 2])).sum() + hg.penalty(model)).backward()
    optimizer.step()
    assert offsets(model) == pytest.approx([1 - RATE], abs=1e-6)
    assert (model[0].weight != before).any(dim=1).tolist() == [False, True, True, False, False]
    dense = toy()
    refusing = optim.SparseAdam(hg.param_groups(dense))
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        drive(dense, refusing, [1.0])


# --- schedulers -------------------------------------------------------------------------------------------------------


def rewrite_by_hand(optimizer: Optimizer) -> Callable[[], None]:
    def rewrite() -> None:
        for group in optimizer.param_groups:
            group["lr"], group["momentum"] = 7.0, 0.99

    return rewrite


def plateau(optimizer: Optimizer) -> Callable[[], None]:
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return lambda: scheduler.step(1.0)


SCHEDULERS: dict[str, Callable[[Optimizer], Callable[[], object]]] = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=3.0, total_steps=20).step,
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.1, max_lr=3.0, step_size_up=3).step,
    "SWALR": lambda o: SWALR(o, swa_lr=2.0, anneal_epochs=3).step,
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 + epoch).step,
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=5).step,
    "ReduceLROnPlateau": plateau,
    "by hand": rewrite_by_hand,
}


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@pytest.mark.parametrize("name", ["SGD momentum", "Adam"])
def test_no_scheduler_reaches_the_offsets(schedule: Callable[[Optimizer], Callable[[], object]], name: str):
    model = toy()
    optimizer = OPTIMIZERS[name](hg.param_groups(model, offset_lr=RATE))
    before = {**optimizer.param_groups[1]}
    assert_as_expected(drive(model, optimizer, after=schedule(optimizer)))
    assert optimizer.param_groups[1]["lr"] != before["lr"]  # it did try
    assert optimizer.param_groups[1]["offset_lr"] == RATE


# --- training loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyword", [False, True], ids=["positional", "keyword"])
@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "AdamW fused amsgrad", "Rprop"])
def test_closures(keyword: bool, name: str):
    model = toy()
    optimizer = OPTIMIZERS[name](hg.param_groups(model, offset_lr=RATE))
    seen = []
    for push in PUSHES:
        closure = closure_for(model, optimizer, push)
        loss: Any = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        assert isinstance(loss, Tensor)
        seen.append(offsets(model))
    assert_as_expected(seen)


def test_a_closure_asked_twice_moves_offsets_once():
    model = toy()
    optimizer = Scripted(hg.param_groups(model, offset_lr=RATE))
    for push in PUSHES[:3]:
        assert len(optimizer.step(closure_for(model, optimizer, push))) == 2
    assert offsets(model) == pytest.approx(expected_trajectory()[2], abs=2e-6)


class Sharpness(Optimizer):
    """As SAM: climbs by the gradients of before, asks its closure there, climbs down, and lets another one step."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1.0})
        self.base = optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        climbed = [(p, p.detach().clone()) for p in parameters if p.grad is not None]
        with torch.no_grad():
            for parameter, _ in climbed:
                parameter.add_(parameter.grad, alpha=0.5)
        self.zero_grad()
        loss = closure()
        with torch.no_grad():
            for parameter, before in climbed:
                if parameter.grad is not None:
                    parameter.copy_(before)
        self.base.step()
        return loss


def test_an_optimizer_that_moves_parameters_before_its_closure():
    model = toy()
    optimizer = Sharpness(hg.param_groups(model, offset_lr=RATE))
    seen = []
    for push in PUSHES:
        closure = closure_for(model, optimizer, push)
        closure()
        optimizer.step(closure)
        assert model[1].offset.grad == pytest.approx(push)
        seen.append(offsets(model))
    assert_as_expected(seen)


def test_a_closure_may_add_to_the_gradients_there_are():
    model = toy()
    optimizer = sgd(model)
    seen = []
    for push in PUSHES:
        optimizer.zero_grad(set_to_none=False)
        prescribed_loss(model, push / 2).backward()
        gradient = model[1].offset.grad
        optimizer.step(lambda push=push: prescribed_loss(model, push / 2).backward())
        assert gradient is None or model[1].offset.grad is gradient
        seen.append(offsets(model))
    assert_as_expected(seen)


def test_a_closure_that_fails_leaves_the_gradients():
    model = toy()
    optimizer = sgd(model)
    prescribed_loss(model, 2.0).backward()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert model[1].offset.grad == 2.0 and offsets(model) == [1.0, 1.0]


def data_loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum() / 8 + 0.05 * hg.penalty(model)


def test_accumulated_gradients_are_one_gradient():
    whole, parts = toy(), toy()
    whole_optimizer, parts_optimizer = sgd(whole), sgd(parts)
    for step in range(5):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        whole_optimizer.zero_grad()
        data_loss(whole, x).backward()
        whole_optimizer.step()
        parts_optimizer.zero_grad()
        for part in x.chunk(4):
            (parts(part).square().sum() / 8).backward()
        (0.05 * hg.penalty(parts)).backward()
        parts_optimizer.step()
    assert offsets(parts) == pytest.approx(offsets(whole), abs=1e-6)
    assert torch.allclose(weights(parts), weights(whole), atol=1e-6)


def test_clipping_counts_the_offsets_and_is_seen_by_them():
    model = toy()
    optimizer = sgd(model)
    prescribed_loss(model, 4.0).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    squared = torch.cat([2 * weights(model), torch.tensor([4.0, -2.0])]).square().sum()
    assert norm == pytest.approx(squared.sqrt().item(), rel=1e-5)
    optimizer.step()
    first = optimizer.state[model[1].offset]["first"]
    assert first == pytest.approx(0.1 * 4.0 / norm.item(), rel=1e-4)


def test_static_gradients_are_given_back():
    # A captured graph and DDP's buckets write into the same tensors step after step.
    model = toy()
    optimizer = sgd(model)
    kept: list[Tensor] = []
    seen = []
    for push in PUSHES:
        optimizer.zero_grad(set_to_none=False)
        prescribed_loss(model, push).backward()
        optimizer.step()
        gradient = model[1].offset.grad
        assert gradient is not None and gradient == pytest.approx(push)
        kept.append(gradient)
        seen.append(offsets(model))
    assert all(gradient is kept[0] for gradient in kept)
    assert_as_expected(seen)


def test_a_failed_step_leaves_nothing_behind():
    model = toy()
    optimizer = Scripted(hg.param_groups(model))
    optimizer.fail = True
    with pytest.raises(RuntimeError, match="as asked"):
        drive(model, optimizer, [1.0])
    optimizer.fail = False
    model.zero_grad()
    optimizer.step()
    assert model[1].offset.grad is None


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler() -> None:
    torch.compiler.reset()


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that compile: with nothing cached, and without the warnings that torch's compiler gives itself."""
    for message in ("`torch.jit.script_method` is deprecated", "The .grad attribute of a Tensor that is not a leaf"):
        test = pytest.mark.filterwarnings(f"ignore:{message}")(test)
    return pytest.mark.usefixtures("_fresh_compiler")(test)


@compiles
@pytest.mark.parametrize("what", ["optimizer step", "step with closure", "whole step", "model"])
def test_compiled(what: str):
    # Two gates on purpose: traced together, torch would take the moments of one for those of the other.
    model, reference = toy(), toy()
    optimizer, reference_optimizer = sgd(model), sgd(reference)
    forward = torch.compile(model, backend="eager") if what == "model" else model
    update = torch.compile(optimizer.step, backend="eager") if what == "optimizer step" else optimizer.step

    def backward(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = data_loss(forward, x)
        loss.backward()
        return loss

    def train_step(x: Tensor) -> None:
        if what == "step with closure":
            optimizer.step(lambda: backward(x))
        else:
            backward(x)
            update()

    run = torch.compile(train_step, backend="eager") if "step" in what and update == optimizer.step else train_step
    for step in range(6):
        for each in (model, reference):
            hg.freeze_(each, step in (2, 3))  # a change between calls must be noticed
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        run(x)
        reference_optimizer.zero_grad()
        data_loss(reference, x).backward()
        reference_optimizer.step()
        assert offsets(model) == pytest.approx(offsets(reference), abs=1e-6)
    assert offsets(model)[0] < 1 - 2 * RATE
    assert torch.allclose(weights(model), weights(reference), atol=1e-6)


@compiles
def test_a_full_graph_is_refused_with_the_reason():
    model = toy()
    optimizer = sgd(model)
    prescribed_loss(model, 1.0).backward()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="headgate moves offsets eagerly"):
        torch.compile(optimizer.step, backend="eager", fullgraph=True)()
    assert offsets(model) == [1.0, 1.0]
