"""Headgate and torch-pruning side by side on ten torchvision models: time, does it run, and is the output right.

    pip install -e '.[bench]'
    PYTHONPATH=src python -m benchmarks.peers

Both remove half of the channels of the same network: float64, weights and statistics drawn at random, evaluation mode.
Time is analysis plus removal: for Headgate `insert_gates_` and `compact` (with the trials and the comparison they
make), for torch-pruning the making of the pruner (magnitude, ratio 0.5, the last layer ignored) and its step.

Right means: the small network computes what the full one computes with the removed channels silenced, to 1e-9. For
Headgate that is the gated model. For torch-pruning, it is a copy of the full model in which every weight reads zeros
for the channels that torch-pruning's own groups say it loses: as removal by its own bookkeeping, no more. A norm over
channels (ConvNeXt) changes when channels go, so that no removal before one can pass; Headgate leaves those alone.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import headgate as hg
from benchmarks.timing import options, seconds
from benchmarks.vision import vision_models
from headgate.surgery.trial import randomised
from headgate_lab.records import write_record

MODELS = (
    "alexnet", "vgg16_bn", "resnet50", "densenet121", "mobilenet_v2", "efficientnet_b0", "googlenet", "regnet_y_400mf",
    "shufflenet_v2_x1_0", "convnext_tiny",
)  # fmt: skip
LIMIT = 1e-9
# A comparison of outputs that silencing hardly moved would prove nothing.
MOVED = 1e-3
# Closes half of a gate whose span is 5.
HALF = -2.5

# The full model, silenced, and what is left of it.
Result = tuple[nn.Module, nn.Module]


def build(name: str) -> nn.Module:
    """The network as both get it."""
    torch.manual_seed(0)
    options = {"init_weights": False} if name == "googlenet" else {}
    return randomised(getattr(vision_models(), name)(weights=None, **options), seed=0)


def by_headgate(model: nn.Module, example: Tensor) -> tuple[float, Result]:
    """Seconds, and the gated model beside the compacted one."""
    found: dict[str, Any] = {}
    taken = seconds(lambda: found.update(gates=hg.insert_gates_(model, example)))
    with torch.no_grad():
        for gate in found["gates"].values():
            gate.offset.fill_(HALF)
    taken += seconds(lambda: found.update(small=hg.compact(model)))
    return taken, (model, found["small"])


def by_torch_pruning(model: nn.Module, example: Tensor) -> tuple[float, Result]:
    """Seconds, and the full model silenced by torch-pruning's own groups beside the pruned one."""
    import torch_pruning as tp

    silenced = Silenced(model)
    found: dict[str, Any] = {}

    def analyse() -> None:
        found["pruner"] = tp.pruner.BasePruner(
            model,
            example,
            importance=tp.importance.MagnitudeImportance(p=2),
            pruning_ratio=0.5,
            ignored_layers=[last_layer(model)],
        )

    taken = seconds(analyse)
    groups = iter(found["pruner"].step(interactive=True))
    while True:
        start = time.perf_counter()
        group = next(groups, None)
        taken += time.perf_counter() - start
        if group is None:
            return taken, (silenced.model, model)
        silenced.lose_(group)
        taken += seconds(group.prune)


class Silenced:
    """A copy of the full model in which weights read zeros for what has been removed from another copy."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self._twins = dict(zip(model.modules(), self.model.modules(), strict=True))
        self._left: dict[nn.Module, Tensor] = {}

    @torch.no_grad()
    def lose_(self, group: Any) -> None:
        """Silences what a group takes from its readers, whose inputs it counts without those that went before."""
        for dependency, indices in group:
            layer, removes = dependency.target.module, dependency.handler.__name__
            twin = self._twins.get(layer)
            if twin is None or not removes.endswith("in_channels") or not _mixes(twin):
                continue
            groups = getattr(twin, "groups", 1)
            per_group = twin.weight.shape[1]
            left = self._left.setdefault(layer, torch.arange(per_group * groups))
            gone = torch.zeros(len(left), dtype=torch.bool)
            gone[list(indices)] = True
            # Axes: convolution group, output within it, input within it.
            rows = twin.weight.view(groups, -1, *twin.weight.shape[1:])
            rows[left[gone] // per_group, :, left[gone] % per_group] = 0
            self._left[layer] = left[~gone]


def _mixes(layer: nn.Module) -> bool:
    """Whether it sums over channels; a depthwise convolution passes each on by itself."""
    convolution = isinstance(layer, nn.modules.conv._ConvNd) and not layer.groups == layer.in_channels > 1
    return isinstance(layer, nn.Linear) or convolution


def last_layer(model: nn.Module) -> nn.Module:
    """The layer whose outputs are the classes, or the only one that has as many."""
    return [m for m in model.modules() if getattr(m, "out_features", getattr(m, "out_channels", 0)) == 1000][-1]


def outcome(prune: Callable[[nn.Module, Tensor], tuple[float, Result]], name: str, rounds: int) -> dict[str, Any]:
    """What one library makes of one model."""
    example = torch.randn(1, 3, 224, 224, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    times = []
    try:
        for _ in range(rounds):
            model = build(name)
            before = sum(parameter.numel() for parameter in model.parameters())
            taken, (full, small) = prune(model, example)
            times.append(taken)
        with torch.no_grad():
            expected, got, dense = full(example), small(example), build(name)(example)
        error, moved = _distance(expected, got), _distance(expected, dense)
    except Exception as problem:
        lines = str(problem).splitlines() or [""]
        return {"outcome": "fails", "why": f"{type(problem).__name__}: {lines[0][:160]}"}
    left = sum(parameter.numel() for parameter in small.parameters()) / before
    verdict = "differs" if not error < LIMIT else "right" if moved > MOVED else "untested"
    return {
        "outcome": verdict, "seconds": round(statistics.median(times), 2), "left": round(left, 4), "error": error,
    }  # fmt: skip


def _distance(left: Tensor, right: Tensor) -> float:
    return ((left - right).abs().max() / left.abs().max()).item()


def main() -> None:
    """Tries all models with both and writes the record."""
    parser = options(__doc__, rounds=1)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start, rows = time.perf_counter(), []
    contestants = {"headgate": by_headgate, "torch_pruning": by_torch_pruning}
    for prune in contestants.values():
        outcome(prune, "alexnet", rounds=1)  # imports do not count
    for name in args.models:
        found = {library: outcome(prune, name, args.rounds) for library, prune in contestants.items()}
        rows.append({
            "model": name,
            **{f"{library}_{key}": value for library, one in found.items() for key, value in one.items()},
        })  # fmt: skip
        print(json.dumps(rows[-1]))
    right = {library: sum(row[f"{library}_outcome"] == "right" for row in rows) for library in contestants}
    both = [row for row in rows if "headgate_seconds" in row and "torch_pruning_seconds" in row]
    ratio = statistics.median(row["headgate_seconds"] / row["torch_pruning_seconds"] for row in both)
    write_record(
        args.out / "peers.json",
        recipe="peers/torch-pruning",
        config={"image": 224, "batch": 1, "dtype": "float64", "rounds": args.rounds, "removed": 0.5},
        metrics={"rows": rows, "right": right, "time_ratio": round(ratio, 2)},
        headline=f"of {len(rows)} torchvision models with half of their channels removed, Headgate gets "
        f"{right['headgate']} right and torch-pruning {right['torch_pruning']}, by its own groups; Headgate, which "
        f"tries and compares what it removes, takes {ratio:.1f} times as long (median)",
        duration_s=time.perf_counter() - start,
        commit=args.commit,
    )


if __name__ == "__main__":
    main()
