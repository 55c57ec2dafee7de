"""A training step as a CUDA graph: hundreds of small kernels launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Real steps before a capture: what is set up lazily (workspaces, momenta, autograd's streams) must be there before.
PLAIN_STEPS = 3


def captured(step: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> Callable[[], None]:
    """The step as one graph, to be replayed; nothing is computed now.

    Args:
        step: reads and writes the same tensors at every call, reads no value back to the host, and has been taken
            `PLAIN_STEPS` times.
        generators: those that it draws from.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        assert step is not None  # the graph reads its tensors: they must live as long as the graph
        graph.replay()

    return replay


def captured_where_possible(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """The same step, captured where `state` lives on CUDA; elsewhere the step itself.

    Args:
        step: as above, but taken never before, and without generators.
        state: every tensor that `step` changes. They are left as they were.
    """
    if not state or state[0].device.type != "cuda":
        return step
    # Detached: clones that remember where they come from keep nodes of autograd on this stream, and captures fail.
    before = [tensor.detach().clone() for tensor in state]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(PLAIN_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    replay = captured(step)
    with torch.no_grad():
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
    return replay


class PlainThenCaptured:
    """A step that is taken plainly a few times and captured then. Every call is one step, none is taken in vain.

    Args:
        step: as for `captured`, but taken never before, and without generators.
        device: where it computes; anywhere but on CUDA it stays plain.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._plain_left = step, PLAIN_STEPS
        on_cuda = device.type == "cuda"
        self._replay = None if on_cuda else step
        self._aside = torch.cuda.Stream(device) if on_cuda else None

    def __call__(self) -> None:
        """One step."""
        if self._replay is None and not self._plain_left:
            self._replay = captured(self._step)
        if self._replay is not None:
            self._replay()
            return
        # On a stream of its own, as torch asks of steps before a capture.
        self._plain_left -= 1
        assert self._aside is not None
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            self._step()
        torch.cuda.current_stream().wait_stream(self._aside)
