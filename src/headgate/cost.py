"""What a model costs: parameters, multiply-accumulates, bytes, activations alive at once and, on request, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headgate.arguments import true_or_false, whole_number
from headgate.channels.example import Example
from headgate.channels.running import not_running
from headgate.count import count
from headgate.errors import ArgumentError
from headgate.gated import unwrap
from headgate.surgery.evaluation import evaluating

WARM_UP = 5


@dataclass(frozen=True)
class Latency:
    """How long one forward pass takes: the median of several, and the distance between their quartiles.

    `batch` is the first axis of the first input.
    """

    median_ms: float
    spread_ms: float
    device: str
    batch: int | None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.median_ms:.3g} ± {self.spread_ms:.2g} ms ({self.device}{batch})"


@dataclass(frozen=True)
class Cost:
    """What a model costs in evaluation mode; prints as a table, `before.table(after)` beside another.

    Attributes:
        params: entries of all parameters, tied ones once.
        bytes: of parameters and buffers, as stored.
        macs: multiply-accumulates of one forward pass on the example. Convolutions, linear and recurrent layers, matrix
            products, einsum and attention count; biases, normalisation, activations, embeddings and other pointwise
            work do not. None if the model was not traced.
        peak_activation_bytes: the most bytes of inputs and results alive at once, each from the operation that makes
            it to the last one that uses it; views cost nothing. Operations run one by one, in the order of the graph,
            and in-place ones count as if they made a new tensor; what kernels allocate inside is unknown. None if the
            model was not traced.
        latency: measured on request.
        uncounted: operations whose multiply-accumulates are unknown and missing from `macs`.
    """

    params: int
    bytes: int
    macs: int | None = None
    peak_activation_bytes: int | None = None
    latency: Latency | None = None
    uncounted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.table()

    def table(self, after: Cost | None = None) -> str:
        """This cost alone, or beside that of another model with `after` / this as the ratio.

        Example:
            >>> before, after = Cost(params=1200, bytes=4800, macs=6000), Cost(params=300, bytes=1200, macs=1000)
            >>> print(before.table(after))
            cost        before  after  ratio
            parameters   1,200    300  0.250
            MACs         6,000  1,000  0.167
            bytes        4,800  1,200  0.250
        """
        others = [None] * 5 if after is None else after._figures()
        head = ("cost", "") if after is None else ("cost", "before", "after", "ratio")
        rows: list[tuple[str, ...]] = [head]
        for name, mine, theirs in zip(_NAMES, self._figures(), others, strict=True):
            if after is None and mine is not None:
                rows.append((name, _shown(mine)))
            elif mine is not None or theirs is not None:
                rows.append((name, _shown(mine), _shown(theirs), _ratio(mine, theirs)))
        missing = dict.fromkeys((*self.uncounted, *(after.uncounted if after else ())))
        note = f"\nMACs of these operations are unknown and not counted: {', '.join(missing)}" if missing else ""
        return _aligned(rows) + note

    def _figures(self) -> list[int | Latency | None]:
        return [self.params, self.macs, self.bytes, self.peak_activation_bytes, self.latency]


_NAMES = ("parameters", "MACs", "bytes", "peak activation bytes", "latency")


def cost(model: nn.Module, example: Any, *, trace: bool = True, latency: bool = False, repeats: int = 30) -> Cost:
    """Counts, in evaluation mode, what `model` costs as it is: with its gates, if it has any. It is left as it is.

    What no output depends on is not counted, though it may be computed.

    Args:
        model: any module. Wrappers (DDP, torch.compile) are looked through; a compiled model is timed compiled.
        example: what to call it with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        trace: whether to count what needs the model's graph. Without, `macs` and `peak_activation_bytes` are None, and
            a model that torch.export cannot trace still gets the rest.
        latency: whether to measure time too, after a warm-up, where the model and the example are.
        repeats: how many forward passes to time.

    Example:
        >>> print(cost(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(10, 8)))
        cost
        parameters              46
        MACs                   400
        bytes                  184
        peak activation bytes  480

    Raises:
        ArgumentError: an argument that cannot be, by name, or an example that the model does not run on.
        TraceError: torch.export cannot trace the model, or sizes in it depend on values.
    """
    trace, latency = true_or_false("cost: trace", trace), true_or_false("cost: latency", latency)
    if (repeats := whole_number("cost: repeats", repeats)) < 2:
        raise ArgumentError(f"cost: repeats={repeats} has no spread; use at least 2")
    root, given = unwrap(model, "cost"), Example.of(example)
    parameters = list(root.parameters())
    stored = sum(tensor.numel() * tensor.element_size() for tensor in (*parameters, *root.buffers()))
    counted = count(root, given, "cost") if trace else None
    return Cost(
        params=sum(parameter.numel() for parameter in parameters),
        bytes=stored,
        macs=None if counted is None else counted.macs,
        peak_activation_bytes=None if counted is None else counted.peak_activation_bytes,
        latency=latency_of(_runnable(model), given, repeats) if latency else None,
        uncounted=() if counted is None else counted.uncounted,
    )


def _runnable(model: nn.Module) -> nn.Module:
    """What to time: the model without wrappers that talk to other processes or devices, but compiled if it was."""
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while isinstance(model, parallel):
        model = model.module
    return unwrap(model, "cost") if any(isinstance(module, parallel) for module in model.modules()) else model


def latency_of(model: nn.Module, example: Example, repeats: int, operation: str = "cost") -> Latency:
    """Measured where the model is, in evaluation mode, after a warm-up. Errors are told in the name of `operation`."""
    inputs = [leaf for leaf in tree_leaves((example.args, example.kwargs)) if isinstance(leaf, Tensor)]
    given = example.fresh()
    device = next((tensor.device for tensor in (*model.parameters(), *inputs)), torch.device("cpu"))
    batch = next((tensor.shape[0] for tensor in inputs if tensor.dim() > 0), None)

    def run() -> None:
        model(*given.args, **given.kwargs)

    clock = _time_on_cuda if device.type == "cuda" else _time_on_host
    with evaluating(model), torch.inference_mode():
        try:
            for _ in range(WARM_UP):
                run()
        except Exception as error:
            raise not_running(model, example, operation, error) from error
        times = [clock(run, device) for _ in range(repeats)]
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Latency(median, high - low, str(device), batch)


def _time_on_cuda(run: Callable[[], None], device: torch.device) -> float:
    """Milliseconds between two events on the device, which was idle before: launching counts."""
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))


def _time_on_host(run: Callable[[], None], device: torch.device) -> float:
    """Milliseconds by the host's clock; devices that work on their own are waited for."""
    wait = torch.get_device_module(device).synchronize
    wait()
    start = time.perf_counter()
    run()
    wait()
    return (time.perf_counter() - start) * 1e3


def _shown(figure: int | Latency | None) -> str:
    return "-" if figure is None else f"{figure:,}" if isinstance(figure, int) else str(figure)


def _ratio(before: int | Latency | None, after: int | Latency | None) -> str:
    if before is None or after is None:
        return "-"
    mine = before.median_ms if isinstance(before, Latency) else before
    theirs = after.median_ms if isinstance(after, Latency) else after
    return f"{theirs / mine:.3f}" if mine else "-"


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join((name.ljust(widths[0]), *right)).rstrip())
    return "\n".join(lines)
