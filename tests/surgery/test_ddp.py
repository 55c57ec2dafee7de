"""Inserted gates under DistributedDataParallel, with a cold start: ranks agree, and as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import headgate as hg
from headgate import inputs
from tests.surgery.gated_nets import inserted, pair, square

STEPS, COLD_STEPS, RANKS, RATE = 9, 3, 2, 0.05
# How the model is wrapped, and whether it leaves a part out in every third step.
WRAPPINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "bucket views": ({"gradient_as_bucket_view": True}, False),
    "unused": ({"find_unused_parameters": True}, True),
    "masked inputs": ({}, False),
}


def batch(step: int) -> Tensor:
    return torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def trained(wrapping: str, rank: int, ranks: int) -> dict[str, Any]:
    """Trains with a cold start; each rank sees its share of every batch."""
    large = 0 if wrapping == "masked inputs" else inputs.LARGE
    with patch.multiple(inputs, LARGE=large, _is_smaller=lambda x, weight: True):
        return _trained(wrapping, rank, ranks)


def _trained(wrapping: str, rank: int, ranks: int) -> dict[str, Any]:
    options, skips = WRAPPINGS[wrapping]
    _, gated, _ = pair("skipping", moved=False)
    model: nn.Module = DistributedDataParallel(gated, **options) if ranks > 1 else gated
    optimizer = optim.SGD(hg.param_groups(model, lr=0.1, offset_lr=RATE), momentum=0.9)
    seen = []
    for step in range(STEPS):
        hg.freeze_(model, step < COLD_STEPS)
        gated.skip = skips and step % 3 == 1
        optimizer.zero_grad(set_to_none=not skips)
        # Up and down, so that offsets do not simply move by the rate.
        strength = 0.3 if step % 3 else -0.2
        (square(model(batch(step)[rank::ranks])) + strength * hg.penalty(model)).backward()
        optimizer.step()
        seen.append(inserted(gated).offset.detach().clone())
    small = hg.compact(model)
    weights = torch.cat([p.detach().reshape(-1) for p in gated.parameters()])
    return {"offsets": torch.stack(seen), "weights": weights, "small": [tuple(p.shape) for p in small.parameters()]}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    torch.save({name: trained(name, rank, RANKS) for name in WRAPPINGS}, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("ddp")
    spawn(worker, args=(str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_ranks_agree_bit_for_bit(by_rank: list[dict[str, Any]], wrapping: str):
    first, second = (results[wrapping] for results in by_rank)
    assert torch.equal(first["offsets"], second["offsets"])
    assert torch.equal(first["weights"], second["weights"])
    assert first["small"] == second["small"]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_as_one_process_on_the_joint_batch(by_rank: list[dict[str, Any]], wrapping: str):
    alone, together = trained(wrapping, 0, 1), by_rank[0][wrapping]
    assert torch.allclose(together["offsets"], alone["offsets"], atol=1e-9)
    assert torch.allclose(together["weights"], alone["weights"], atol=1e-9)
    assert together["small"] == alone["small"]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_cold_until_thawed(by_rank: list[dict[str, Any]], wrapping: str):
    seen = by_rank[0][wrapping]["offsets"]
    assert bool((seen[:COLD_STEPS] == 1).all())
    assert bool((seen[-1] != 1).any())
