"""Every model of a zoo: gated, closed at random, compacted, compared. Exact, or refused by name.

    PYTHONPATH=src python -m benchmarks.zoo --jobs 8                   # torchvision's; writes results/zoo.json
    PYTHONPATH=src python -m benchmarks.zoo --models resnet18 vit_b_16 --known results/zoo.json
    PYTHONPATH=src python -m benchmarks.zoo --library transformers     # writes results/zoo-transformers.json
    PYTHONPATH=src python -m benchmarks.zoo --library timm             # writes results/zoo-timm.json

Every parameter and statistic drawn at random (fresh ones hide mistakes: heads of zeros, tiny layer scales), random
orders, random offsets, float64. The difference is the largest over outputs, relative to the largest output. A model
whose outputs the gates hardly moved, or that returned none, counts as untested, not as exact. The prunable share
counts parameters that belong to at least one channel that may go. Every row says at which commit and with which torch
it was made, and where only some of a model's layers were tried; rows of a `--known` record are taken over for models
that are not tried again. `python -m headgate_lab.report.zoo` turns the records into docs/zoo.md.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import headgate as hg
from benchmarks import hugging_face, timm_models, vision
from headgate.channels.example import Example
from headgate.surgery.trial import in_double, randomised
from headgate_lab.records import environment, write_record


@dataclass(frozen=True)
class Library:
    """Models by name, what builds one with an example, and in words how large they are and which were tried partly."""

    models: list[str]
    build: Callable[[str], tuple[nn.Module, Any]]
    sizes: str = ""
    partly: Mapping[str, str] = field(default_factory=dict)


LIBRARIES = {
    "torchvision": Library(vision.MODELS, vision.build, partly=vision.PARTLY_TRIED),
    "transformers": Library(hugging_face.MODELS, hugging_face.build, hugging_face.SIZES_IN_WORDS),
    "timm": Library(timm_models.MODELS, timm_models.build, timm_models.SIZES_IN_WORDS),
}


def prunable_share(model: nn.Module, plan: hg.Plan) -> float:
    """The share of parameters that belong to at least one removable unit."""
    total = prunable = 0.0
    for name, parameter in model.named_parameters():
        staying = 1.0
        for axis in range(parameter.dim()):
            units = plan.axes.get((name, axis))
            if units is not None:
                staying *= sum(unit < 0 for unit in units) / len(units)
        total += parameter.numel()
        prunable += parameter.numel() * (1 - staying)
    return prunable / total


def try_model(library: str, name: str) -> dict[str, Any]:
    """One row of the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    start = time.perf_counter()
    row: dict[str, Any] = {"model": name}
    if name in LIBRARIES[library].partly:
        row["tried"] = LIBRARIES[library].partly[name]
    try:
        model, example = LIBRARIES[library].build(name)
        row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        plan = hg.find_groups(model, example)
        row |= {"groups": len(plan.groups), "prunable": round(prunable_share(model, plan), 4)}
        obstacles = [obstacle for refusal in plan.refusals for obstacle in refusal.obstacles]
        row["refused"] = sorted({f"{obstacle.operation}: {obstacle.reason}" for obstacle in obstacles})
        tried = [f"{obstacle.operation}: {obstacle.reason}" for obstacle in obstacles if obstacle.operation == "trial"]
        row |= cut(model, example) if plan.groups or not tried else {"outcome": "refused", "why": tried[0]}
    except hg.HeadgateError as error:
        row |= {"outcome": "refused", "why": str(error).splitlines()[0][:300]}
    except Exception as error:
        row |= {"outcome": "failed", "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def cut(model: nn.Module, example: Any) -> dict[str, Any]:
    """Gates at random offsets in random orders, compacted: sizes and the difference."""
    model = randomised(model, seed=0)
    given = in_double(Example.of(example))
    before = sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        dense = _outputs(model, given)
    gates = hg.insert_gates_(model, given, order="random:1", floor=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.copy_(-4 * torch.rand((), generator=generator))
        small = hg.compact(model)
        gated, compacted = _outputs(model, given), _outputs(small, given)
    difference, moved = _furthest(gated, compacted), _furthest(gated, dense)
    after = sum(parameter.numel() for parameter in small.parameters())
    outcome = "wrong" if not difference < 1e-9 else "exact" if moved > 1e-3 else "untested"
    return {"outcome": outcome, "gates": len(gates), "difference": difference, "left": round(after / before, 4)}


def _outputs(model: nn.Module, example: Example) -> list[Tensor]:
    returned = tree_leaves(model(*example.args, **example.kwargs))
    return [leaf for leaf in returned if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _furthest(left: list[Tensor], right: list[Tensor]) -> float:
    """The largest relative difference; infinite where there are other tensors, 0 where there are none."""
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        return math.inf
    differences = [_relative(a, b) for a, b in zip(left, right, strict=True) if a.numel()]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


def _relative(left: Tensor, right: Tensor) -> float:
    return ((left - right).abs().max() / left.abs().max().clamp_min(1e-30)).item()


def main() -> None:
    """Tries all models, several at a time, and writes the record."""
    args = arguments()
    args.commit = args.commit or environment("cpu")["commit"]
    start, rows = time.perf_counter(), known_rows(args)
    order = LIBRARIES[args.library].models
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=4) as pool:
        for row in pool.imap_unordered(partial(try_model, args.library), args.models):
            rows.append({**row, **made_with(args.commit, torch.__version__, args.library, version(args.library))})
            print(json.dumps({key: row.get(key) for key in ("model", "outcome", "prunable", "left", "why", "seconds")}))
            write(args, sorted(rows, key=lambda row: order.index(row["model"])), time.perf_counter() - start)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES, default="torchvision")
    parser.add_argument("--models", nargs="*", default=None, help="by default all of the library")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--known", type=Path, default=None, help="a record to add to")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    args.models = LIBRARIES[args.library].models if args.models is None else args.models
    args.out = args.out or Path("results") / (f"zoo-{args.library}.json".replace("-torchvision", ""))
    return args


def known_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the record to add to, without the models that are tried again."""
    if args.known is None:
        return []
    record = json.loads(args.known.read_text())
    found = record["environment"]
    made = made_with(found["commit"], found["torch"], args.library, record["config"][args.library])
    return [made | row for row in record["metrics"]["models"] if row["model"] not in args.models]


def made_with(commit: str, torch_version: str, library: str, library_version: str) -> dict[str, str]:
    """What a row was made with."""
    return {"commit": commit, "torch": torch_version, library: library_version}


def write(args: argparse.Namespace, rows: list[dict[str, Any]], seconds: float) -> None:
    """The record so far: an interrupted run keeps what it has."""
    outcomes = [row["outcome"] for row in rows]
    sizes = {"sizes": note} if (note := LIBRARIES[args.library].sizes) else {}
    write_record(
        args.out,
        recipe=f"zoo/{args.library}",
        config={"order": "random:1", "floor": 1, "dtype": "float64", args.library: version(args.library), **sizes},
        metrics={"models": rows},
        headline=f"of {len(rows)} {args.library} models {outcomes.count('exact')} compact exactly, "
        f"{outcomes.count('refused')} refused by name, {outcomes.count('untested')} untested, "
        f"{outcomes.count('wrong')} wrong, {outcomes.count('failed')} failed in the benchmark",
        duration_s=seconds,
        commit=args.commit,
    )


if __name__ == "__main__":
    main()
