"""The steps of an epoch over rated pairs: each just as large as its subgraphs, or all of one shape and captured.

There are two ways since each is slow where the other is fast. What a small step costs on a GPU is the host that makes
its operations one by one and waits for sizes: there all steps have one shape and are one CUDA graph. On a CPU the room
that is not needed and the chords that were dropped cost as much as the others: a fifth of the time, on Douban.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headgate_lab.data.batch_index import Batch, Kept
from headgate_lab.data.fixed_batch import FixedBatches, Room, needed, with_one_dropped
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.engine.captured import PlainThenCaptured

Step = Callable[[Batch, Tensor, Tensor | None], None]


class RatingSteps:
    """Steps on batches that are as large as they must be.

    Args:
        batches: of the subgraphs of all pairs.
        ratings: of these pairs, on the host.
        size: how many pairs a step has; the last one may have fewer.
        step: given a batch, its ratings and what multiplies hidden units, both with the networks as first axis.
    """

    def __init__(self, batches: Batches, ratings: Tensor, size: int, step: Step) -> None:
        self.batches, self.of_pairs, self.size, self.step = batches, ratings, size, step

    def begin_(self, order: Tensor, kept: Kept, noise: Tensor | None) -> None:
        """The next epoch: the order of pairs, on the host, (networks, pairs); what is left out in it."""
        self.order, self.kept, self.noise = order, kept, noise
        self.ratings = self.of_pairs[order].to(self.batches.device)

    def __len__(self) -> int:
        return -(-len(self.of_pairs) // self.size)

    def take_(self, number: int) -> None:
        """The step of this number."""
        part = slice(number * self.size, (number + 1) * self.size)
        batch = self.batches.batch(self.order[:, part], self.kept)
        self.step(batch, self.ratings[:, part], None if self.noise is None else self.noise[:, part])


class FixedRatingSteps(RatingSteps):
    """Steps of one shape, captured on CUDA. What they read stays where it is from epoch to epoch.

    The room is what the first epoch needs. A later step that needs more, which is rare, and a last step that has fewer
    pairs are taken as `RatingSteps` takes them.
    """

    def __init__(self, batches: Batches, ratings: Tensor, size: int, step: Step) -> None:
        super().__init__(batches, ratings, size, step)
        self.position = torch.zeros(1, dtype=torch.long, device=batches.device)
        self.fits: list[bool] = []
        self.room: Room | None = None

    def begin_(self, order: Tensor, kept: Kept, noise: Tensor | None) -> None:
        """Likewise; what is read is laid out step by step."""
        super().begin_(order, kept, noise)
        if order.shape[1] < self.size:
            return
        ahead = [self._by_step(each) for each in (order, self.ratings, noise) if each is not None]
        needs = needed(self.batches.host, ahead[0])
        now = [*ahead, *with_one_dropped(kept)]
        if self.room is None:
            self._lay_out_(Room(*needs.amax(0).tolist()), order.shape[0], now)
        for mine, new in zip(self.read, now, strict=True):
            mine.copy_(new)
        self.fits = (needs <= torch.tensor(self.room)).all(1).tolist()

    def take_(self, number: int) -> None:
        """On CUDA one graph for all numbers: it reads from the device which one it is."""
        if number < len(self.fits) and self.fits[number]:
            self.position.fill_(number)
            self.replay()
        else:
            super().take_(number)

    def _by_step(self, values: Tensor) -> Tensor:
        """From (networks, pairs, ...) to (steps, networks, pairs of a step, ...), without a last smaller step."""
        whole = values.shape[1] // self.size * self.size
        return values[:, :whole].reshape(len(values), -1, self.size, *values.shape[2:]).transpose(0, 1)

    def _lay_out_(self, room: Room, copies: int, read: Sequence[Tensor]) -> None:
        """Room for what is read, and the step that reads it."""
        self.room, self.fixed = room, FixedBatches(self.batches.there, copies, self.size, room)
        device = self.batches.device
        self.read = [torch.empty(each.shape, dtype=each.dtype, device=device) for each in read]
        gc.collect()  # a graph that nobody needs any more must not be destroyed during the capture
        self.replay = PlainThenCaptured(self._step, device)

    def _step(self) -> None:
        *ahead, spokes, chords, bundles = self.read
        pairs, ratings, *noise = (each.index_select(0, self.position)[0] for each in ahead)
        self.step(self.fixed.batch(pairs, Kept(spokes, chords, bundles)), ratings, noise[0] if noise else None)
