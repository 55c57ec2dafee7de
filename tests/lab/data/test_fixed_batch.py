"""Batches of a fixed shape are the same subgraphs as batches that are just as large as these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headgate_lab.data.batch_index import Batch, Kept
from headgate_lab.data.fixed_batch import FixedBatches, Room, needed, with_one_dropped
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import enclosing
from headgate_lab.models.igmc import targets
from headgate_lab.models.products import PARTS
from headgate_lab.models.relational import RelationalLayer, Weights
from tests.lab.rated import random_ratings

CPU = torch.device("cpu")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(relations: int, copies: int, rate: float, share: float = 0.3) -> tuple[Batches, Tensor, Kept]:
    graph = random_ratings(12, 10, relations, share)
    # Also pairs that are not rated, and some without any neighbour.
    users, items = (
        torch.cat([who, torch.arange(10), torch.tensor([end])])
        for who, end in zip((graph.users, graph.items), (12, 10), strict=True)
    )
    batches = Batches(enclosing(graph, users, items), CPU)
    chosen = torch.stack([torch.randperm(len(users), generator=seeded(s))[:6] for s in range(copies)])
    chosen[0, 2] = len(users) - 1
    return batches, chosen, batches.draw(rate, [seeded(10 + s) for s in range(copies)])


def room_for(batches: Batches, pairs: Tensor, more: int = 0) -> Room:
    return Room(*(needed(batches.host, pairs.unsqueeze(0))[0] + more).tolist())


def layers(relations: int, copies: int) -> list[Weights]:
    return [
        Weights(
            *(
                torch.cat(parts).detach().requires_grad_()
                for parts in zip(
                    *(
                        RelationalLayer(size, 5, relations, generator=seeded(c)).double().weights()
                        for c in range(copies)
                    ),
                    strict=True,
                )
            )
        )
        for size in (4, 5, 5)
    ]


def learned(relations: int, batch: Batch) -> tuple[Tensor, ...]:
    """What the head is given, and the gradient of all weights."""
    weights = layers(relations, batch.copies)
    found = targets(weights, batch)
    factor = torch.randn(found.shape, generator=seeded(5), dtype=found.dtype)
    return found.detach(), *torch.autograd.grad((found * factor).sum(), [each for layer in weights for each in layer])


@pytest.mark.parametrize("relations", [3, 11])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("more", [0, 1, 100])
def test_the_same_states_and_gradients(relations: int, copies: int, rate: float, more: int) -> None:
    batches, pairs, kept = drawn(relations, copies, rate)
    fixed = FixedBatches(batches.there, copies, pairs.shape[1], room_for(batches, pairs, more))
    wanted = learned(relations, batches.batch(pairs, kept))
    found = learned(relations, fixed.batch(pairs, with_one_dropped(kept)))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_the_shape_is_that_of_the_room_whatever_the_pairs() -> None:
    batches, pairs, kept = drawn(3, 2, 0.2)
    other = pairs.flip(0).roll(1, 1).clamp(max=20)
    room = Room(*torch.cat([needed(batches.host, each.unsqueeze(0)) for each in (pairs, other)]).amax(0).tolist())
    fixed = FixedBatches(batches.there, 2, pairs.shape[1], room)
    one, two = (fixed.batch(each, with_one_dropped(kept)) for each in (pairs, other))
    for name, value in vars(one).items():
        same = getattr(two, name)
        assert value.shape == same.shape if isinstance(value, Tensor) else value == same, name


def test_sums_over_all_nodes_can_be_made_in_parts() -> None:
    """On a GPU, long sums that one processor has to make alone take most of a step."""
    room = Room(crossing=1029, bundles=7, all_crossing=2058, all_bundles=9, all_chords=50)
    shape = FixedBatches(drawn(3, 2, 0.2)[0].there, 2, 6, room).shape
    assert shape.crossing % PARTS == shape.nodes % PARTS == 0 and 1029 <= shape.crossing < 1029 + PARTS


@pytest.mark.parametrize("relations", [3, 11])
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_hardly_any_ratings(share: float, relations: int) -> None:
    """Where there are no chords, or nothing at all, a batch has no room for them."""
    batches, pairs, kept = drawn(relations, 2, 0.2, share)
    room = room_for(batches, pairs)
    assert room.all_chords == 0
    fixed = FixedBatches(batches.there, 2, pairs.shape[1], room)
    for one, other in zip(
        learned(relations, fixed.batch(pairs, with_one_dropped(kept))),
        learned(relations, batches.batch(pairs, kept)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_the_room_needed_by_hand() -> None:
    """Two batches for two networks, two pairs each; the counts of pairs are told."""
    batches, _, _ = drawn(3, 2, 0.2)
    host = batches.host
    pairs = torch.tensor([[[0, 1], [2, 3]], [[4, 5], [6, 7]]])
    for batch, found in zip(pairs, needed(host, pairs).tolist(), strict=True):
        sums = [[int(getattr(host, name)[one].sum()) for one in batch] for name in ("crossing", "bundles", "chords")]
        assert found == [max(sums[0]), max(sums[1]), sum(sums[0]), sum(sums[1]), sum(sums[2])]
