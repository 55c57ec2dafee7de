"""Figures show what records say; what they lack is said."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.image import imread

from headgate_lab.engine.record import read_runs
from headgate_lab.paper import PAPER
from headgate_lab.paper.preresnets import SHOWN
from headgate_lab.report.figures import FIGURES, picture
from headgate_lab.report.figures.colors import COLORS, SPARE, colors
from headgate_lab.report.runs import ReportError, as_shown, by_recipe
from tests.lab.report.synthetic import (
    LINEAR_5,
    write,
    write_autoencoder,
    write_dimension,
    write_lenet,
    write_sensitivity,
)


def write_cka(out: Path) -> None:
    """Two networks, of which one has nothing left to compare."""
    two, three = [[1.0, 0.2], [0.2, 1.0]], [[1.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.0]]
    write(out, "cka", {"method": "paper", "params": None}, 0, {"cka": two, "rbf_cka": three})
    write(out, "cka", {"method": "ours", "params": 5}, 0, {"cka": three, "rbf_cka": None})
    write(out, "cka", {"method": "narrower", "params": 5}, 0, {"cka": None, "rbf_cka": None})


def write_architecture(out: Path) -> None:
    """Of one network the second block is gone; the other died and has no layers."""
    layers = [["a.x", 8, 5, None], ["a.y", 16, 9, "a.y"], ["b.x", 8, 0, None], ["b.y", 16, 0, "a.y"]]
    write(out, "architecture", {"strength": 1.0}, 0, {"layers": layers, "streams": [["a.y", 16, 12]]})
    write(out, "architecture", {"strength": 9.0}, 0, {"params": None})


WRITERS: dict[str, Callable[[Path], None]] = {
    "cka": write_cka,
    "architecture": write_architecture,
    "dimension": write_dimension,
    "sensitivity": write_sensitivity,
    "autoencoder": write_autoencoder,
    "lenet": write_lenet,
}


def drawn(out: Path, experiment: str) -> Any:
    return FIGURES[experiment](by_recipe(read_runs(out, experiment)))


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """The labelled points of a panel: means across and upwards."""
    found = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        line = handle[0] if hasattr(handle, "__getitem__") else handle
        found[label] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


@pytest.mark.parametrize("experiment", WRITERS)
def test_a_figure_is_a_picture(experiment: str, tmp_path: Path) -> None:
    WRITERS[experiment](tmp_path)
    image = imread(io.BytesIO(picture(experiment, read_runs(tmp_path, experiment))))
    assert image.shape[2] == 4 and image.shape[1] > 800
    assert len(np.unique(image.reshape(-1, 4), axis=0)) > 10


def test_every_figure_belongs_to_the_paper() -> None:
    assert FIGURES.keys() <= PAPER.keys()


def test_dimension_per_step_with_its_spread_and_the_truth(tmp_path: Path) -> None:
    write_dimension(tmp_path)
    panels = drawn(tmp_path, "dimension").axes
    assert [axes.get_title() for axes in panels] == [
        f"{problem}, settings: {settings}"
        for settings in ("paper", "ours")
        for problem in ("linear", "quadratic", "neural")
    ]
    steps, mean = lines(panels[0])["5 factors (2 runs)"]
    assert steps == list(range(1, 11))
    assert (mean[0], mean[-1]) == (50.0, 5.5)
    truths = [line.get_ydata()[0] for line in panels[0].lines if line.get_linestyle() == ":"]
    assert truths == [5, 10]
    band = panels[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(5.5 - 0.5**0.5)


def test_steps_are_spread_evenly_over_the_epochs(tmp_path: Path) -> None:
    epochs: dict[str, list[Any]] = {"dimension": [50, None, 5]}
    write(tmp_path, "dimension", {**LINEAR_5, "steps": 300}, 0, {"dimension": 5}, epochs)
    panels = drawn(tmp_path, "dimension").axes
    steps, mean = lines(panels[0])["5 factors (1 run)"]
    assert steps == [100, 200, 300] and np.isnan(mean[1])
    assert [text.get_text() for text in panels[1].texts] == ["no records"]


def test_heat_maps_average_seeds_and_leave_failures_out(tmp_path: Path) -> None:
    write_sensitivity(tmp_path)
    rates, strengths = [0.001, 0.01, 0.1], [0.01, 0.1]
    config = {"problem": "linear", "map": "strength", "rates": rates, "values": strengths, "factors": 5}
    again = {"dimension": [[48, 20], [5, 5], [5, 5]], "loss": [[1.0, 0.5], [1e-6, 0.0], [1e-3, 1.0]]}
    write(tmp_path, "sensitivity", config, 1, again)
    figure = drawn(tmp_path, "sensitivity")
    first = figure.axes[0].images[0].get_array()
    assert first[0, 0] == 49 and first.mask.tolist() == [[False, False], [False, False], [False, True]]
    loss = figure.axes[1].images[0]
    assert loss.norm.vmin == 1e-6 and loss.norm(0.0) == 0.0  # a loss of zero is the best, not a failure


def test_a_map_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = {"problem": "linear", "map": "strength", "rates": [0.1], "values": [1.0, 2.0]}
    write(tmp_path, "sensitivity", config, 0, {"dimension": [[5, 5, 5]], "loss": [[1.0]]})
    with pytest.raises(ReportError, match="a line a learning rate and a column a strength, 1 × 2, not 1 × 3"):
        drawn(tmp_path, "sensitivity")


def test_a_map_without_axes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "sensitivity", {"problem": "linear", "map": "offset"}, 0, {"dimension": [[5]]})
    with pytest.raises(ReportError, match="lack rates"):
        drawn(tmp_path, "sensitivity")


def test_the_autoencoder_has_every_run_and_the_means(tmp_path: Path) -> None:
    write_autoencoder(tmp_path)
    mse, f1, shrinking = drawn(tmp_path, "autoencoder").axes
    assert lines(mse)["DAM"][0] == [9.0, 19.0, 29.0]
    assert lines(mse)["DAM"][1] == pytest.approx([0.07, 0.06, 0.05])
    # The run without a score is left out of the scores only.
    assert [len(axes.collections[0].get_offsets()) for axes in (mse, f1)] == [9, 8]
    assert lines(shrinking)["L1"] == ([0.01, 1.0, 10.0], [29.0, 19.0, 9.0])


def test_lenet_has_the_printed_curve_and_the_narrower_control(tmp_path: Path) -> None:
    write_lenet(tmp_path)
    panels = drawn(tmp_path, "lenet").axes
    assert panels[0].get_title() == "lenet5, tanh"
    accuracy, pruned, size = map(lines, panels)
    assert accuracy["ours"] == ([0.0, 0.1], [98.5, 98.5])
    printed = "the paper's method: as printed"
    assert accuracy[printed][0] == [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]
    assert pruned[printed][1][-1] == 98.90
    assert size[printed][0][0] == 700.0
    assert size["narrower"] == ([4100.0], [97.0])
    assert "narrower" not in accuracy


def test_lenet_has_no_empty_panels(tmp_path: Path) -> None:
    """A variant of which no network has a strength has nothing to show against strengths."""
    write_lenet(tmp_path)
    config = {"network": "caffe", "activation": "relu", "strength": None, "method": "ours", "params": 10}
    write(tmp_path, "lenet", config, 0, {"accuracy": 99.0, "params": 10, "pruned": 50.0})
    panels = drawn(tmp_path, "lenet").axes
    assert [axes.get_title() for axes in panels] == ["caffe, relu"] + 3 * ["lenet5, tanh"]
    assert panels[0].get_xlabel() == "parameters"
    assert all(axes.has_data() and not axes.texts for axes in panels)


def test_a_line_joins_recipes_of_one_length_and_one_kind(tmp_path: Path) -> None:
    common = {"network": "net", "activation": "relu", "method": "ours"}
    for length, strength, params, accuracy in (
        (60, None, 10, 98.0),
        (60, None, 20, 98.5),
        (150, None, 10, 98.2),
        (150, None, 20, 98.7),
        (60, 0.1, 15, 98.1),
    ):
        config = {**common, "length": length, "strength": strength, "params": None if strength else params}
        write(tmp_path, "lenet", config, 0, {"accuracy": accuracy, "params": params, "pruned": 50.0})
    against_strength, _, size = drawn(tmp_path, "lenet").axes
    assert lines(size) == {
        "ours, 60 epochs, to a size": ([10, 20], [98.0, 98.5]),
        "ours, 150 epochs, to a size": ([10, 20], [98.2, 98.7]),
        "ours, 60 epochs, by strength": ([15], [98.1]),
    }
    assert list(lines(against_strength)) == ["ours"]
    drawn_as = [(one.lines[0].get_marker(), one.lines[0].get_linestyle()) for one in size.containers]
    assert len(set(drawn_as)) == 3 and len({one.lines[0].get_color() for one in size.containers}) == 1


def test_no_accuracy_is_beyond_100(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((99.9, 11.0)):
        config = {"network": "net", "activation": "relu", "method": "ours", "strength": 0.1}
        write(tmp_path, "lenet", config, seed, {"accuracy": accuracy, "params": 10, "pruned": 50.0})
    for axes in drawn(tmp_path, "lenet").axes:
        if axes.get_ylabel() == "test accuracy (%)":
            assert axes.get_ylim()[0] >= 0 and axes.get_ylim()[1] <= 100


def test_no_line_has_another_method_s_colour() -> None:
    keys = [("narrower", None), ("gates", "index"), ("one-shot", None), ("ours", "index"), ("dense", None)]
    found = colors(keys)
    assert found["narrower", None] == COLORS["narrower"] and len(set(found.values())) == len(keys)
    own = {to_rgba(color) for color in COLORS.values()}
    assert len({to_rgba(color) for color in SPARE} | own) == len(SPARE) + len(COLORS)
    with pytest.raises(ReportError, match="11 lines have no colour of their own"):
        colors([(str(number),) for number in range(11)])


@pytest.mark.parametrize(
    ("experiment", "x", "y", "named"),
    [
        ("cifar", "params", "accuracy_before", "net, "),
        ("tinyimagenet", "pruned_channels", "accuracy", ""),
    ],
)
def test_one_metric_against_another(experiment: str, x: str, y: str, named: str, tmp_path: Path) -> None:
    for dataset in ("one", "two"):
        for strength in (0.1, 0.5):
            config = {"network": "net", "dataset": dataset, "method": "ours", "strength": strength}
            write(tmp_path, experiment, config, 0, {x: 100 * strength, y: 90 - strength})
    panels = drawn(tmp_path, experiment).axes
    assert [axes.get_title() for axes in panels] == [f"{named}one", f"{named}two"]
    ((across, upwards),) = lines(panels[0]).values()
    assert (across, upwards) == ([10.0, 50.0], [89.9, 89.5])


def test_every_network_has_a_panel_and_one_for_shares_of_its_work(tmp_path: Path) -> None:
    for network, method, macs, length in (
        ("counted", "ours", 0.5, 100),
        ("counted", "narrower", None, 100),
        ("counted", "narrower", None, 160),
        ("vgg19", "ours", None, 160),
        ("vgg19", "found", None, 160),
    ):
        config = {"network": network, "dataset": "cifar10", "method": method, "macs": macs, "length": length}
        write(tmp_path, "cifar", config, 0, {"params": 10, "macs": 1000, "accuracy": 9.0, "accuracy_before": 90.0})
    panels = drawn(tmp_path, "cifar").axes
    assert [(axes.get_title(), axes.get_xlabel()) for axes in panels] == [
        ("counted, cifar10", "multiply-accumulates"),
        ("counted, cifar10", "parameters"),
        ("vgg19, cifar10", "parameters"),
    ]
    work, size, other = map(lines, panels)
    assert size == {"narrower": ([10], [90])}
    assert work == {"ours": ([1000], [90]), "narrower": ([1000], [90])}
    # What the paper prints of a network stands beside it, also where nobody has run the paper's method.
    printed = "the paper's method: as printed"
    assert set(other) == {"ours", "found", printed}
    assert other[printed] == ([264_000, 1_627_000], [90.92, 93.39])
    colors = [
        {container.get_label(): container.lines[0].get_color() for container in axes.containers} for axes in panels
    ]
    assert colors[0]["narrower"] == colors[1]["narrower"] and colors[0]["ours"] == colors[2]["ours"]
    assert len({color for panel in colors for color in panel.values()}) == 4


def test_controls_stand_beside_every_rate_of_their_network(tmp_path: Path) -> None:
    for network, method, rate, params in (
        ("one", "gates", {}, 10),
        ("one", "gates", {"tail_lr": 0.02}, 11),
        ("one", "narrower", {}, 12),
        ("two", "narrower", {}, 13),
    ):
        config = {"network": network, "method": method, "order": None, **rate}
        write(tmp_path, "pretrained", config, 0, {"params": params, "accuracy": 90.0})
    panels = {axes.get_title(): lines(axes) for axes in drawn(tmp_path, "pretrained").axes}
    control = {"narrower": ([12], [90])}
    assert panels == {
        "one": {"gates": ([10], [90]), **control},
        "one, tail lr 0.02": {"gates": ([11], [90]), **control},
        "two": {"narrower": ([13], [90])},
    }


def test_strengths_at_equal_distances_and_the_dead_crossed_out(tmp_path: Path) -> None:
    for method, strength, final in (
        ("ours", 0.0, {"accuracy": 90.0, "pruned": 0.0, "dead": 0}),
        ("ours", 5.0, {"accuracy": 80.0, "pruned": 75.0, "dead": 0}),
        ("naive", 0.1, {"accuracy": 70.0, "pruned": 50.0, "dead": 0}),
        ("naive", 5.0, {"accuracy": 10.0, "dead": 1}),
    ):
        config = {"network": "net", "optimizer": "sgd", "method": method, "strength": strength}
        write(tmp_path, "sweep", config, 0, final)
    other = {"network": "other", "optimizer": "adam", "method": "ours", "strength": 0.0}
    write(tmp_path, "sweep", other, 0, {"explained": 1.0, "dead": 0})
    panels = drawn(tmp_path, "sweep").axes
    assert [axes.get_title() for axes in panels[::2]] == ["net, adam", "net, sgd", "other, adam", "other, sgd"]
    result, size = panels[2:4]
    assert lines(result) == {"ours": ([0, 2], [90, 80]), "naive": ([1, 2], [70, 10])}
    assert [text.get_text() for text in result.get_xticklabels()] == ["0", "0.1", "5"]
    assert [line.get_xydata().tolist() for line in result.lines if line.get_marker() == "x"] == [[[2, 10]]]
    assert lines(size) == {"ours": ([0, 2], [100, 25]), "naive": ([1], [50])}


def test_changes_of_a_budget_stand_below_the_default(tmp_path: Path) -> None:
    for bake, seed, accuracy in ((False, 0, 60.0), (True, 0, 62.0), (True, 1, 64.0)):
        setting = f"net data 9,000 parameters, {'as by default' if bake else 'bake False'}"
        config = {"network": "net", "dataset": "data", "params": 9_000, "bake": bake}
        write(tmp_path, "budget", config, seed, {"accuracy": accuracy}, setting=setting)
    (axes,) = drawn(tmp_path, "budget").axes
    assert axes.get_title() == "net, data\n9,000 parameters"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["as by default", "bake False"]
    assert [bar.lines[0].get_xydata().tolist() for bar in axes.containers] == [[[63.0, 0.0]], [[60.0, 1.0]]]


def test_a_point_of_accuracy_is_as_long_in_every_panel_of_a_budget(tmp_path: Path) -> None:
    for params, bake, accuracy in ((1, True, 90.0), (1, False, 90.03), (2, True, 60.0), (2, False, 67.0)):
        setting = f"net data {params} parameters, {'as by default' if bake else 'bake False'}"
        config = {"network": "net", "dataset": "data", "params": params, "bake": bake}
        write(tmp_path, "budget", config, 0, {"accuracy": accuracy}, setting=setting)
    little, much = drawn(tmp_path, "budget").axes
    spans = [right - left for left, right in (little.get_xlim(), much.get_xlim())]
    assert spans[0] == pytest.approx(spans[1]) and spans[0] >= 7
    assert fmean(little.get_xlim()) == pytest.approx(90.015)


def test_link_prediction_has_a_star_where_validation_chooses_and_gains_by_seed(tmp_path: Path) -> None:
    for seed in range(2):
        for width, hidden, auc in ((4, 8, 0.8), (8, 16, 0.9), (7, 32, 0.65)):
            config = {"dataset": "cora", "method": "gae", "width": width, "strength": 0.0, "hidden": hidden}
            final = {"dimension": width, "auc": auc, "ap": auc - 0.1, "validation_auc": auc}
            write(tmp_path, "link_prediction", config, seed, final)
        for strength, dimension, auc, validation in ((0.1, 6, 0.7, 0.9), (1.0, 3, 0.85, 0.8)):
            config = {"dataset": "cora", "method": "gae-dam", "width": 16, "strength": strength, "hidden": 32}
            final = {"dimension": dimension + seed, "auc": auc, "ap": auc, "validation_auc": validation}
            write(tmp_path, "link_prediction", config, seed, final)
    auc, ap, gain = drawn(tmp_path, "link_prediction").axes
    assert lines(auc)["GAE"][0] == [4.0, 8.0] and lines(auc)["GAE"][1] == pytest.approx([0.8, 0.9])
    assert lines(ap)["GAE"][1] == pytest.approx([0.7, 0.8])
    assert lines(auc)["GAE, 32 hidden units"][0] == [7.0]
    assert lines(auc)["GAE-DAM from 16"][0] == [3.5, 6.5]
    assert lines(auc)["GAE-DAM from 16"][1] == pytest.approx([0.85, 0.7])
    stars = [(line.get_xdata()[0], line.get_ydata()[0]) for line in auc.lines if line.get_marker() == "*"]
    assert stars == [(6.5, pytest.approx(0.7))]  # not the better one in the test
    # Only the run of seed 1 that ended with 7 channels has a plain twin.
    ((name, (dimensions, differences)),) = lines(gain).items()
    assert (name, dimensions) == ("GAE-DAM from 16", [7.0]) and differences == pytest.approx([0.05])
    assert all(axes.get_xscale() == "log" and axes.get_legend() is None for axes in (auc, ap, gain))


def test_gains_of_few_runs_are_left_out_and_splits_kept_apart(tmp_path: Path) -> None:
    common = {"dataset": "cora", "hidden": 32}
    for seed in range(5):
        for split, auc in ("2021", 0.8), ("today", 0.6):
            plain = {**common, "method": "gae", "width": 6, "strength": 0.0, "split": split}
            write(tmp_path, "link_prediction", plain, seed, {"dimension": 6, "auc": auc, "ap": auc})
        for strength, fitting in ((0.1, 3), (1.0, 2)):
            config = {**common, "method": "gae-dam", "width": 16, "strength": strength, "split": "2021"}
            final = {"dimension": 6 if seed < fitting else 9, "auc": 0.9, "ap": 0.9}
            write(tmp_path, "link_prediction", config, seed, final)
    figure = drawn(tmp_path, "link_prediction")
    auc, _, gain = figure.axes
    assert set(lines(auc)) == {"GAE, 32 hidden units", "GAE, 32 hidden units, split of today", "GAE-DAM from 16"}
    # Three runs of five have a twin at strength 0.1, two at strength 1.
    ((_, (dimensions, differences)),) = lines(gain).items()
    assert dimensions == [6.0] and differences == pytest.approx([0.1])
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert explained == [*lines(auc), "strength chosen by validation"]


def test_matrices_of_likeness_stand_side_by_side(tmp_path: Path) -> None:
    write_cka(tmp_path)
    figure = drawn(tmp_path, "cka")
    shown = [axes.images[0].get_array().tolist() for axes in figure.axes if axes.images]
    assert [len(matrix) for matrix in shown] == [3, 2, 3]
    assert shown[1] == [[1.0, 0.2], [0.2, 1.0]]
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["ours 5\n3 features", "paper None\n2 features", "paper None\n3 features"]
    assert sum(text.get_text() == "nothing to compare" for axes in figure.axes for text in axes.texts) == 1


def test_an_architecture_is_drawn_for_every_network_that_lives(tmp_path: Path) -> None:
    write_architecture(tmp_path)
    (axes,) = drawn(tmp_path, "architecture").axes
    assert [bar.get_height() for bar in axes.containers[0]] == [8, 16, 8, 16]
    assert [bar.get_height() for bar in axes.containers[1]] == [5, 0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a.x", "a.y", "b.x", "b.y"]


def test_losses_of_every_epoch_and_what_moves(tmp_path: Path) -> None:
    epochs: dict[str, list[Any]] = {"loss": [3.0, 2.0], "validation_loss": [4.0, 3.0], "offset": [1.0, 0.0]}
    write(tmp_path, "stability", {"method": "paper"}, 0, {}, epochs)
    axes, beside = drawn(tmp_path, "stability").axes
    assert lines(axes) == {"loss": ([1, 2], [3.0, 2.0]), "validation loss": ([1, 2], [4.0, 3.0])}
    assert lines(beside) == {"mean offset": ([1, 2], [1.0, 0.0])}
    assert not axes.patches


def test_runs_of_unequally_many_epochs_are_refused(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "stability", {"method": "paper"}, seed, {}, {"loss": [1.0] * (5 + seed)})
    with pytest.raises(ReportError, match="unequally many epochs"):
        drawn(tmp_path, "stability")


def test_stages_are_shaded(tmp_path: Path) -> None:
    config = {"method": "chipnet", "length": 2, "prune": 1, "finetune": 3}
    write(tmp_path, "stability", config, 0, {}, {"loss": [1.0] * 6, "mask": [None, None, 0.5, None, None, None]})
    axes, _ = drawn(tmp_path, "stability").axes
    assert [(patch.get_x(), patch.get_width()) for patch in axes.patches] == [(0.5, 2), (2.5, 1), (3.5, 3)]


def test_curves_of_size_and_minutes_of_one_network_by_stage(tmp_path: Path) -> None:
    config = {"network": "net", "dataset": "one", "method": "chipnet"}
    seconds = {"train": 600.0, "to prune": 6.0, "prune": 240.0, "to finetune": 6.0, "finetune": 120.0, "finish": 9.0}
    networks = {"train": 1, "prune": 2, "finetune": 2}
    staged = {"seconds": seconds, "networks": networks, "together": 2}
    for ratio, size in ((0.2, 100), (0.4, 300)):
        write(tmp_path, "curves", {**config, "ratio": ratio}, 0, {"params": size, "accuracy": 90 + ratio}, **staged)
    one = {"seconds": {"train": 1200.0, "finish": 1.0}, "together": 2}
    write(tmp_path, "curves", {**config, "method": "ours", "params": 1}, 0, {"params": 1, "accuracy": 80.0}, **one)
    accuracy, times = drawn(tmp_path, "curves").axes
    assert lines(accuracy)["chipnet"] == ([100, 300], [90.2, 90.4]) and accuracy.get_xscale() == "log"
    bars = {text.get_text().split("\n")[0]: number for number, text in enumerate(times.get_yticklabels())}
    assert times.get_yticklabels()[bars["chipnet"]].get_text() == "chipnet\n(1 to 2 at once)"
    wide = {bar.get_label(): [patch.get_width() for patch in bar.patches] for bar in times.containers}
    assert list(wide) == ["training", "pruning", "finetuning"]
    assert [values[bars["chipnet"]] for values in wide.values()] == pytest.approx([10, 2.1, 1])
    assert wide["training"][bars["ours"]] == 10.0 and wide["pruning"][bars["ours"]] == 0
    assert times.get_title() == "time by stage\n(means of networks of unequal size)"


def test_the_longest_bar_does_not_look_cut_off(tmp_path: Path) -> None:
    config = {"network": "net", "dataset": "one", "method": "ours"}
    write(tmp_path, "curves", config, 0, {"params": 1, "accuracy": 80.0}, seconds={"train": 6000.0})
    _, times = drawn(tmp_path, "curves").axes
    assert times.get_xlim()[0] == 0 and times.get_xlim()[1] > 103 and times.get_title() == "time by stage"


@pytest.mark.parametrize(
    ("experiment", "big", "little"),
    [("curves", {0: 2}, {2: 1}), ("stability", {0: 2}, {1: 1}), ("cka", {0: 2, 1: 2}, {2: 1, 3: 1})],
)
def test_networks_have_lines_of_panels_of_their_own(
    experiment: str, big: dict[int, int], little: dict[int, int], tmp_path: Path
) -> None:
    """Where one ends before its line does, nothing is drawn, not even a frame."""
    alike = [[1.0, 0.5], [0.5, 1.0]]
    final = {"params": 5, "accuracy": 90.0, "cka": alike, "rbf_cka": alike}
    for network, dataset, method in (("big", "one", "paper"), ("big", "two", "ours"), ("little", "one", "paper")):
        config = {"network": network, "dataset": dataset, "method": method}
        write(tmp_path, experiment, config, 0, final, {"loss": [2.0, 1.0]})
    axes = [one for one in drawn(tmp_path, experiment).axes if one.get_subplotspec() is not None]
    for network, lines in (("big", big), ("little", little)):
        panels = [one.get_subplotspec().rowspan.start for one in axes if one.get_title().startswith(network)]
        assert Counter(panels) == lines
    assert not any(one.axison for one in axes if not one.has_data())


@pytest.mark.parametrize("experiment", ["cifar", "cka", "stability", "budget", "curves", "pretrained"])
def test_many_panels_are_wrapped_so_that_a_page_can_show_them(experiment: str, tmp_path: Path) -> None:
    alike = [[1.0, 0.5], [0.5, 1.0]]
    final = {"params": 5, "accuracy": 90.0, "accuracy_before": 90.0, "cka": alike, "rbf_cka": alike}
    for number in range(7):
        changing = "network" if experiment == "pretrained" else "dataset"
        config = {"network": "net", "method": "ours", "params": 5, changing: str(number)}
        write(tmp_path, experiment, config, 0, final, {"loss": [2.0, 1.0]})
    figure = drawn(tmp_path, experiment)
    panels = [one for one in figure.axes if one.get_subplotspec() is not None]
    widest = 3 if experiment == "cka" else 2
    assert {one.get_subplotspec().colspan.start for one in panels} == set(range(widest))
    assert figure.get_figwidth() <= 11 and all(one.has_data() for one in panels)


@pytest.mark.parametrize("experiment", WRITERS)
def test_a_page_is_wide_enough(experiment: str, tmp_path: Path) -> None:
    WRITERS[experiment](tmp_path)
    assert drawn(tmp_path, experiment).get_figwidth() <= 11


def test_what_all_panels_show_is_explained_once_outside_of_them(tmp_path: Path) -> None:
    for dataset, method in (("one", "ours"), ("two", "ours"), ("two", "narrower")):
        final = {"params": 5, "accuracy_before": 90.0}
        write(tmp_path, "cifar", {"network": "net", "dataset": dataset, "method": method}, 0, final)
    write_architecture(tmp_path)
    figures = [drawn(tmp_path, "cifar"), drawn(tmp_path, "architecture")]
    assert [axes.get_legend() for figure in figures for axes in figure.axes] == [None] * 3
    told = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in figures]
    assert told[0] == ["ours", "narrower"]
    assert sorted(told[1]) == ["before", "gone", "left", "left, written into a stream", "stream"]


@pytest.mark.parametrize("experiment", FIGURES)
def test_records_without_what_the_figure_shows_are_refused(experiment: str, tmp_path: Path) -> None:
    write(tmp_path, experiment, {"problem": "linear", "map": "offset", "dataset": "d"}, 0, {})
    with pytest.raises(ReportError, match=f"{experiment}.* lack"):
        picture(experiment, read_runs(tmp_path, experiment))


@pytest.mark.parametrize("experiment", ["stability", "cka"])
def test_panels_are_in_the_paper_s_order(experiment: str, tmp_path: Path):
    for fields in SHOWN[experiment]:
        write(tmp_path, experiment, fields, 0, {})
    groups = as_shown(experiment, by_recipe(read_runs(tmp_path, experiment)))
    assert [group.config for group in groups] == list(SHOWN[experiment])


def test_features_are_counted_in_whole_numbers(tmp_path: Path):
    write_cka(tmp_path)
    panels = [axes for axes in drawn(tmp_path, "cka").axes if axes.images]
    assert panels and all(float(tick).is_integer() for axes in panels for tick in axes.get_xticks())
