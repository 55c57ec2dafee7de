"""Networks trained side by side. Small ones do not fill a GPU: there all their steps are one captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from headgate_lab.engine.captured import PLAIN_STEPS, captured
from headgate_lab.engine.job import Metrics
from headgate_lab.engine.network import Network


class SideBySide:
    """A `Training` of networks, one for each job; `finish` turns each into its results when all are trained."""

    def __init__(self, networks: Sequence[Network], finish: Callable[[int, Network], Metrics]) -> None:
        self.networks, self._finish = networks, finish
        self.plain_steps, self.plain_done = PLAIN_STEPS, 0
        self.captured: Callable[[], None] | None = None
        self.streams = [torch.cuda.Stream() for _ in networks] if networks[0].device.type == "cuda" else []

    def epoch(self) -> list[Metrics]:
        """One epoch of every network."""
        self._forget_if([network.begin_epoch() for network in self.networks])
        for _ in range(self.networks[0].batches.steps):
            if self.streams and self.captured is None and self.plain_done >= self.plain_steps:
                self.captured = captured(self._steps, [network.noise for network in self.networks])
            self.captured() if self.captured is not None else self._plain_step()
            self._forget_if([network.after_step() for network in self.networks])
        return [network.metrics() for network in self.networks]

    def _forget_if(self, changed: Sequence[bool]) -> None:
        """The captured step is no longer the one to be taken when that of one network has changed."""
        if any(changed):
            self.captured, self.plain_done = None, 0

    def _plain_step(self) -> None:
        self.plain_done += 1
        self._steps()

    def _steps(self) -> None:
        if not self.streams:
            for network in self.networks:
                network.step()
        else:
            fork_and_join(self.networks, self.streams)

    def finish(self) -> list[Metrics]:
        """Results, job by job."""
        self.captured = None
        return [self._finish(number, network) for number, network in enumerate(self.networks)]

    def state_dict(self) -> dict[str, Any]:
        """All networks' states."""
        return {"networks": [network.state_dict() for network in self.networks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Every network goes on where it was."""
        for network, saved in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(saved)


def fork_and_join(networks: Sequence[Network], streams: Sequence[torch.cuda.Stream]) -> None:
    """One step of every network on its stream; the current stream goes on when all are done."""
    current = torch.cuda.current_stream()
    for network, stream in zip(networks, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            network.step()
    for stream in streams:
        current.wait_stream(stream)
