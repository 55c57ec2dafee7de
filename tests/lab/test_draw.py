"""What is left of a network: counted layer by layer, drawn, and drawn by the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import headgate as hg
from headgate_lab.cli import main
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.outline import Layer, Outline
from headgate_lab.outlining import outline
from headgate_lab.report.figures.architecture import portrait

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def first(count: int, size: int) -> torch.Tensor:
    return torch.arange(size) < count


def pruned() -> tuple[hg.Plan, nn.Module, nn.Module]:
    """PreResNet-20 with a stream of 64 cut to 40, one branch that writes 10 of them, and one that writes nothing."""
    full = PreResNet(20)
    plan = hg.find_groups(full, IMAGES)
    keep = {
        "stem": first(5, 16),
        "stage1.0.conv3": first(40, 64),
        "stage1.0.conv3:write": first(10, 64),
        "stage1.1.conv3:write": first(0, 64),
        "stage3.1.conv2": first(7, 64),
    }
    return plan, full, hg.shrink(full, plan, keep)


def test_layers_streams_and_blocks_by_hand() -> None:
    found = outline(*pruned())
    assert found.layers[:9] == (
        Layer("stem", 16, 5),
        Layer("stage1.0.conv1", 16, 16),
        Layer("stage1.0.conv2", 16, 16),
        Layer("stage1.0.conv3", 64, 10, "stage1.0.conv3"),
        Layer("stage1.0.shortcut", 64, 40, "stage1.0.conv3"),
        Layer("stage1.1.conv1", 16, 0),
        Layer("stage1.1.conv2", 16, 0),
        Layer("stage1.1.conv3", 64, 0, "stage1.0.conv3"),
        Layer("stage2.0.conv1", 32, 32),
    )
    assert Layer("stage3.1.conv2", 64, 7) in found.layers and found.layers[-1] == Layer("classifier", 10, 10)
    assert len(found.layers) == 23  # 22 convolutions and the classifier
    assert found.streams == (("stage1.0.conv3", 64, 40), ("stage2.0.conv3", 128, 128), ("stage3.0.conv3", 256, 256))
    assert found.gone == ("stage1.1",)
    assert "stage1.0.conv3         10 of 64\n" in str(found) and str(found).endswith("gone: stage1.1")


def test_a_plain_chain_and_a_layer_that_writes_along_its_second_axis() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1))
    plan = hg.find_groups(net, IMAGES)
    small = hg.shrink(net, plan, {group.name: first(4, group.size) for group in plan.groups})
    found = outline(plan, net, small)
    assert [(layer.path, layer.before, layer.after) for layer in found.layers] == [
        ("0", 8, 4),
        ("2", 6, 4),
        ("4", 2, 2),
    ]
    assert found.streams == () and found.gone == ()


def test_what_is_gone_is_told_once() -> None:
    layers = tuple(
        Layer(path, 4, after) for path, after in (("a.x", 0), ("a.y.z", 0), ("b.x", 0), ("b.y", 1), ("c", 2))
    )
    assert Outline(layers).gone == ("a", "b.x")


def test_an_outline_survives_json() -> None:
    found = outline(*pruned())
    told = json.loads(json.dumps(found.as_json()))
    assert Outline.from_json(**told) == found


def heights(figure: Figure, label: str) -> list[float]:
    (axes,) = figure.axes
    bars: Any = next(group for group in axes.containers if group.get_label() == label)
    return [bar.get_height() for bar in bars]


def test_the_picture_shows_the_numbers() -> None:
    found = outline(*pruned())
    figure = portrait(found, "a title")
    assert heights(figure, "before") == [layer.before for layer in found.layers]
    assert heights(figure, "left") == [layer.after for layer in found.layers if layer.stream is None]
    assert heights(figure, "left, written into a stream") == [
        layer.after for layer in found.layers if layer.stream is not None
    ]
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [layer.path for layer in found.layers]
    shaded: list[Any] = [patch for patch in axes.patches if patch.get_label() == "gone"]
    assert [(patch.get_x(), patch.get_width()) for patch in shaded] == [(4.5, 3.0)]


def test_many_layers_are_named_by_their_parts() -> None:
    layers = tuple(Layer(f"{part}.{number}", 8, 4) for part in ("one", "two") for number in range(30))
    (axes,) = portrait(Outline(layers), "").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["one", "two"]
    assert list(axes.get_xticks()) == [0, 30]


NET = """
from torch import nn

print("said while importing")

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

class Other(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "drawn_nets.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = hg.find_groups(net, torch.randn(2, 8))
    hg.save(hg.shrink(net, plan, {"0": first(5, 16)}), tmp_path / "small.safetensors")
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("drawn_nets", None)


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_command_prints_and_draws(
    name: str, start: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draw", "drawn_nets:Net", "small.safetensors", "--input", "2,8", "--to", name]) == 0
    told = capsys.readouterr().out
    assert told == (
        "Net: 69 of 212 parameters\n0       5 of 16\n2       4 of 4\ngone: nothing\n" + f"picture: {folder / name}\n"
    )
    assert (folder / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["drawn_nets:Other", "small.safetensors"], 1, "does not fit what the factory builds"),
        (["drawn_nets:Net", "missing.safetensors"], 1, "missing.safetensors"),
        (["drawn_nets:Net", "drawn_nets.py"], 1, "damaged or no safetensors file"),
        (["drawn_nets:Nothing", "small.safetensors"], 1, "drawn_nets has no Nothing"),
        (["drawn_nets", "small.safetensors"], 2, "must be MODULE:FACTORY"),
        (["drawn_nets:Net", "small.safetensors", "--to", "a.jpg"], 2, "must end in .png, .svg or .pdf"),
        (["drawn_nets:Net", "small.safetensors", "--to", "no/a.png"], 2, "--to no/a.png"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], status: int, complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["draw", *arguments, "--input", "2,8"])
    except SystemExit as error:
        found = error.code
    assert found == status
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("headgate")]
    assert complaint in line
    assert sorted(path.name for path in folder.iterdir() if path.suffix != "") == ["drawn_nets.py", "small.safetensors"]
