"""Trainings in stages: what would be learned alike is learned once, then each job goes its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headgate_lab.engine.job import Metrics
from headgate_lab.engine.network import Network
from headgate_lab.engine.side_by_side import SideBySide

# What the job of a number goes on with, from the network it had until then, which may be that very network if no
# other job shares it. It must follow from that network's weights alone: after an interruption it is made anew.
Fork = Callable[[int, Network], Network]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Stage:
    """A part of a training.

    Attributes:
        name: what its seconds are recorded under.
        epochs: how many, at least one.
        fork: makes what each job has in this stage from what it had in the one before; None in the first stage.
        best: the metric of its epochs by which the next stage goes on from the best of them; None: from the last.
    """

    name: str
    epochs: int
    fork: Fork | None = None
    best: str | None = None


class Staged:
    """A `Training` of one job for each entry of `shared`, which says by number which of the networks it begins with.

    `look` adds to the metrics of an epoch what it sees in a network. What the last epoch said of `told` is a result.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        shared: Sequence[int],
        stages: Sequence[Stage],
        finish: Callable[[int, Network], Metrics],
        *,
        look: Callable[[Network], Metrics] | None = None,
        told: Sequence[str] = (),
    ) -> None:
        self.shared, self.stages, self._finish, self._look, self._told = shared, stages, finish, look, told
        self.networks = SideBySide(networks, finish)
        self.done = 0
        self.at_forks: list[list[Weights]] = []
        self.best: list[tuple[float, Weights]] = []
        self.last: list[dict[str, Any]] = []

    @property
    def stage(self) -> str:
        """The name of the stage that the next epoch is in."""
        return self.stages[self._next].name

    @property
    def side_by_side(self) -> int:
        """How many networks there are now; before the first fork jobs may share them."""
        return len(self.networks.networks)

    def turn(self) -> None:
        """Forks, if the next epoch is the first one of a stage."""
        if len(self.at_forks) < self._next:
            self._fork_(self.stages[self._next])

    def epoch(self) -> list[Metrics]:
        """One epoch of every network there is; jobs that share one have its metrics in common."""
        self.turn()
        stage, there = self.stages[self._next], self.networks.networks
        self.done += 1
        found: list[dict[str, Any]] = [dict(metrics) for metrics in self.networks.epoch()]
        if self._look is not None:
            found = [metrics | dict(self._look(network)) for metrics, network in zip(found, there, strict=True)]
        if stage.best is not None:
            self._remember([float(metrics[stage.best]) for metrics in found])
        self.last = [found[number] for number in self._network_of_job]
        return list(self.last)

    def finish(self) -> list[Metrics]:
        """Results, job by job."""
        ends = zip(self.last, self.networks.finish(), strict=True)
        return [{**{name: last[name] for name in self._told}, **found} for last, found in ends]

    def state_dict(self) -> dict[str, Any]:
        """The networks' states, the weights with which they forked, the best so far, and what was said last."""
        return {
            "done": self.done,
            "at_forks": self.at_forks,
            "best": self.best,
            "last": self.last,
            **self.networks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Forks again as often as it had come to that, then every network goes on where it was."""
        for stage, weights in zip(self.stages[1:], state["at_forks"], strict=False):
            for network, its in zip(self.networks.networks, weights, strict=True):
                network.model.load_state_dict(its)
            self._fork_(stage)
        self.networks.load_state_dict(state)
        self.done, self.best, self.last = state["done"], state["best"], state["last"]

    @property
    def _next(self) -> int:
        """The number of the stage that the next epoch is in; the last one's when all are done."""
        ends = [sum(stage.epochs for stage in self.stages[: number + 1]) for number in range(len(self.stages))]
        return next((number for number, end in enumerate(ends) if self.done < end), len(self.stages) - 1)

    @property
    def _network_of_job(self) -> Sequence[int]:
        return range(len(self.shared)) if self.at_forks else self.shared

    def _remember(self, scores: Sequence[float]) -> None:
        """Keeps the weights of every network that has never been better."""
        there = self.networks.networks
        if not self.best:
            self.best = [(float("-inf"), {}) for _ in there]
        self.best = [
            (score, _weights(network)) if score > best[0] else best
            for score, best, network in zip(scores, self.best, there, strict=True)
        ]

    def _fork_(self, stage: Stage) -> None:
        assert stage.fork is not None
        before = self.networks.networks
        for network, (_, best) in zip(before, self.best, strict=False):
            network.model.load_state_dict(best)
        weights = [_weights(network) for network in before]
        # Before there are more networks: a graph that refers to itself would hold its memory for a while.
        self.networks.captured = None
        after = [stage.fork(job, before[number]) for job, number in enumerate(self._network_of_job)]
        self.at_forks, self.best = [*self.at_forks, weights], []
        self.networks = SideBySide(after, self._finish)


def _weights(network: Network) -> Weights:
    return {name: value.clone() for name, value in network.model.state_dict().items()}
