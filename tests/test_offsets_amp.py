"""Offsets under loss scaling: the same as without it, and unharmed by an overflow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.amp import GradScaler
from torch.optim import Optimizer

import headgate as hg
from tests.offset_cases import PUSHES, RATE, MakeOptimizer, drive, offsets, prescribed_loss, toy, weights

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9),
    # Without momentum: torch 2.13 leaves the buffer uninitialised when the very first step overflows.
    "SGD fused": partial(optim.SGD, lr=0.1, fused=True),
    "Adam": partial(optim.Adam, lr=0.1),
    "Adam fused": partial(optim.Adam, lr=0.1, fused=True),
    "AdamW fused": partial(optim.AdamW, lr=0.1, fused=True),
    "Adagrad fused": partial(optim.Adagrad, lr=0.1, fused=True),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
OVERFLOW = float("inf")


def drive_scaled(
    model: nn.Module, optimizer: Optimizer, scaler: GradScaler, pushes: Iterable[float] = PUSHES, unscale: bool = False
) -> list[list[float]]:
    """As `drive`, with the loss scaled; a push of OVERFLOW stands for a step whose gradients all overflow."""
    seen = []
    for push in pushes:
        optimizer.zero_grad()
        loss = prescribed_loss(model, 1.0) * OVERFLOW if push == OVERFLOW else prescribed_loss(model, push)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        scaler.step(optimizer)
        scaler.update()
        seen.append(offsets(model))
    return seen


def pair(make: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
    model = toy()
    return model, make(hg.param_groups(model, offset_lr=RATE))


@every_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled by the user"])
@pytest.mark.parametrize("scale", [2.0**-6, 2.0**16])
def test_scaling_changes_nothing(make: MakeOptimizer, unscale: bool, scale: float):
    model, optimizer = pair(make)
    reference, reference_optimizer = pair(make)
    seen = drive_scaled(model, optimizer, GradScaler("cpu", init_scale=scale), unscale=unscale)
    assert seen == drive(reference, reference_optimizer)
    assert torch.allclose(weights(model), weights(reference), atol=1e-7)


@every_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled by the user"])
@pytest.mark.parametrize("when", [0, 3])
def test_an_overflow_is_as_if_it_had_not_been(make: MakeOptimizer, unscale: bool, when: int):
    model, optimizer = pair(make)
    reference, reference_optimizer = pair(make)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with_overflow = [*PUSHES[:when], OVERFLOW, OVERFLOW, *PUSHES[when:]]
    seen = drive_scaled(model, optimizer, scaler, with_overflow, unscale=unscale)
    before = [1.0, 1.0] if when == 0 else seen[when - 1]
    assert seen[when : when + 2] == [before, before]
    assert scaler.get_scale() == 2.0**8  # halved by each
    assert seen[:when] + seen[when + 2 :] == drive(reference, reference_optimizer)
    assert torch.allclose(weights(model), weights(reference), atol=1e-7)


@every_optimizer
def test_an_overflow_of_the_weights_alone_holds_the_offsets_too(make: MakeOptimizer):
    model, optimizer = pair(make)
    scaler = GradScaler("cpu")
    drive_scaled(model, optimizer, scaler, [1.0])
    held = offsets(model)
    optimizer.zero_grad()
    scaler.scale(prescribed_loss(model, 1.0)).backward()
    model[0].weight.grad.fill_(OVERFLOW)
    scaler.step(optimizer)
    scaler.update()
    assert offsets(model) == held


def test_two_optimizers_under_one_scaler():
    model = toy()
    reference, reference_optimizer = pair(OPTIMIZERS["SGD"])
    weight_group, offset_group = hg.param_groups(model, lr=0.1, offset_lr=RATE)
    for_weights = optim.SGD([weight_group], lr=0.1, momentum=0.9)
    for_offsets = optim.Adam([offset_group], fused=True)
    scaler = GradScaler("cpu")
    seen = []
    for push in PUSHES:
        model.zero_grad()
        scaler.scale(prescribed_loss(model, push)).backward()
        scaler.step(for_weights)
        scaler.step(for_offsets)
        scaler.update()
        seen.append(offsets(model))
    assert seen == drive(reference, reference_optimizer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gradients_reach_the_offset_in_float32(dtype: torch.dtype):
    model, optimizer = pair(OPTIMIZERS["Adam fused"])
    scaler = GradScaler("cpu")
    with torch.autocast("cpu", dtype=dtype):
        loss = model(torch.ones(4, 3)).float().square().mean() + hg.penalty(model)
    scaler.scale(loss).backward()
    assert model[1].offset.grad.dtype == torch.float32
    scaler.step(optimizer)
    assert offsets(model) == pytest.approx([1 - RATE] * 2, abs=1e-5)
