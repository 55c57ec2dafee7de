"""A training step as a CUDA graph: hundreds of small kernels launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# What is set up lazily (workspaces, autograd's streams) must be there before the capture.
WARM_UP_STEPS = 3


def captured(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """The same step, captured once and replayed from then on where `state` lives on CUDA; elsewhere the step itself.

    Args:
        step: reads and writes the same tensors at every call, and reads no value back to the host.
        state: every tensor that `step` changes. Warm-up and capture leave them as they were.
    """
    if not state or state[0].device.type != "cuda":
        return step
    before = [tensor.clone() for tensor in state]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, old in zip(state, before, strict=True):
        tensor.copy_(old)
    return graph.replay
