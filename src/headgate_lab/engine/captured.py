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
