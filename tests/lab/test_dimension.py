"""The gate finds the dimension and shows how."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from rich.console import Console

from headgate_lab.data.factors import linear_factors
from headgate_lab.dimension import DimensionConfig, Frame, Trace, run, train
from headgate_lab.dimension_view import mask_bar, panel, table, watching


def small(dimension: int, seed: int = 0, steps: int = 1000) -> DimensionConfig:
    return DimensionConfig(dimension, seed=seed, steps=steps, samples=200, features=20, bottleneck=10)


def trace(dimension: int, found: int) -> Trace:
    mask = tuple(0.0 if channel < 50 - found else 0.5 for channel in range(50))
    return Trace(DimensionConfig(dimension), (Frame(2000, -3.0, mask, 1e-9),), seconds=1.5)


@pytest.mark.parametrize(("dimension", "seed"), [(2, 0), (4, 1), (7, 2)])
def test_the_gate_finds_the_dimension(dimension: int, seed: int) -> None:
    result = run(small(dimension, seed), lambda frame: None)
    assert result.last.open == dimension
    assert result.exact
    assert result.last.error < 1e-9
    assert result.frames[0].open == 10


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [5, 10])
def test_the_default_run_finds_the_dimension(dimension: int) -> None:
    result = run(DimensionConfig(dimension), lambda frame: None)
    assert result.exact
    assert result.last.error < 1e-9


def test_runs_repeat_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = (list(train(small(3, steps=25))) for _ in range(2))
    assert first == second
    assert [frame.step for frame in first] == [0, 10, 20, 25]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_offset_moves_by_at_most_its_rate_and_rests_at_the_end() -> None:
    config = small(3, steps=40)
    frames = list(train(config, every=1))
    moves = [abs(b.offset - a.offset) for a, b in itertools.pairwise(frames)]
    assert 0 < max(moves) <= config.offset_lr * 1.001
    assert moves[30:] == [0.0] * 10
    assert config.rate(29) == 1.0
    assert config.rate(35) == pytest.approx(0.5)


def test_factors_are_checked_and_give_that_rank() -> None:
    data = linear_factors(60, 12, 4, generator=torch.Generator().manual_seed(1))
    assert data.shape == (60, 12)
    assert int(torch.linalg.matrix_rank(data)) == 4
    with pytest.raises(ValueError, match="factors=13"):
        linear_factors(60, 12, 13, generator=torch.Generator())


def test_without_a_terminal_lines_are_plain_and_few(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(Console(), live=False) as show:
        for step in range(0, 2001, 10):
            show(DimensionConfig(5), Frame(step, -1.0, (0.0, 0.5), 0.25))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[1] == "5 factors: step  250/2000  offset -1.00  open  1/50  error 2.5e-01"


def test_in_a_terminal_the_gate_is_drawn() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=90)
    with watching(console, live=True) as show:
        show(DimensionConfig(5), trace(5, found=5).last)
        show(DimensionConfig(10), trace(10, found=10).last)
    drawn = screen.getvalue()
    assert "5 hidden factors, 50 channels" in drawn
    assert "10 hidden factors, 50 channels" in drawn
    assert "2000/2000" in drawn


def test_the_mask_as_a_bar() -> None:
    mask = (0.0, 1e-6, 0.5, 0.999, 1.0)
    assert mask_bar(mask).plain == "·▁▅██"
    assert mask_bar(mask, ascii_only=True).plain == ".1599"


def test_the_panel_and_table_fit_a_narrow_ascii_terminal() -> None:
    image = io.BytesIO()
    screen = io.TextIOWrapper(image, encoding="ascii")
    console = Console(file=screen, force_terminal=True, width=80)
    console.print(panel(DimensionConfig(5), trace(5, found=5).last, ascii_only=console.options.ascii_only))
    console.print(table([trace(5, found=6)]))
    screen.flush()
    assert "missed" in image.getvalue().decode("ascii")
