"""What is left of a network that learned in the paper's way, with its gates before BatchNorm? Three accuracies.

    PYTHONPATH=src python -m benchmarks.before_norm

VGG-19 at a quarter of its width learns CIFAR-10 as the paper's code has it (SGD, decay on offsets). Test accuracy with
its gates; compacted, where one channel of every gate passes on the constants that closed ones leave behind; and with
all that is closed cut out, these constants too. Writes a record to results/checks/.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import headgate as hg
from benchmarks.timing import make_folder_of
from headgate_lab.data.cifar import NORMALISATION, cifar10
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.network import Network, Optimization, accuracy
from headgate_lab.engine.side_by_side import SideBySide
from headgate_lab.methods.dam import in_the_paper_s_way
from headgate_lab.models.vgg import VGG
from headgate_lab.recipes.classification import in_steps
from headgate_lab.records import write_record

RECORD = Path(__file__).parents[1] / "results" / "checks" / "before_norm.json"
WIDTH, BATCH, LR, DECAY = 0.25, 128, 0.05, 1e-3


def trained(strength: float, train: Resident, epochs: int) -> nn.Module:
    """The network with its gates, at rest in the first tenth of the epochs."""
    torch.manual_seed(0)
    method, how = in_the_paper_s_way(strength, epochs // 10), Optimization("sgd", LR, DECAY, in_steps)
    model = method.attach(VGG(10, width=WIDTH), train.normalised(train.images[:2], torch.float32))
    batches = Batches(train, BATCH, 0, pad=4, flip=True, dtype=torch.float32)
    training = SideBySide([Network(model, method, batches, how, epochs, 0)], lambda *_: {})
    for epoch in range(epochs):
        print(f"epoch {epoch + 1}: {training.epoch()[0]}", flush=True)
    return training.networks[0].model.eval()


def without_constants(gated: nn.Module, example: Tensor) -> nn.Module:
    """All that is closed is gone, and what it left behind norms."""
    plain, keep = copy.deepcopy(gated), {name: gate.keep() for name, gate in hg.gates(gated).items()}
    hg.remove_gates_(plain)
    return hg.shrink(plain, hg.find_groups(plain, example), keep)


def size(model: nn.Module) -> int:
    """Its parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, cuts both ways, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_480)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--strength", type=float, default=0.04)
    parser.add_argument("--commit", help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args(arguments)
    make_folder_of(given.out, parser)
    torch.set_num_threads(1)
    start, stored = time.perf_counter(), cifar10()
    train = Resident(stored.train_images[: given.images], stored.train_labels[: given.images], NORMALISATION)
    test = Resident(stored.test_images, stored.test_labels, NORMALISATION)
    gated, example = trained(given.strength, train, given.epochs), test.normalised(test.images[:2], torch.float32)
    networks = {
        "with gates": gated,
        "compacted": hg.compact(gated, example),
        "without constants": without_constants(gated, example),
    }
    found = {name: {"accuracy": accuracy(network, test), "params": size(network)} for name, network in networks.items()}
    found["with gates"]["params"] = size(VGG(10, width=WIDTH))
    shares = {name: f"{one['accuracy']:.2f} %" for name, one in found.items()}
    write_record(
        given.out,
        recipe="before_norm",
        config={
            "network": "vgg19", "width": WIDTH, "images": given.images, "epochs": given.epochs, "batch": BATCH,
            "strength": given.strength, "lr": LR, "weight_decay": DECAY,
        },
        metrics={**found, "pruned_channels": 100 * (1 - hg.status(gated).open / hg.status(gated).total)},
        headline=f"VGG-19 at a quarter of its width, pruned in the paper's way, has {shares['with gates']} with its "
        f"gates, and {shares['compacted']} compacted from {found['with gates']['params']:,.0f} to "
        f"{found['compacted']['params']:,.0f} parameters; without the constants that closed channels leave behind "
        f"BatchNorm it would have {shares['without constants']} and {found['without constants']['params']:,.0f}",
        duration_s=time.perf_counter() - start,
        device="cpu",
        commit=given.commit,
    )  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
