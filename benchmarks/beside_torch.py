"""How kernels of ours are checked and timed beside torch's own: what `fused_norms`, `few_channels` and others share."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.epoch import MODELS, fresh, random_images
from benchmarks.fused_masks import difference
from benchmarks.timing import asked_of_a_check, in_turns
from headgate_lab.engine.captured import captured_where_possible
from headgate_lab.methods.dam import Dam
from headgate_lab.records import write_record

CHECKS = Path(__file__).parents[1] / "results" / "checks"
# Relative to the largest entry, or to the norm: one rounding to bfloat16, and what it does to what is computed from it.
TOLERANCE = 8e-3
IMAGES = 12_800


@dataclass(frozen=True)
class Checked:
    """What is compared.

    Attributes:
        name: of the record.
        what: the kernels compute, in words.
        shapes: to try.
        case: a layer, images and the gradient of what the layer makes of them, for a shape.
        applied: what the layer makes of images, by the kernels where they are used.
        as_torch_does: inside, the kernels are not used.
        networks: whose epochs are timed, and how many side by side.
        apart: how far something found lies from what is expected.
    """

    name: str
    what: str
    shapes: Sequence[tuple[int, ...]]
    case: Callable[[tuple[int, ...]], tuple[nn.Module, Tensor, Tensor]]
    applied: Callable[[nn.Module, Tensor], Tensor]
    as_torch_does: Callable[[], AbstractContextManager[None]]
    networks: Sequence[tuple[str, int]]
    apart: Callable[[Tensor, Tensor], float] = difference


def main_of(checked: Checked, description: str | None, arguments: list[str] | None = None) -> int:
    """Runs the check, writes the record, and returns 0 if all agrees."""
    given = asked_of_a_check(description, CHECKS / f"{checked.name}.json", arguments)
    start = time.perf_counter()
    torch.manual_seed(0)
    cases = [_compared(checked, shape) for shape in checked.shapes]
    good = sum(case["agree"] for case in cases)
    for case in cases:
        print(case["shape"], case["us"], "kernels", max(case["kernels"].values()), "torch", max(case["torch"].values()))
    networks = {f"{together} {model}": _epochs(checked, model, together) for model, together in checked.networks}
    faster = ", ".join(
        f"{taken['torch'] / taken['kernels']:.2f} times as fast for {who}" for who, taken in networks.items()
    )
    headline = (
        f"On {torch.cuda.get_device_name()}, {checked.what} equal torch's to rounding in {good} of {len(cases)} cases, "
        f"and training with them is {faster} side by side"
    )
    write_record(
        given.out,
        recipe=checked.name,
        config={"tolerance": TOLERANCE, "images": IMAGES},
        metrics={"cases": cases, "epoch_s_each": networks},
        headline=headline,
        duration_s=time.perf_counter() - start,
        device="cuda",
        commit=given.commit,
    )
    print(headline, networks)
    return 0 if good == len(cases) else 1


def _compared(checked: Checked, shape: tuple[int, ...]) -> dict[str, Any]:
    """How far the kernels and torch's lie from float64, and what both take."""
    layer, x, slopes = checked.case(shape)
    expected = _passes(checked, copy.deepcopy(layer).double(), x.double(), slopes.double())
    ours = _passes(checked, copy.deepcopy(layer), x, slopes)
    with checked.as_torch_does():
        theirs = _passes(checked, copy.deepcopy(layer), x, slopes)
    outcome: dict[str, Any] = {"shape": shape}
    for way, found in {"kernels": ours, "torch": theirs}.items():
        outcome[way] = {name: checked.apart(value, expected[name].double()) for name, value in found.items()}
    outcome["agree"] = max(outcome["kernels"].values()) <= max(TOLERANCE, 1.5 * max(outcome["torch"].values()))
    return outcome | {"us": _times(checked, layer, x, slopes)}


def _passes(checked: Checked, layer: nn.Module, x: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    """Everything that one pass forwards and backwards leaves."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result = checked.applied(layer, x)
    result.backward(slopes)
    gradients = {name: value.grad for name, value in layer.named_parameters()}
    return {"result": result.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}  # type: ignore[dict-item]


def _times(checked: Checked, layer: nn.Module, x: Tensor, slopes: Tensor) -> dict[str, float]:
    """Microseconds of a pass forwards and backwards, captured."""
    x.requires_grad_()

    def step() -> None:
        checked.applied(layer, x).backward(slopes)

    learned = [x, *layer.parameters()]
    for each in learned:
        each.grad = torch.zeros_like(each)
    state = [*(each.grad for each in learned if each.grad is not None), *layer.buffers()]
    works: dict[str, Callable[[], None]] = {"kernels": captured_where_possible(step, state)}
    with checked.as_torch_does():
        works["torch"] = captured_where_possible(step, state)
    taken = in_turns(works, rounds=5, repeats=50, device="cuda")
    return {way: round(1e6 * statistics.median(seconds), 1) for way, seconds in taken.items()}


def _epochs(checked: Checked, model: str, together: int) -> dict[str, float]:
    """Seconds of an epoch for each of so many gated networks side by side, both ways in turns."""
    data = random_images(IMAGES, torch.device("cuda"))
    args = argparse.Namespace(together=together, batch=128, epochs=50)
    ours = fresh(MODELS[model], Dam(0.1), data, args)
    ours.epoch()
    with checked.as_torch_does():
        theirs = fresh(MODELS[model], Dam(0.1), data, args)
        theirs.epoch()  # captures
    taken = in_turns({"kernels": ours.epoch, "torch": theirs.epoch}, rounds=3, repeats=1, device="cuda", warmup=1)
    return {way: round(statistics.median(seconds) / together, 4) for way, seconds in taken.items()}
