"""Do the Triton kernels of `headgate.kernels` compute on this GPU what plain operations compute?

Weights of many shapes, layouts and masks, gradients in three dtypes: values, gradients of the weight and gradients of
the masks are compared with float64, beside the plain way in the same dtypes. Then a gated network is trained a few
steps both ways, plainly and replayed from a CUDA graph. Writes a record to results/checks/.

    PYTHONPATH=src python -m benchmarks.fused_masks
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg
from benchmarks.timing import asked_of_a_check
from headgate import fused, product
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "checks" / "fused_masks.json"
# Shape, masked axes, channels_last.
WEIGHTS: tuple[tuple[tuple[int, ...], tuple[int, ...], bool], ...] = (
    ((512, 512, 3, 3), (1,), True),
    ((512, 256, 3, 3), (1, 0), True),
    ((257, 130, 3, 3), (0,), True),
    ((257, 130, 3, 3), (1,), False),
    ((130, 67, 5), (1, 0), False),
    ((10, 512), (1,), False),
    ((1000, 301), (0, 1), False),
    ((2048, 512, 1, 1), (1,), False),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Relative to the largest entry. Sums in float32 over up to 300 000 terms, and one rounding to the output's dtype.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


def compare(shape: tuple[int, ...], axes: tuple[int, ...], last: bool, dtype: torch.dtype) -> dict[str, Any]:
    """How far the kernels and the plain way lie from float64, for one weight."""
    layout = torch.channels_last if last else torch.contiguous_format
    weight = torch.randn(shape, device="cuda").contiguous(memory_format=layout)
    gradient = torch.randn(shape, device="cuda").contiguous(memory_format=layout).to(dtype)
    vectors = [(axis, torch.rand(1, shape[axis], device="cuda")) for axis in axes]
    wide = [(axis, vector.double()) for axis, vector in vectors]
    exact = product.product(weight.double().unsqueeze(0), wide)
    slopes = (weight.double() * gradient.double()).unsqueeze(0)
    expected = [product.product(gradient.double().unsqueeze(0), wide), *product._vector_gradients(slopes, wide)]
    outcome: dict[str, Any] = {"shape": shape, "axes": axes, "channels_last": last, "dtype": str(dtype)[6:]}
    for way in ("fused", "plain"):
        with as_if(way), torch.no_grad(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            masked, back = product._masked([weight], vectors), product._went_back([gradient], [weight], vectors)
        assert back is not None
        found = [back[0][0], *(slope[0] for slope in back[1])]
        outcome[f"{way}_masked"] = difference(masked[0], exact[0])
        outcome[f"{way}_gradients"] = max(difference(a, b[0]) for a, b in zip(found, expected, strict=True))
    outcome["agree"] = outcome["fused_masked"] <= TOLERANCES[dtype] and outcome["fused_gradients"] <= 1e-5
    return outcome


class as_if:  # noqa: N801, a context manager
    """Inside, masks are applied the given way; the kernels must work for `fused`."""

    def __init__(self, way: str) -> None:
        self.fused = way == "fused"

    def __enter__(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        if self.fused and not fused._works_on(device):
            sys.exit(f"fused_masks: Triton does not work on {device}: nothing to compare")
        self.before, fused._works[device] = fused._works.get(device, True), self.fused
        self.device = device

    def __exit__(self, *unused: object) -> None:
        fused._works[self.device] = self.before


def trained(way: str, captured: bool, steps: int) -> tuple[Tensor, Tensor]:
    """Offsets and weights of a small gated network after some steps, one way or the other."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36864, 10)]
    model = nn.Sequential(*layers).cuda()
    x, y = torch.randn(16, 3, 16, 16, device="cuda"), torch.randint(10, (16,), device="cuda")
    hg.insert_gates_(model, x)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=torch.tensor(0.01, device="cuda")), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (cross_entropy(model(x), y) + 0.1 * hg.penalty(model)).backward()
        optimizer.step()

    run: Callable[[], None] = step
    with as_if(way):
        for count in range(steps):
            if captured and count == 3:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
                run = graph.replay
            run()
    offsets = torch.stack([gate.offset.detach() for gate in hg.gates(model).values()])
    return offsets, torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])


def train_all(steps: int) -> dict[str, Any]:
    """How far trainings lie apart that differ in the way masks are applied, and in being captured."""
    plain, plain_again = trained("plain", False, steps), trained("plain", False, steps)
    others = {"fused": trained("fused", False, steps), "fused, captured": trained("fused", True, steps)}
    apart = {
        name: {"offsets": difference(some[0], plain[0].double()), "weights": difference(some[1], plain[1].double())}
        for name, some in {"plain again": plain_again, **others}.items()
    }
    return {**apart, "agree": all(max(one.values()) < 1e-4 for one in apart.values())}


def main(arguments: list[str] | None = None) -> int:
    """Runs the check, writes the record, and returns 0 if all agrees."""
    given = asked_of_a_check(__doc__, RECORD, arguments)
    start = time.perf_counter()
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    cases = [compare(*weight, dtype) for weight, dtype in itertools.product(WEIGHTS, DTYPES)]
    training = train_all(steps=12)
    good = sum(case["agree"] for case in cases)
    same = "ends" if training["agree"] else "does NOT end"
    headline = (
        f"On {torch.cuda.get_device_name()}, masks applied in one pass equal the plain way to rounding in {good} of "
        f"{len(cases)} cases, and training with them, captured or not, {same} where it ends without"
    )
    write_record(
        given.out,
        recipe="fused_masks",
        config={"steps": 12, "tolerances": {str(dtype)[6:]: value for dtype, value in TOLERANCES.items()}},
        metrics={"cases": cases, "training": training},
        headline=headline,
        duration_s=time.perf_counter() - start,
        device="cuda",
        commit=given.commit,
    )
    print(headline)
    return 0 if good == len(cases) and training["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
