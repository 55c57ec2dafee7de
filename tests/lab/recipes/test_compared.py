"""Methods compared: each for a few steps, its stages timed, what is shared trained once, and resumed bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from headgate_lab.data.images import split
from headgate_lab.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from headgate_lab.engine.images import Batches
from headgate_lab.engine.job import InStages, Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, batches, run
from headgate_lab.engine.staged import Staged
from headgate_lab.engine.watch import Lines
from headgate_lab.methods.chip_masks import Chipped
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes import cifar, slimming
from headgate_lab.recipes.compared import Compared, MethodName, compared
from headgate_lab.recipes.preresnets import ShownPreResNet, shown
from headgate_lab.report.rows import rows
from tests.lab.recipes.few_images import few_images

CPU = torch.device("cpu")
FULL = sum(parameter.numel() for parameter in PreResNet(11).parameters())


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 8, 60)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(11, classes, width))


def shortened(recipe: Compared) -> Compared:
    """Six epochs in all."""
    parts = {
        "slimming": {"length": 4, "finetune": 2},
        "chipnet": {"length": 2, "prune": 2, "finetune": 2},
        "found": {"length": 3, "batch_size": 3},
    }
    changes: dict[str, Any] = {"batch_size": 6, **parts.get(recipe.method, {"length": 6})}
    return replace(recipe, prune_batch_size=3, lr=0.01, reach=0.9, **changes)


def way(method: MethodName, **much: Any) -> Compared:
    return shortened(compared(ShownPreResNet, "preresnet164", "cifar10", method, **much))


WAYS = {
    "paper": way("paper", strength=0.4),
    "ours": way("ours", params=FULL // 2),
    "narrower": way("narrower", params=FULL // 2),
    "found": way("found", params=FULL // 2),
    "slimming": way("slimming", ratio=0.4),
    "chipnet": way("chipnet", ratio=0.4),
}


def training(*ways: Compared, seeds: tuple[int, ...] = (0,)) -> Staged:
    started = ShownPreResNet.start([Job(one, seed) for seed in seeds for one in ways], CPU)
    assert isinstance(started, Staged) and isinstance(started, InStages)
    return started


def test_each_method_has_what_its_authors_chose() -> None:
    one = {recipe.method: recipe for recipe in shown("stability") if recipe.network == "preresnet164"}
    assert (one["chipnet"].weight_decay, one["chipnet"].prune_batch_size) == (1e-3, 32)
    assert (one["slimming"].weight_decay, one["slimming"].sparsity, one["slimming"].lr) == (1e-4, 1e-5, 0.1)
    assert one["paper"].pruning().cold_start == 6  # type: ignore[attr-defined]
    assert one["chipnet"].chipping(0).budget_weight == 30
    assert replace(one["chipnet"], ratio=0.1).chipping(0).budget_weight == 45
    pruning = one["chipnet"].optimization_while_pruning()
    assert (pruning.kind, pruning.lr, pruning.weight_decay, pruning.rate(4, 5)) == ("adamw", 1e-3, 1e-3, 1.0)


def test_network_slimming_has_as_many_epochs_as_its_authors_give_it() -> None:
    assert Job(slimming.recipes()[0], 0).name == "b1dd7da53418"
    for recipe in slimming.recipes():
        assert (recipe.length, recipe.finetune, recipe.batch_size) == (160, 160, 64)
        assert recipe.sparsity == (1e-4 if recipe.network == "vgg19" else 1e-5)


def test_stages_and_datasets_are_not_mixed() -> None:
    jobs = [Job(recipe, 0) for recipe in shown("curves")]
    told = ("network", "dataset", "search", "length", "prune", "finetune")
    for together in batches(jobs, 100):
        assert len({tuple(getattr(job.recipe, name) for name in told) for job in together}) == 1
    # PreResNet-164 on two datasets and PreResNet-20 on one: in one stage, in two of two kinds, or in three.
    assert len(batches(jobs, 100)) == 12


@pytest.mark.parametrize("method", WAYS)
def test_every_method_runs_and_is_recorded(method: str, tmp_path: Path) -> None:
    place = Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(WAYS[method], 0)], place, Lines()) == []
    (record,) = read_runs(tmp_path, "preresnets")
    end, epochs = record["metrics"]["final"], record["metrics"]["epochs"]
    assert {"train", "finish"} <= record["seconds"].keys()
    assert all(len(epochs[name]) == 6 for name in ("loss", "validation_loss", "validation_accuracy"))
    assert (end["loss"], end["validation_loss"]) == (epochs["loss"][-1], epochs["validation_loss"][-1])
    assert end["params"] < FULL or method == "paper"
    assert end["accuracy"] == pytest.approx(end["accuracy_before"], abs=1e-9)
    if method in ("slimming", "chipnet"):
        assert {"to finetune", "finetune"} <= record["seconds"].keys()
        assert end["pruned_channels"] == pytest.approx(60, abs=1.5)
        assert {"accuracy_uncut", "accuracy_cut"} <= end.keys()
    elif method == "found":
        assert {"search", "to train"} <= record["seconds"].keys()
        assert epochs["offset"][:3] != [1.0] * 3 and epochs["offset"][3:] == [None] * 3
    else:
        assert set(record["seconds"]) == {"train", "finish"}
    if method == "chipnet":
        assert {"to prune", "prune"} <= record["seconds"].keys()
        assert [value is None for value in epochs["hard_accuracy"]] == [True, True, False, False, True, True]
    assert {"paper": "offset", "ours": "offset", "slimming": "scale", "chipnet": "mask"}.get(method, "loss") in epochs
    table = rows("curves", [record])
    assert sum(row.n for row in table if row.metric == "accuracy") == 1


def test_what_ratios_share_is_trained_once() -> None:
    together = training(*(replace(WAYS["slimming"], ratio=ratio) for ratio in (0.3, 1.0)), seeds=(0, 1))
    assert together.side_by_side == 2
    first = together.epoch()
    assert first[0] == first[1] != first[2] == first[3]
    for _ in range(5):
        together.epoch()
    sizes = [cast(int, end["params"]) for end in together.finish()]
    assert sizes[0] < sizes[1] == FULL and sizes[2] < sizes[3] == FULL
    assert together.side_by_side == 4


def test_how_many_networks_there_were_is_recorded(tmp_path: Path) -> None:
    jobs = [Job(replace(WAYS["chipnet"], ratio=ratio), 0) for ratio in (0.3, 1.0)]
    assert run(jobs, Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"}), Lines(), together=2) == []
    for record in read_runs(tmp_path, "preresnets"):
        assert (record["together"], record["networks"]) == (2, {"train": 1, "prune": 2, "finetune": 2})
        assert record["metrics"]["final"]["params"] < FULL or record["config"]["ratio"] == 1


@pytest.mark.filterwarnings("ignore:Budget. after")
@pytest.mark.parametrize("method", WAYS)
def test_a_network_that_diverges_does_not_stop_the_others(method: str, tmp_path: Path) -> None:
    jobs = [Job(WAYS[method], 0), Job(replace(WAYS[method], lr=1e25), 0)]
    place = Place(tmp_path, CPU, {"torch": "t", "device": "d", "commit": "c"})
    (failure,) = run(jobs, place, Lines(), together=2)
    assert failure.job == jobs[1] and "became nan in epoch 1" in failure.reason
    (record,) = read_runs(tmp_path, "preresnets")
    assert record["config"]["lr"] == WAYS[method].lr and record["metrics"]["final"]["dead"] == 0


@pytest.mark.parametrize(
    ("method", "interrupted"),
    [
        ("chipnet", (1, 3, 4, 5, 6)),
        ("slimming", (2, 4, 5, 6)),
        ("found", (2, 3, 5)),
        ("ours", (5, 6)),
        ("paper", (6,)),
    ],
)
def test_a_training_goes_on_bit_by_bit(method: str, interrupted: tuple[int, ...], tmp_path: Path) -> None:
    whole, broken = training(WAYS[method]), training(WAYS[method])
    expected, found = [whole.epoch() for _ in range(6)], []
    for epoch in range(7):
        if epoch in interrupted:
            save_checkpoint(tmp_path / "unfinished.pt", [], broken, Progress())
            broken = training(WAYS[method])
            load_checkpoint(tmp_path / "unfinished.pt", broken, CPU)
        if epoch < 6:
            found.append(broken.epoch())
    assert found == expected
    assert broken.finish() == whole.finish()


def test_a_job_ends_the_same_alone_and_beside_others() -> None:
    one, other = (replace(WAYS["chipnet"], ratio=ratio) for ratio in (0.3, 0.6))
    alone, together = training(other), training(one, other)
    assert [alone.epoch()[0] for _ in range(6)] == [together.epoch()[1] for _ in range(6)]
    assert alone.finish() == together.finish()[1:]


def test_chipnet_is_cut_where_its_cut_network_was_best() -> None:
    one = training(WAYS["chipnet"])
    states, scores = [], []
    for _ in range(4):
        scores.append(one.epoch()[0].get("hard_accuracy"))
        model = one.networks.networks[0].model
        states.append(model.psi.detach().clone() if isinstance(model, Chipped) else None)
    best = 3 if cast(float, scores[3]) > cast(float, scores[2]) else 2
    one.turn()
    assert torch.equal(one.at_forks[1][0]["psi"], states[best])


def test_pruning_has_its_own_batches_optimizer_and_schedule() -> None:
    one = training(WAYS["chipnet"])
    for _ in range(3):
        one.epoch()
    network = one.networks.networks[0]
    assert network.batches.size == 3 and network.batches.steps == 18
    assert isinstance(network.optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in network.optimizer.param_groups] == [1e-3, 0.0]
    model = network.model
    assert isinstance(model, Chipped)
    assert (model.slope.item(), model.crispness.item()) == pytest.approx((1.18, 2**5.5))
    assert model.rounding.item() == pytest.approx(10 + 5 * 20 / 36 * 18)
    one.epoch()
    assert (model.slope.item(), model.crispness.item()) == pytest.approx((1.38, 256))


def test_what_is_zeroed_instead_of_removed_stays_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(20, classes, width))
    one = training(replace(WAYS["slimming"], ratio=0.2))
    for _ in range(4):
        one.epoch()
    one.turn()
    norm = cast(PreResNet, one.networks.networks[0].model).bn
    closed, before = norm.weight == 0, norm.weight.detach().clone()
    assert 0 < closed.sum() < len(closed)
    one.epoch()
    assert not norm.weight[closed].any() and not norm.bias[closed].any()
    assert not torch.equal(norm.weight, before)


def test_images_set_aside_are_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    one = training(WAYS["narrower"])
    learned = one.networks.networks[0].batches.data
    parts, stored = split(60, 6), cifar._images("cifar10")
    assert torch.equal(learned.images, stored.train_images[parts.train])
    assert isinstance(one.networks.networks[0].batches, Batches)
    looked_at = cast(Any, one._look).__self__.validation
    assert torch.equal(looked_at.labels, stored.train_labels[parts.validation])
