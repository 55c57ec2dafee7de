"""Networks that predict ratings, trained side by side: one step function for one network or several, CPU or GPU.

All numbers of a network come from its own generators, seeded by its seed and the epoch, so that it ends the same
whichever others are trained beside it, and an epoch is the same whether or not the training was interrupted before it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_map_only

import headgate as hg
from headgate_lab.data.batch_index import Batch
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import Subgraphs
from headgate_lab.engine.fitting import OFFSET, Fitting, adam, load_moments_, set_rates_
from headgate_lab.engine.rating_steps import FixedRatingSteps, RatingSteps
from headgate_lab.engine.stacked import forbid_tf32
from headgate_lab.models.igmc import Head, Igmc, targets
from headgate_lab.models.relational import Weights, roughness

MANY_PAIRS = 1000


class RatingNetworks:
    """Networks of one shape on the same ratings.

    Args:
        networks: fresh ones, one for each seed. They are left as they are. Where their gate has a floor, it is kept.
        subgraphs: of the pairs to learn from.
        ratings: of these pairs.
        fitting: how to learn.
        seeds: of the order of pairs, and of what is left out.
        device: where.
        fixed: whether all steps have one shape, so that they can be captured; None: on CUDA, where that is done.
    """

    def __init__(
        self,
        networks: Sequence[Igmc],
        subgraphs: Subgraphs,
        ratings: Tensor,
        fitting: Fitting,
        seeds: Sequence[int],
        device: torch.device,
        *,
        fixed: bool | None = None,
    ) -> None:
        forbid_tf32()
        self.fitting, self.seeds, self.device, self.done = fitting, list(seeds), device, 0
        self.batches, self.ratings = Batches(subgraphs, device), ratings
        self.template = copy.deepcopy(networks[0])
        self._head = _Penalised(copy.deepcopy(networks[0].head).to("meta"))
        parameters, buffers = stack_module_state(list(networks))
        self.parameters = {name: value.detach().to(device).requires_grad_() for name, value in parameters.items()}
        self.buffers = {name: value.detach().to(device) for name, value in buffers.items()}
        self.optimizer = adam(self.parameters, fitting, device)
        self.total = torch.zeros(len(self.seeds), device=device)
        self.fixed = device.type == "cuda" if fixed is None else fixed
        self.steps = self._steps()
        # Pairs predicted in one go. What a CPU has to do fits into its caches; a GPU waits for the host each time.
        self.at_once = fitting.batch if device.type == "cpu" else MANY_PAIRS
        gate = networks[0].head.gate
        self.lowest = float(gate.lowest) if isinstance(gate, hg.Gate) and gate.floor else None

    def epoch(self) -> list[float]:
        """Learns from every pair once; the mean squared error of each network on the way."""
        set_rates_(self.optimizer, self.fitting, self.done)
        self.total.zero_()
        self.steps.begin_(*self.drawn())
        for number in range(len(self.steps)):
            self.steps.take_(number)
        self.done += 1
        means: list[float] = (self.total / len(self.ratings)).tolist()
        return means

    def step(self, batch: Batch, ratings: Tensor, noise: Tensor | None) -> None:
        """One step of all networks; adds up the squared errors of each before it."""
        layers = self._layers()
        predicted, penalty = self._rated(layers, batch, noise)
        errors = (predicted - ratings).square().mean(1)
        # Each network's part depends on its own parameters only: the gradient of the sum is each one's gradient.
        objective = errors + self.fitting.smoothness * roughness(layers) + self.fitting.strength * penalty
        self.optimizer.zero_grad()
        objective.sum().backward()
        self.optimizer.step()
        if self.lowest is not None:
            self.parameters[OFFSET].data.clamp_(min=self.lowest)
        self.total += errors.detach() * batch.pairs

    @torch.no_grad()
    def predict(self, batches: Batches) -> Tensor:
        """What each network predicts for all pairs, (networks, pairs)."""
        numbers, layers = torch.arange(len(batches.host)), self._layers()
        parts = [
            self._rated(layers, batches.batch(chosen.expand(len(self.seeds), -1)), None)[0]
            for chosen in numbers.split(self.at_once)
        ]
        return torch.cat(parts, dim=1)

    def network(self, number: int) -> Igmc:
        """One of them, by itself."""
        single = copy.deepcopy(self.template).to(self.device)
        single.load_state_dict(
            {name: value[number].detach() for name, value in {**self.parameters, **self.buffers}.items()}
        )
        return single

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes."""
        values = {name: value.detach().clone() for name, value in self.parameters.items()}
        return {"parameters": values, "optimizer": self.optimizer.state_dict(), "done": self.done}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        for name, value in self.parameters.items():
            value.copy_(state["parameters"][name])
        load_moments_(self.optimizer, state["optimizer"])
        self.steps = self._steps()  # a captured step would go on with the tensors that the optimizer had before
        self.done = state["done"]

    def drawn(self) -> tuple[Tensor, Any, Tensor | None]:
        """The order of the pairs in the next epoch, on the host; which edges stay; what multiplies hidden units."""
        count, share = len(self.ratings), 1 - self.fitting.dropout
        # torch looks at the lowest 32 bits of a seed only.
        numbers = [2 * (100_003 * seed + self.done + 1) for seed in self.seeds]
        order = torch.stack([torch.randperm(count, generator=_seeded(number)) for number in numbers])
        there = [_seeded(number + 1, self.device) for number in numbers]
        kept = self.batches.draw(self.fitting.edge_dropout, there)
        if share == 1:
            return order, kept, None
        shape = count, self.template.head.hidden.out_features
        noise = torch.stack([torch.rand(shape, generator=one, device=self.device) < share for one in there])
        return order, kept, noise

    def _steps(self) -> RatingSteps:
        """Of epochs to come."""
        kind = FixedRatingSteps if self.fixed else RatingSteps
        return kind(self.batches, self.ratings, self.fitting.batch, self.step)

    def _layers(self) -> list[Weights]:
        return [
            Weights(*(self.parameters[f"layers.{number}.{name}"] for name in Weights._fields))
            for number in range(len(self.template.layers))
        ]

    def _rated(self, layers: Sequence[Weights], batch: Batch, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Ratings, (networks, pairs), and penalties, (networks,)."""
        parameters, buffers = (
            {name: value for name, value in stacked.items() if name.startswith("head.")}
            for stacked in (self.parameters, self.buffers)
        )
        if noise is not None:
            noise = noise / (1 - self.fitting.dropout)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], targets: Tensor, noise: Any) -> Any:
            return functional_call(self._head, (parameters, buffers), (targets, noise))

        inputs = parameters, buffers, targets(layers, batch), noise
        if len(self.seeds) == 1:  # the same, without the cost of vmap in every step
            ratings, penalty = one(*tree_map_only(Tensor, lambda value: value[0], inputs))
            return ratings.unsqueeze(0), penalty.unsqueeze(0)
        axes = (0, 0, 0, None if noise is None else 0)
        rated: tuple[Tensor, Tensor] = torch.vmap(one, axes)(*inputs)
        return rated


class _Penalised(nn.Module):
    """A head, and what its gate costs."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head
        self.gated = bool(hg.gates(head))

    def forward(self, targets: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.head(targets, noise), hg.penalty(self.head) if self.gated else targets.new_zeros(())


def compacted(network: Igmc) -> Igmc:
    """The same network with the hidden units of its head that the gate closed physically removed.

    Raises:
        headgate.CompactionError: it would not compute the same.
    """
    small = copy.deepcopy(network).eval()
    example = torch.randn(8, network.head.hidden.in_features, generator=_seeded(0))
    head = hg.compact(network.head, example.to(network.head.hidden.weight))
    assert isinstance(head, Head)
    small.head = head
    return small


def _seeded(number: int, device: torch.device | None = None) -> torch.Generator:
    return torch.Generator(device or "cpu").manual_seed(number)
