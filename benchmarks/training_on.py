"""Is a training that goes on with the small network the same training? Losses of both ways, epoch by epoch.

    PYTHONPATH=src python -m benchmarks.training_on

LeNet-5 with ReLU learns MNIST to a tenth of its parameters, by SGD and by Adam. The size is met at half of the epochs;
from there on one network keeps its closed channels to the end, and the other, which had the same weights and batches,
is exchanged for the small one. Writes a record to results/checks/.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from benchmarks.timing import make_folder_of
from headgate_lab.data.mnist import NORMALISATION, mnist
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.network import Network, Optimization, accuracy
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.models.lenet import LeNet5
from headgate_lab.recipes.classification import half_cosine
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "checks" / "training_on.json"
SHARE, REACH, BATCH = 0.1, 0.5, 128
RATES: dict[Literal["sgd", "adam"], float] = {"sgd": 0.05, "adam": 2e-3}


class Curve(NamedTuple):
    """What a training was like: the loss and the seconds of every epoch, and where it ended."""

    losses: list[float]
    seconds: list[float]
    accuracy: float
    params: int


def trained(kind: Literal["sgd", "adam"], train_on: bool, train: Resident, test: Resident, epochs: int) -> Curve:
    """One training, from the same weights and on the same batches whatever `train_on`."""
    torch.manual_seed(0)
    model = LeNet5(torch.relu)
    full = sum(parameter.numel() for parameter in model.parameters())
    method = Budgeted(int(SHARE * full), reach=REACH, floor=1, train_on=train_on)
    example = train.normalised(train.images[:2], torch.float32)
    how = Optimization(kind, RATES[kind], 0.0, half_cosine)
    batches = Batches(train, BATCH, 0, pad=0, flip=False, dtype=torch.float32)
    training = SideBySide([Network(method.attach(model, example), method, batches, how, epochs, 0)], lambda *_: {})
    losses, seconds = [], []
    for _ in range(epochs):
        started = time.process_time()
        losses.append(float(training.epoch()[0]["loss"]))  # type: ignore[arg-type]
        seconds.append(time.process_time() - started)
    network = training.networks[0].model.eval()
    small = method.small(copy.deepcopy(network), example)
    return Curve(losses, seconds, accuracy(small, test), sum(parameter.numel() for parameter in small.parameters()))


def compared(gated: Curve, small: Curve) -> dict[str, Any]:
    """Both curves, how far they are apart, and what an epoch of each takes once the size is met."""
    late = slice(int(REACH * len(gated.losses)) + 1, None)
    pairs = zip(gated.losses, small.losses, strict=True)
    return {
        "losses": {"gated to the end": gated.losses, "small from half-way": small.losses},
        "apart": max(abs(one - other) / one for one, other in pairs),
        "late_epoch_s": {
            "gated": statistics.median(gated.seconds[late]),
            "small": statistics.median(small.seconds[late]),
        },
        "accuracy": {"gated": gated.accuracy, "small": small.accuracy},
        "params": {"gated": gated.params, "small": small.params},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains both ways by both optimizers and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_480)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--commit", help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args(arguments)
    make_folder_of(given.out, parser)
    torch.set_num_threads(1)
    start, stored = time.perf_counter(), mnist()
    train = Resident(stored.train_images[: given.images], stored.train_labels[: given.images], NORMALISATION)
    test = Resident(stored.test_images, stored.test_labels, NORMALISATION)
    found = {
        kind: compared(*(trained(kind, train_on, train, test, given.epochs) for train_on in (False, True)))
        for kind in RATES
    }
    apart = ", ".join(f"{one['apart']:.1e} ({kind})" for kind, one in found.items())
    faster = ", ".join(f"{one['late_epoch_s']['gated'] / one['late_epoch_s']['small']:.1f}" for one in found.values())
    write_record(
        given.out,
        recipe="training_on",
        config={"images": given.images, "epochs": given.epochs, "batch": BATCH, "share": SHARE, "reach": REACH},
        metrics=found,
        headline=f"LeNet-5 that goes on as the small network when its size is met, and LeNet-5 that keeps its closed "
        f"channels to the end, have losses that differ by {apart} of themselves at most in {given.epochs} epochs; the "
        f"small one's epochs are {faster} times as fast",
        duration_s=time.perf_counter() - start,
        device="cpu",
        commit=given.commit,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
