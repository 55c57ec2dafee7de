"""Ctrl-C while a model is traced: in the midst of that, torch would end the process or pass over it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import headgate as hg

# How often a model has gone on after Ctrl-C; outside of it, since copies of it are traced.
WENT_ON: list[bool] = []


class Interrupted(nn.Module):
    """Ctrl-C comes when it runs, so many times each."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(4, 4), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)
        WENT_ON.append(True)
        return self.layer(x)


@pytest.fixture
def handler() -> Iterator[None]:
    """Of Ctrl-C, the usual one: nothing else may be there afterwards."""
    WENT_ON.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.usefixtures("handler")
def test_the_first_one_waits_for_the_end() -> None:
    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        hg.cost(model, torch.randn(2, 4))
    assert WENT_ON
    model.times = 0
    assert hg.cost(model, torch.randn(2, 4)).macs == 32


@pytest.mark.usefixtures("handler")
def test_the_second_one_does_not() -> None:
    with pytest.raises(KeyboardInterrupt):
        hg.cost(Interrupted(2), torch.randn(2, 4))
    assert not WENT_ON


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_who_has_no_handler_gets_none(ignored: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, ignored)
    try:
        assert hg.cost(nn.Linear(4, 4), torch.randn(2, 4)).macs == 32
        assert signal.getsignal(signal.SIGINT) is ignored
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_trace_too() -> None:
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.append(hg.cost(nn.Linear(4, 4), torch.randn(2, 4)).macs))
    thread.start()
    thread.join()
    assert found == [32]
