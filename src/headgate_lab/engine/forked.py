"""Trainings that share their beginning: what would be learned alike is learned once, then each goes its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from headgate_lab.engine.job import Metrics
from headgate_lab.engine.network import Network
from headgate_lab.engine.side_by_side import SideBySide

# What the job of a number goes on with, from the network it shared until then, which may be that very network if no
# other job shares it. It must follow from the shared network's weights alone: after an interruption it is made anew.
Fork = Callable[[int, Network], Network]


class Forked:
    """A `Training` of one job for each entry of `shared`, which says by number which of the networks it begins with.

    After `epochs` epochs `fork` gives every job a network of its own.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        shared: Sequence[int],
        epochs: int,
        fork: Fork,
        finish: Callable[[int, Network], Metrics],
    ) -> None:
        self.shared, self.epochs, self._fork, self._finish = shared, epochs, fork, finish
        self.done = 0
        self.networks = SideBySide(networks, finish)
        self.at_fork: list[dict[str, Tensor]] | None = None

    def epoch(self) -> list[Metrics]:
        """One epoch of every network there is; jobs that share one have its metrics in common."""
        if self.done == self.epochs:
            self._fork_()
        self.done += 1
        found = self.networks.epoch()
        return found if self.at_fork is not None else [found[number] for number in self.shared]

    def finish(self) -> list[Metrics]:
        """Results, job by job."""
        return self.networks.finish()

    def state_dict(self) -> dict[str, Any]:
        """The networks' states and, once they have forked, the weights with which they did."""
        return {"done": self.done, "at_fork": self.at_fork, **self.networks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Forks again if it had come to that, then every network goes on where it was."""
        if state["at_fork"] is not None:
            for network, weights in zip(self.networks.networks, state["at_fork"], strict=True):
                network.model.load_state_dict(weights)
            self._fork_()
        self.networks.load_state_dict(state)
        self.done = state["done"]

    def _fork_(self) -> None:
        before = self.networks.networks
        self.at_fork = [{name: value.clone() for name, value in one.model.state_dict().items()} for one in before]
        after = [self._fork(number, before[shared]) for number, shared in enumerate(self.shared)]
        self.networks = SideBySide(after, self._finish)
