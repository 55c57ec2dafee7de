"""The demo trains, cuts, checks, saves and compares, and says so in plain words."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

import headgate as hg
from headgate_lab.cli import main
from headgate_lab.data import digits as digits_module
from headgate_lab.data.digits import Digits, digits
from headgate_lab.models.digits import DigitsNet
from headgate_lab.pruning import Bar, Frame, PruningConfig, make, narrower, parameters, train_gated
from headgate_lab.pruning_outcome import Outcome, Row, layer_widths, run
from headgate_lab.pruning_picture import picture
from headgate_lab.pruning_view import bars, lines_to_add, panel, results, verdict, watching

FAST = PruningConfig(epochs=8, width=8, batch=16, params=0.4)
FRAME = Frame("with gates", 12, 0.25, 0.9, (Bar("stem", 8, 24), Bar("block1.bn2:write", 0, 24)), 0.17, 0.1)


@pytest.fixture(scope="module")
def few() -> Digits:
    data = digits()
    return Digits(data.train_images[:320], data.train_labels[:320], data.test_images[:100], data.test_labels[:100])


@pytest.fixture(scope="module")
def done(few: Digits, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[Frame], Path]:
    path = tmp_path_factory.mktemp("demo") / "small.safetensors"
    frames: list[Frame] = []
    return run(FAST, few, path, frames.append), frames, path


def test_the_split_is_fixed() -> None:
    data = digits()
    assert data.train_images.shape == (1297, 1, 8, 8)
    assert data.test_images.shape == (500, 1, 8, 8)
    assert data.train_images.min() == 0
    assert data.train_images.max() == 1
    assert data.train_labels[:10].tolist() == list(range(10))
    assert sorted(data.test_labels.unique().tolist()) == list(range(10))


def test_every_layer_of_the_network_can_be_pruned() -> None:
    plan = hg.find_groups(DigitsNet(8), torch.randn(2, 1, 8, 8))
    assert {group.name: group.stream for group in plan.groups} == {
        "stem": True,
        "block1.conv1": False,
        "down": True,
        "block2.conv1": False,
    }
    assert [branch.name for branch in plan.branches] == ["block1.bn2:write", "block2.bn2:write"]


def test_the_compacted_network_is_smaller_equal_and_on_disk(done: tuple[Outcome, list[Frame], Path]) -> None:
    outcome, _, path = done
    assert outcome.difference < 1e-5
    assert outcome.small.params < outcome.full.params
    assert outcome.small.macs < outcome.full.macs
    assert outcome.small.file_bytes == path.stat().st_size
    assert outcome.small.params <= outcome.control.params <= outcome.full.params
    small = hg.load(path, lambda: make(FAST))
    assert parameters(small) == outcome.small.params
    assert layer_widths(small) == outcome.small.widths


def test_offsets_rest_at_both_ends_and_move_between(done: tuple[Outcome, list[Frame], Path]) -> None:
    gated = [frame for frame in done[1] if frame.bars]
    assert [frame.epoch for frame in gated] == list(range(1, 9))
    assert gated[0].channels == 1.0
    assert gated[3].channels < 1.0
    assert gated[3].bars == gated[5].bars == gated[7].bars
    assert gated[7].params <= FAST.params
    assert [FAST.phase(epoch) for epoch in range(8)] == ["cold start", *["gates moving"] * 3, *["gates settled"] * 4]
    assert [FAST.rate(epoch) for epoch in (0, 4, 6)] == pytest.approx([1, 1, 0.5])


def test_runs_repeat_and_leave_the_global_generator_alone(few: Digits) -> None:
    before = torch.get_rng_state()
    config = dataclasses.replace(FAST, epochs=6)
    first, second = ([*train_gated(config, few, lambda frame: None).parameters()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(first, second))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_control_is_the_narrowest_that_is_not_smaller() -> None:
    config = PruningConfig()
    assert narrower(config, DigitsNet(8)) == 8
    assert narrower(config, DigitsNet(24)) == 24
    wider = torch.nn.ModuleList([DigitsNet(8), torch.nn.Linear(1, 1)])
    assert narrower(config, wider) == 9


def test_without_a_terminal_there_is_one_plain_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(Console(), PruningConfig(), live=False) as show:
        show(FRAME)
        show(Frame("full", 3, 0.5, 0.8))
    assert capsys.readouterr().out.splitlines() == [
        "with gates: epoch 12/24  loss 0.250  accuracy 90.0%  left: channels 17%, parameters 10%  (gates moving)",
        "full: epoch  3/24  loss 0.500  accuracy 80.0%",
    ]


def test_in_a_terminal_every_gate_has_a_bar() -> None:
    screen = io.StringIO()
    with watching(Console(file=screen, force_terminal=True, width=90), PruningConfig(), live=True) as show:
        show(FRAME)
    drawn = screen.getvalue()
    assert "block1.bn2:write" in drawn
    assert "parameters" in drawn
    assert "█" in drawn
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=plain, force_terminal=True, width=80).print(panel(PruningConfig(), FRAME, ascii_only=True))
    grid = bars(FRAME.bars, ascii_only=True)
    assert [str(cell) for cell in grid.columns[1].cells] == ["#" * 11 + "." * 21, "." * 32]


def _row(name: str, accuracy: float, params: int) -> Row:
    return Row(name, accuracy, params, 1_500_000, 12.34, 0.56, 250_000, {"stem": 24, "block1.conv1": 5})


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (0.96, "gets 5 more of the 500 test images right"),
        (0.98, "gets 5 fewer of the 500 test images right"),
        (0.97, "as many of the 500"),
    ],
)
def test_the_verdict_is_plain_whichever_way_it_went(control: float, words: str) -> None:
    rows = (_row("full", 0.99, 63_346), _row("compacted", 0.97, 6000), _row("narrower (8)", control, 7000))
    outcome = Outcome(*rows, difference=2e-7, images=500)
    assert words in verdict(outcome)
    assert "which has 1.17x its parameters" in verdict(outcome)
    screen = io.StringIO()
    Console(file=screen, width=80).print(results(outcome))
    assert re.search(r"compacted +97\.0% +6,000 \(9%\) +1\.50 M +12\.34 ± 0\.56 ms +250 kB", screen.getvalue())


def test_the_picture_shows_a_block_that_is_gone() -> None:
    gone = dataclasses.replace(_row("compacted", 0.97, 6000), widths={"stem": 3})
    image = picture(Outcome(_row("full", 0.99, 63_346), gone, _row("narrower (8)", 0.96, 7000), 0.0, 500))
    assert imread(io.BytesIO(image)).shape[2] == 4


def test_the_lines_to_add_are_python_with_public_names() -> None:
    text = lines_to_add(PruningConfig())
    compile(re.sub(r"^    ", "", text, flags=re.MULTILINE), "lines", "exec")
    assert all(hasattr(hg, name) for name in re.findall(r"hg\.(\w+)", text))
    assert "params=0.1" in text


def test_the_command(
    few: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = Digits(few.train_images.repeat(2, 1, 1, 1), few.train_labels.repeat(2), few.test_images, few.test_labels)
    monkeypatch.setattr(digits_module, "digits", lambda: twice)
    out = tmp_path / "results"
    assert main(["demo", "--epochs", "10", "--params", "0.3", "--seed", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for words in ("with gates: epoch  1/10", "compacted", "narrower", "hg.compact(model)", f"small model: {out}"):
        assert words in printed
    assert sorted(path.name for path in out.iterdir()) == ["architecture.png", "small.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--epochs", "0"], "epochs"),
        (["--epochs", "5"], "epochs"),
        (["--params", "-1"], "params"),
        (["--params", "nan"], "params"),
        (["--seed", "-1"], "seed"),
        (["--out", "missing/folder"], "cannot make the folder"),
        (["--out", "file"], "file is not a folder"),
    ],
)
def test_wrong_arguments_are_one_line_before_any_training(
    arguments: list[str], culprit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(digits_module, "digits", lambda: pytest.fail("trained"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["demo", *arguments])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert culprit in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_new_folder_is_taken_away_if_nothing_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> Digits:
        raise KeyboardInterrupt

    monkeypatch.setattr(digits_module, "digits", interrupt)
    assert main(["demo", "--out", str(tmp_path / "new")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_cannot_be_reached_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--params", "0.001", "--out", str(tmp_path / "new")]) == 1
    assert "the smallest size that can be reached" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
