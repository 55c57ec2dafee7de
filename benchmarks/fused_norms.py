"""Do the kernels of `headgate_lab.models.norm` compute on this GPU what torch computes, and are they faster?

Images of many shapes in bfloat16: results, gradients and running statistics are compared with float64, beside torch's
own kernels, and a pass forwards and backwards is timed, captured, in turns. Then epochs of gated networks side by
side, with the kernels and without. Writes a record to results/checks/.

    PYTHONPATH=src python -m benchmarks.fused_norms
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.epoch import MODELS, fresh, random_images
from benchmarks.fused_masks import difference
from benchmarks.timing import in_turns, make_folder_of
from headgate_lab.engine.captured import captured_where_possible
from headgate_lab.methods.dam import Dam
from headgate_lab.models import norm
from headgate_lab.models.norm import norm_relu
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "checks" / "fused_norms.json"
SHAPES = (
    (128, 16, 32, 32),
    (128, 64, 32, 32),
    (128, 37, 32, 32),
    (128, 128, 16, 16),
    (128, 256, 8, 8),
    (128, 512, 2, 2),
)
# Relative to the largest entry: one rounding to bfloat16, and what it does to what is computed from it.
TOLERANCE = 8e-3
IMAGES = 12_800


@contextmanager
def as_torch_does() -> Iterator[None]:
    """Inside, the kernels are not used."""
    before, norm.is_fast_for = norm.is_fast_for, lambda x: False
    try:
        yield
    finally:
        norm.is_fast_for = before


def passes(layer: nn.BatchNorm2d, x: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    """Everything that one pass forwards and backwards leaves."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result = norm_relu(layer, x)
    result.backward(slopes)
    gradients = {name: value.grad for name, value in layer.named_parameters()}
    return {"result": result.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}  # type: ignore[dict-item]


def compare(shape: tuple[int, ...]) -> dict[str, Any]:
    """How far the kernels and torch's lie from float64, and what both take."""
    x = (3 * torch.randn(shape, device="cuda") + 2).to(torch.bfloat16, memory_format=torch.channels_last)
    slopes = torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last)
    layer = nn.BatchNorm2d(shape[1]).cuda()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    expected = passes(copy.deepcopy(layer).double(), x.double(), slopes.double())
    assert norm.is_fast_for(x), "the kernels are not used: nothing to compare"
    ours = passes(copy.deepcopy(layer), x, slopes)
    with as_torch_does():
        theirs = passes(copy.deepcopy(layer), x, slopes)
    outcome: dict[str, Any] = {"shape": shape}
    for way, found in {"kernels": ours, "torch": theirs}.items():
        outcome[way] = {name: difference(value, expected[name].double()) for name, value in found.items()}
    outcome["agree"] = max(outcome["kernels"].values()) <= max(TOLERANCE, 1.5 * max(outcome["torch"].values()))
    return outcome | {"us": times(layer, x, slopes)}


def times(layer: nn.BatchNorm2d, x: Tensor, slopes: Tensor) -> dict[str, float]:
    """Microseconds of a pass forwards and backwards, captured."""
    x.requires_grad_()

    def step() -> None:
        norm_relu(layer, x).backward(slopes)

    x.grad, layer.weight.grad, layer.bias.grad = map(torch.zeros_like, (x, layer.weight, layer.bias))
    state = [x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()]
    works: dict[str, Callable[[], None]] = {"kernels": captured_where_possible(step, state)}
    with as_torch_does():
        works["torch"] = captured_where_possible(step, state)
    taken = in_turns(works, rounds=5, repeats=50, device="cuda")
    return {way: round(1e6 * statistics.median(seconds), 1) for way, seconds in taken.items()}


def epochs(model: str, together: int) -> dict[str, float]:
    """Seconds of an epoch for each of so many gated networks side by side, both ways in turns."""
    data = random_images(IMAGES, torch.device("cuda"))
    args = argparse.Namespace(together=together, batch=128, epochs=50)
    ours = fresh(MODELS[model], Dam(0.1), data, args)
    ours.epoch()
    with as_torch_does():
        theirs = fresh(MODELS[model], Dam(0.1), data, args)
        theirs.epoch()  # captures
    taken = in_turns({"kernels": ours.epoch, "torch": theirs.epoch}, rounds=5, repeats=1, device="cuda", warmup=1)
    return {way: round(statistics.median(seconds) / together, 4) for way, seconds in taken.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the check, writes the record, and returns 0 if all agrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    make_folder_of(given.out, parser)
    start = time.perf_counter()
    torch.manual_seed(0)
    cases = [compare(shape) for shape in SHAPES]
    good = sum(case["agree"] for case in cases)
    for case in cases:
        print(case["shape"], case["us"], "kernels", max(case["kernels"].values()), "torch", max(case["torch"].values()))
    networks = {
        f"{together} {model}": epochs(model, together) for model, together in (("preresnet20", 8), ("preresnet164", 4))
    }
    faster = ", ".join(
        f"{taken['torch'] / taken['kernels']:.2f} times as fast for {who}" for who, taken in networks.items()
    )
    headline = (
        f"On {torch.cuda.get_device_name()}, BatchNorm and ReLU in few passes equal torch's to rounding in {good} of "
        f"{len(cases)} cases, and training with them is {faster} side by side"
    )
    write_record(
        given.out,
        recipe="fused_norms",
        config={"tolerance": TOLERANCE, "images": IMAGES},
        metrics={"cases": cases, "epoch_s_each": networks},
        headline=headline,
        duration_s=time.perf_counter() - start,
        device="cuda",
        commit=given.commit,
    )
    print(headline, networks)
    return 0 if good == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
