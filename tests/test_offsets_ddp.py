"""Offsets under DistributedDataParallel: the same on all ranks, and as in one process on the joint batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import headgate as hg
from tests.offset_cases import RATE, offsets, toy, weights

STEPS, COLD_STEPS, RANKS = 9, 3, 2
# How the model is wrapped, and whether gradients are static: buckets keep writing into the tensors they know.
WRAPPINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "bucket views": ({"gradient_as_bucket_view": True}, False),
}


def batch(step: int) -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, rank: int, ranks: int, set_to_none: bool = True) -> dict[str, Any]:
    """Trains with a cold start; each rank sees its share of every batch."""
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1, offset_lr=RATE), momentum=0.9)
    seen = []
    for step in range(STEPS):
        hg.freeze_(model, step < COLD_STEPS)
        optimizer.zero_grad(set_to_none=set_to_none)
        # Up and down, so that offsets do not simply move by the rate.
        strength = 0.3 if step % 3 else -0.2
        (model(batch(step)[rank::ranks]).square().mean() + strength * hg.penalty(model)).backward()
        optimizer.step()
        seen.append(offsets(model))
    return {"offsets": seen, "weights": weights(model)}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    results = {
        name: train(DistributedDataParallel(toy(), **options), rank, RANKS, set_to_none)
        for name, (options, set_to_none) in WRAPPINGS.items()
    }
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("ddp")
    spawn(worker, args=(str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_ranks_agree_bit_for_bit(by_rank: list[dict[str, Any]], wrapping: str):
    first, second = (results[wrapping] for results in by_rank)
    assert first["offsets"] == second["offsets"]
    assert torch.equal(first["weights"], second["weights"])


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_as_one_process_on_the_joint_batch(by_rank: list[dict[str, Any]], wrapping: str):
    alone = train(toy(), 0, 1)
    together = by_rank[0][wrapping]
    assert torch.allclose(torch.tensor(together["offsets"]), torch.tensor(alone["offsets"]), atol=1e-5)
    assert torch.allclose(together["weights"], alone["weights"], atol=1e-5)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_cold_until_thawed(by_rank: list[dict[str, Any]], wrapping: str):
    seen = by_rank[0][wrapping]["offsets"]
    assert seen[:COLD_STEPS] == [[1.0, 1.0]] * COLD_STEPS
    assert max(map(max, seen[-2:])) < 1.0
