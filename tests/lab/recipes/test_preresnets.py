"""One training serves every experiment that shows its network: what is recorded of it, and who finds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate_lab.cli import main
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import Place, batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.outline import Outline
from headgate_lab.paper import PAPER
from headgate_lab.paper.preresnets import LITTLE, RATIOS, SHOWN, STRENGTHS
from headgate_lab.recipes import cifar
from headgate_lab.recipes.catalog import EXPERIMENTS
from headgate_lab.recipes.compared import compared
from headgate_lab.recipes.preresnets import LAYERS, ShownPreResNet, shown
from headgate_lab.report.figures import FIGURES, picture
from headgate_lab.report.rows import rows
from headgate_lab.report.runs import records_of
from tests.lab.recipes.few_images import few_images

FULL = sum(parameter.numel() for parameter in PreResNet(20).parameters())
# Appendix D.
PRINTED: dict[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "paper"): (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75),
    ("cifar10", "chipnet"): (0.1, 0.2, 0.4, 0.6, 1.0),
    ("cifar10", "slimming"): (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
    ("cifar100", "paper"): (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    ("cifar100", "chipnet"): (0.2, 0.4, 0.6, 1.0),
    ("cifar100", "slimming"): (0.2, 0.3, 0.4, 0.5, 0.6, 1.0),
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = few_images(3, 8, 60)
    monkeypatch.setattr(cifar, "_images", lambda dataset: stored)
    monkeypatch.setitem(cifar.NETWORKS, "preresnet164", lambda classes, width: PreResNet(20, classes, width))
    monkeypatch.setitem(LAYERS, "preresnet164", LAYERS[LITTLE])


def short(fields: dict[str, Any]) -> dict[str, Any]:
    """The same at a toy's size, for a few epochs."""
    stages = {"slimming": {"length": 3, "finetune": 1}, "chipnet": {"length": 2, "prune": 1, "finetune": 1}}
    parts: dict[str, int] = stages.get(fields["method"], {"length": 6})
    size = {"params": FULL // 4} if fields.get("params") else {}
    return {**fields, **size, **parts, "batch_size": 6, "prune_batch_size": 6, "reach": 0.9, "lr": 0.01}


def jobs(experiment: str) -> list[Job]:
    found = EXPERIMENTS[experiment]
    return [Job(recipe, seed) for seed in range(found.seeds) for recipe in found.recipes()]


def test_names_stay() -> None:
    names = [Job(recipe, 0).name for recipe in shown("curves")]
    assert names[::21] == ["d070e6a063c1", "067a3514f36a", "ca08ca9c3021", "15d493002f19"]
    assert {"435c1ce31cd0", "0b1f043ffd65", "6b1167e3e321"} <= set(names)
    assert Job(shown("permutation")[0], 1).name == "fa3767fae970"


@pytest.mark.parametrize("experiment", SHOWN)
def test_all_settings_are_there_once_with_the_same_epochs(experiment: str) -> None:
    found = shown(experiment)
    assert len({recipe.setting for recipe in found}) == len(found)
    little = 6 if experiment == "permutation" else 20
    after_search = {(recipe.network, recipe.epochs - recipe.search) for recipe in found}
    assert after_search <= {("preresnet164", 60), (LITTLE, little)}
    for number in PAPER[experiment].numbers:
        wanted = {name: value for name, value in number.setting.items() if name != "seed"}
        assert sum(wanted.items() <= recipe.config().items() for recipe in found) == 1


def test_strengths_and_ratios_are_the_paper_s_over_its_whole_range() -> None:
    ours = {(dataset, "paper"): strengths for dataset, strengths in STRENGTHS.items()} | RATIOS
    assert ours.keys() == PRINTED.keys()
    for where, printed in PRINTED.items():
        assert set(ours[where]) <= set(printed) and len(ours[where]) == min(5, len(printed))
        assert (min(ours[where]), max(ours[where])) == (min(printed), max(printed))
        assert ours[where][0] == 0.4


def test_what_one_experiment_has_trained_is_finished_in_the_others() -> None:
    curves = {job.name for job in jobs("curves")}
    assert {job.name for experiment in ("stability", "cka") for job in jobs(experiment)} <= curves
    there = [str(job) for job in jobs("permutation") if job.name in curves]
    assert there == [
        "preresnets (preresnet164 cifar10 paper strength 0.4), seed 0",
        "preresnets (preresnet164 cifar10 narrower 615,000 parameters), seed 0",
    ]
    on_cifar10 = {job.name for one in SHOWN for job in jobs(one) if "preresnet164 cifar10 " in job.recipe.setting}
    assert len(on_cifar10) == 53


def test_networks_without_stages_fill_two_trainings_of_a_dataset() -> None:
    found = batches([Job(recipe, 0) for recipe in shown("curves")], 8)
    assert [len(together) for together in found] == [8, 8, 5, 5, 5, 8, 8, 5, 4, 5, 7, 3, 3, 2]
    first = {job.recipe.config()["method"] for job in found[0]}
    assert first == {"ours", "narrower", "paper"}


@pytest.mark.usefixtures("little")
def test_all_that_any_experiment_tells_is_recorded_of_every_method(tmp_path: Path) -> None:
    recipes = [compared(ShownPreResNet, **short(fields)) for fields in SHOWN["cka"][:6]]
    place = Place(tmp_path, torch.device("cpu"), {"torch": "t", "device": "d", "commit": "c"})
    assert run([Job(recipe, 0) for recipe in recipes], place, Lines(), together=4) == []
    records = read_runs(tmp_path, "preresnets")
    assert len(records) == 6
    for record in records:
        final = record["metrics"]["final"]
        assert 0 < final["cka_mean"] <= final["cka_max"] <= 1 and 0 < final["rbf_cka_mean"] < 1
        assert final["features"] == len(final["cka"]) <= 16
        found = Outline.from_json(final["layers"], final["streams"])
        assert len(found.layers) == final["layers_left"] + final["layers_gone"] == 23
        assert len(found.streams) == 3
        whole = all(layer.after == layer.before for layer in found.layers)
        assert whole == (final["params"] == FULL) and (whole or not record["setting"].endswith("dense"))
        # Streams are at least as wide as what is written into them.
        widths = {name: after for name, _, after in found.streams}
        assert all(layer.after <= widths[layer.stream] for layer in found.layers if layer.stream)
    printed = [row.paper for row in rows("cka", records) if row.metric == "cka_mean" and row.n]
    assert printed == [0.273, 0.229, 0.328, 0.295, None, None]
    for experiment in ("curves", "stability", "cka", "architecture"):
        assert picture(experiment, records).startswith(b"\x89PNG")


@pytest.mark.usefixtures("little")
def test_every_experiment_goes_on_with_what_the_others_have_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its table and its figure are made of the records that they share."""
    dense, pruned, _, _, ours, _ = map(short, SHOWN["cka"][:6])
    tiny = {"curves": (ours, pruned), "stability": (pruned,), "cka": (dense, pruned), "architecture": (ours,)}
    tiny["permutation"] = ({**pruned, "order": "random"}, pruned)
    for experiment in SHOWN:
        monkeypatch.setitem(SHOWN, experiment, tiny[experiment])
    out = ["--out", str(tmp_path)]

    def runs(experiment: str) -> str:
        assert main(["run", experiment, "--device", "cpu", "--commit", "c", "--seeds", "1", *out]) == 0
        return capsys.readouterr().out

    assert "finished already" not in runs("stability")
    assert "1 of 2 runs are finished already" in runs("curves")
    assert "1 of 1 runs are finished already" in runs("architecture")
    assert "1 of 2 runs are finished already" in runs("cka")
    assert "1 of 2 runs are finished already" in runs("permutation")
    assert [path.name for path in tmp_path.iterdir()] == ["preresnets"]
    assert len(list((tmp_path / "preresnets").iterdir())) == 4
    assert main(["list", *out]) == 0
    listed = dict(re.findall(r"^ *(\w+) .* (\d+/\d+) ", capsys.readouterr().out, re.MULTILINE))
    assert {name: listed[name] for name in SHOWN} == {
        "curves": "2/2", "stability": "1/1", "cka": "2/2", "architecture": "1/1", "permutation": "2/10",
    }  # fmt: skip
    for experiment, networks in tiny.items():
        configs = [record["config"] for record in records_of(tmp_path, experiment)]
        assert len(configs) == len(networks)
        assert all(any(fields.items() <= config.items() for config in configs) for fields in networks)
        assert main(["table", experiment, *out]) == 0
        assert f"{len(networks)} run{'s' * (len(networks) > 1)} of 1 seed" in capsys.readouterr().out
        if experiment in FIGURES:
            to = tmp_path / f"{experiment}.png"
            assert main(["figure", experiment, "--to", str(to), *out]) == 0 and to.exists()
            capsys.readouterr()
