"""What is said to stand in the paper stands there."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from headgate_lab.paper import PAPER, Number
from headgate_lab.recipes.catalog import EXPERIMENTS
from headgate_lab.report.runs import Runs

TEX = Path(__file__).parents[4] / "shared" / "paper" / "dam-neurips2021.tex"
TABLES = {
    "recommender": "tab:recommender",
    "permutation": "tab:permutation_invariance",
    "lenet": "tab:mnist_dam_lenet",
    "cifar": "tab:cifar",
    "cka": "tab:cka",
    "tinyimagenet": "tab:tinyimagenet",
}


def numbers_of_table(label: str) -> list[str]:
    """Every number in the cells of the table with this label, as printed, in reading order; first columns are names."""
    text = TEX.read_text(encoding="utf-8")
    begin = text.rindex(r"\begin{table}", 0, text.index(rf"\label{{{label}}}"))
    inside = text[begin : text.index(r"\end{table}", begin)]
    parts = re.findall(r"\\begin\{tabular\}\{\w+\}(.*?)\\end\{tabular\}", inside, re.DOTALL)
    cells = [cell for part in parts for row in part.split(r"\\") for cell in row.split("&")[1:]]
    plain = [re.sub(r"\\multicolumn\{\d\}\{c\}|\\[a-z]+|[{}$%\\]", " ", cell) for cell in cells]
    return [found for cell in plain for found in re.findall(r"(?<![\w.-])[\d,]*\.?\d+k?(?![\w-])", cell)]


def in_reading_order(experiment: str) -> list[str | float]:
    """What the table must hold: texts of numbers, values of the settings that are printed among them."""
    numbers = PAPER[experiment].numbers
    if experiment == "permutation":
        return [1, 2, 3, 4, 5, *(n.text.rstrip("%") for n in numbers if n.text)]
    if experiment == "cifar":  # thousands of parameters by the head of their column
        rows = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
        return [told for row in rows for told in (row[0].setting["strength"], *(n.text.rstrip("k") for n in row))]
    told: list[str | float] = []
    for place in dict.fromkeys(number.place for number in numbers):
        here = [number for number in numbers if number.place == place]
        if "strength" in here[0].setting:
            told += [number.setting["strength"] for number in here if number.metric == here[0].metric]
        told += [text for number in here for text in (number.text, number.spread) if text]
    return told


@pytest.mark.skipif(not TEX.exists(), reason="the paper's source is not here")
@pytest.mark.parametrize("experiment", TABLES)
def test_the_tables_are_transcribed_completely_and_exactly(experiment: str) -> None:
    theirs, ours = numbers_of_table(TABLES[experiment]), in_reading_order(experiment)
    assert len(theirs) == len(ours)
    for printed, told in zip(theirs, ours, strict=True):
        assert printed == told if isinstance(told, str) else float(printed) == told


@pytest.mark.parametrize("experiment", PAPER)
def test_no_number_is_there_twice(experiment: str) -> None:
    seen = [(number.metric, number.statistic, sorted(number.setting.items())) for number in PAPER[experiment].numbers]
    assert all(seen.count(one) == 1 for one in seen)


@pytest.mark.parametrize(
    ("experiment", "printed"),
    [("dimension", 12), ("recommender", 12), ("permutation", 18), ("lenet", 90), ("cifar", 128), ("cka", 12)]
    + [("tinyimagenet", 14)]
    + [(figure, 0) for figure in ("sensitivity", "link_prediction", "autoencoder", "curves", "stability")],
)
def test_how_many_numbers_are_printed(experiment: str, printed: int) -> None:
    assert sum(number.value is not None for number in PAPER[experiment].numbers) == printed


def one(experiment: str, metric: str, **setting: object) -> Number:
    (found,) = (
        number
        for number in PAPER[experiment].numbers
        if number.metric == metric and setting.items() <= dict(number.setting).items()
    )
    return found


def test_some_numbers_read_by_eye() -> None:
    assert one("recommender", "rmse", dataset="yahoo-music", method="igmc-dam").value == 19.0166
    assert one("recommender", "rmse", dataset="yahoo-music", method="igmc-dam").sd == 0.0444
    assert one("recommender", "dimension", dataset="douban", method="igmc-dam").value == 17
    assert one("lenet", "params", activation="sine", strength=0.6).value == 600
    assert one("lenet", "accuracy", activation="tanh", gradient_noise=0.05, strength=0.02).value == 98.69
    assert one("cifar", "params", network="vgg19", dataset="cifar100", strength=0.1).value == 6_190_000
    assert one("cifar", "pruned", network="preresnet110", dataset="cifar10", strength=2.0).value == 92.21
    assert one("cka", "cka_max", method="chipnet").value == 0.964
    assert one("tinyimagenet", "pruned_channels", strength=0.7).value == 38.71
    assert one("permutation", "pruned", seed=1).value == 63.40
    assert one("dimension", "dimension", problem="neural", factors=15).value == 15


@pytest.mark.parametrize("metric", ["accuracy", "pruned_channels", "pruned"])
def test_the_printed_spread_of_the_five_orders_is_that_of_the_printed_runs(metric: str) -> None:
    runs = [one("permutation", metric, seed=seed).value or 0.0 for seed in range(5)]
    (relative,) = (n for n in PAPER["permutation"].numbers if (n.metric, n.statistic) == (metric, "relative sd"))
    assert relative.value == pytest.approx(statistics.stdev(runs) / statistics.mean(runs), abs=6e-5)


@pytest.mark.parametrize("number", [n for n in PAPER["lenet"].numbers if n.metric == "params"], ids=lambda n: n.text)
def test_parameters_and_the_share_pruned_agree(number: Number) -> None:
    pruned = one("lenet", "pruned", **number.setting).value
    assert pruned is not None and number.value is not None
    assert number.value == pytest.approx(60_100 * (1 - pruned / 100), abs=200)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_printed_number_has_one_recipe(experiment: str) -> None:
    recipes = [Runs(type(r).__name__, r.setting, r.config(), ()) for r in EXPERIMENTS[experiment].recipes()]
    assert experiment in PAPER
    for number in PAPER[experiment].numbers:
        fitting = [recipe.setting for recipe in recipes if recipe.fits(number.setting)]
        # A figure's settings are ours to choose within what the text says.
        assert len(fitting) == 1 or (number.text is None and not fitting), (number, fitting)
