"""Every model of the torchvision zoo: gated, closed at random, compacted, compared. Exact, or refused by name.

    PYTHONPATH=src python -m benchmarks.zoo --jobs 8                   # writes results/zoo.json
    PYTHONPATH=src python -m benchmarks.zoo --models resnet18 vit_b_16 --known results/zoo.json

Every parameter and statistic drawn at random (fresh ones hide mistakes: heads of zeros, tiny layer scales), random
orders, random offsets, float64. The difference is the largest over outputs, relative to the largest output. A model
whose outputs the gates hardly moved, or that returned none, counts as untested, not as exact. The prunable share
counts parameters that belong to at least one channel that may go. Every row says at which commit and with which torch
it was made, and where only some of a model's layers were tried; rows of a `--known` record are taken over for models
that are not tried again. `python -m headgate_lab.report.zoo` turns the record into docs/zoo.md.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import headgate as hg
from benchmarks.vision import vision_models
from headgate.surgery.trial import randomised
from headgate_lab.records import environment, write_record

CLASSIFIERS = [
    "alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn", "resnet18",
    "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2",
    "wide_resnet101_2", "densenet121", "densenet161", "densenet169", "densenet201", "efficientnet_b0",
    "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5", "efficientnet_b6",
    "efficientnet_b7", "efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l", "regnet_x_400mf",
    "regnet_x_1_6gf", "regnet_x_3_2gf", "regnet_x_8gf", "regnet_y_400mf", "regnet_y_1_6gf", "regnet_y_3_2gf",
    "regnet_y_8gf", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large", "vit_b_16", "vit_b_32",
    "vit_l_16", "vit_l_32", "vit_h_14", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5",
    "mnasnet0_75", "mnasnet1_0", "mnasnet1_3", "squeezenet1_0", "squeezenet1_1", "inception_v3", "googlenet",
    "swin_t", "swin_s", "swin_v2_t", "maxvit_t", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
]  # fmt: skip
SEGMENTERS = [
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101", "fcn_resnet50", "fcn_resnet101",
    "lraspp_mobilenet_v3_large",
]  # fmt: skip
DETECTORS = [
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
]  # fmt: skip
MODELS = [*CLASSIFIERS, *SEGMENTERS, *DETECTORS, "raft_small"]
# The smallest images at which these still work; all others take 64 pixels.
SIZES = {"alexnet": 96, "inception_v3": 299, "maxvit_t": 224} | dict.fromkeys(
    ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"), 224
)
# Of 32 equal layers: the copies of all of them in float64 do not fit into the memory of an ordinary machine.
LAYERS_OF_VIT_H_14 = 4


def build(name: str) -> tuple[nn.Module, Any]:
    """The model with fresh weights, and an example."""
    models = vision_models()
    if name == "raft_small":
        return models.optical_flow.raft_small(weights=None), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))
    size = SIZES.get(name, 64)
    if name == "vit_h_14":
        model = models.VisionTransformer(
            image_size=size, patch_size=14, num_layers=LAYERS_OF_VIT_H_14, num_heads=16, hidden_dim=1280, mlp_dim=5120
        )
    elif name in SEGMENTERS:
        model = getattr(models.segmentation, name)(weights=None, weights_backbone=None)
    elif name in DETECTORS:
        # Whatever it finds counts: an untrained detector is sure of nothing.
        threshold = {"box_score_thresh": 0.0} if "rcnn" in name else {"score_thresh": 0.0}
        model = getattr(models.detection, name)(weights=None, weights_backbone=None, **threshold)
        return model, ([torch.rand(3, 128, 128)],)
    else:
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model = getattr(models, name)(weights=None, **options)
    return model, torch.randn(2, 3, size, size)


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


def try_model(name: str) -> dict[str, Any]:
    """One row of the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    start = time.perf_counter()
    row: dict[str, Any] = {"model": name}
    if name == "vit_h_14":
        row["tried"] = f"{LAYERS_OF_VIT_H_14} of 32 layers"
    try:
        model, example = build(name)
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
    example = tuple(_double(e) for e in example) if isinstance(example, tuple) else _double(example)
    before = sum(parameter.numel() for parameter in model.parameters())
    args = example if isinstance(example, tuple) else (example,)
    with torch.no_grad():
        dense = _outputs(model, args)
    gates = hg.insert_gates_(model, example, order="random:1", floor=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.copy_(-4 * torch.rand((), generator=generator))
        small = hg.compact(model)
        gated, compacted = _outputs(model, args), _outputs(small, args)
    difference, moved = _furthest(gated, compacted), _furthest(gated, dense)
    after = sum(parameter.numel() for parameter in small.parameters())
    outcome = "wrong" if not difference < 1e-9 else "exact" if moved > 1e-3 else "untested"
    return {"outcome": outcome, "gates": len(gates), "difference": difference, "left": round(after / before, 4)}


def _outputs(model: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(model(*args)) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _furthest(left: list[Tensor], right: list[Tensor]) -> float:
    """The largest relative difference; infinite where there are other tensors, 0 where there are none."""
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        return math.inf
    differences = [_relative(a, b) for a, b in zip(left, right, strict=True) if a.numel()]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


def _double(value: Any) -> Any:
    if isinstance(value, list):
        return [_double(item) for item in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _relative(left: Tensor, right: Tensor) -> float:
    return ((left - right).abs().max() / left.abs().max().clamp_min(1e-30)).item()


def main() -> None:
    """Tries all models, several at a time, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--known", type=Path, default=None, help="a record to add to")
    parser.add_argument("--out", type=Path, default=Path("results/zoo.json"))
    args = parser.parse_args()
    args.commit = args.commit or environment("cpu")["commit"]
    start, rows = time.perf_counter(), known_rows(args)
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=4) as pool:
        for row in pool.imap_unordered(try_model, args.models):
            rows.append({**row, **made_with(args.commit, torch.__version__, version("torchvision"))})
            print(json.dumps({key: row.get(key) for key in ("model", "outcome", "prunable", "left", "why", "seconds")}))
            write(args, sorted(rows, key=lambda row: MODELS.index(row["model"])), time.perf_counter() - start)


def known_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the record to add to, without the models that are tried again."""
    if args.known is None:
        return []
    record = json.loads(args.known.read_text())
    found = record["environment"]
    made = made_with(found["commit"], found["torch"], record["config"]["torchvision"])
    return [made | row for row in record["metrics"]["models"] if row["model"] not in args.models]


def made_with(commit: str, torch_version: str, torchvision_version: str) -> dict[str, str]:
    """What a row was made with."""
    return {"commit": commit, "torch": torch_version, "torchvision": torchvision_version}


def write(args: argparse.Namespace, rows: list[dict[str, Any]], seconds: float) -> None:
    """The record so far: an interrupted run keeps what it has."""
    outcomes = [row["outcome"] for row in rows]
    write_record(
        args.out,
        recipe="zoo/torchvision",
        config={"order": "random:1", "floor": 1, "dtype": "float64", "torchvision": version("torchvision")},
        metrics={"models": rows},
        headline=f"of {len(rows)} torchvision models {outcomes.count('exact')} compact exactly, "
        f"{outcomes.count('refused')} refused by name, {outcomes.count('untested')} untested, "
        f"{outcomes.count('wrong')} wrong, {outcomes.count('failed')} failed in the benchmark",
        duration_s=seconds,
        commit=args.commit,
    )


if __name__ == "__main__":
    main()
