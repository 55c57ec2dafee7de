"""ONNX files compute what the small model computes, or are not written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate import export
from headgate.errors import ArgumentError, ExportError, FileError, GateError, MissingPackageError
from headgate.layers import WriteBack, write_back_
from tests.small_nets import Residual, image, small_residual

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:onnxscript.*", "ignore::DeprecationWarning:onnx_ir.*"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.onnx"


def run(path: Path, *inputs: Tensor) -> Tensor:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {node.name: tensor.numpy() for node, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return torch.as_tensor(session.run(None, feed)[0])


def test_a_model_with_layers_that_write_back(path: Path):
    small = small_residual().train()
    assert any(isinstance(module, WriteBack) for module in small.modules())
    error = hg.export_onnx(small, image(), path)
    assert error is not None and error < 1e-5
    assert small.training, "the model is left as it is"
    x = image()
    torch.testing.assert_close(run(path, x), small.eval()(x).detach(), rtol=1e-4, atol=1e-4)
    assert list(path.parent.iterdir()) == [path]


def test_places_that_are_no_block(path: Path):
    layer = nn.Conv2d(2, 3, 1)
    write_back_(layer, torch.tensor([0, 2, 5]), width=6)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(6 * 36, 2))
    assert hg.export_onnx(model, image(), path) < 1e-5


def test_sizes_may_vary_where_asked(path: Path):
    small = small_residual().eval()
    hg.export_onnx(small, image(), path, dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    x = image(5)
    torch.testing.assert_close(run(path, x), small(x).detach(), rtol=1e-4, atol=1e-4)


def test_keyword_examples_reach_the_right_inputs(path: Path):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"sum": self.layer(left) + right, "left": left * 2}

    assert hg.export_onnx(Two(), {"right": torch.zeros(2, 3), "left": torch.ones(2, 3)}, path) < 1e-5


def test_other_outputs_are_noticed_and_nothing_is_written(path: Path, monkeypatch: pytest.MonkeyPatch):
    path.write_bytes(b"old")
    run_file = export._run
    monkeypatch.setattr(export, "_run", lambda *args: [output * 1.01 for output in run_file(*args)])
    with pytest.raises(ExportError, match=r"computes something else: outputs differ by 1\.0e-02"):
        hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path)
    monkeypatch.setattr(export, "_run", lambda *args: [output[:1] for output in run_file(*args)])
    with pytest.raises(ExportError, match=r"returns shapes \[\[1, 2\]\] instead of \[\[2, 2\]\]"):
        hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path)
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


def test_gated_models_are_refused(path: Path):
    model = Residual()
    hg.insert_gates_(model, image())
    with pytest.raises(GateError, match="compact first"):
        hg.export_onnx(model, image(), path)
    with pytest.raises(GateError, match="compact first"):
        hg.export_onnx(nn.Sequential(nn.Linear(3, 4), hg.Gate(4)), torch.randn(2, 3), path)


def test_models_that_cannot_be_exported(path: Path, monkeypatch: pytest.MonkeyPatch):
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match="Branching cannot be exported"):
        hg.export_onnx(Branching(), torch.ones(2), path)
    with pytest.raises(FileError, match="cannot write"):
        hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path / "no" / "small.onnx")
    with pytest.raises(ArgumentError, match="export_onnx: Linear does not run on the example"):
        hg.export_onnx(nn.Linear(3, 2), {"y": torch.randn(2, 3)}, path)
    monkeypatch.setattr(export, "_LARGEST_FILE", 10)
    with pytest.raises(ExportError, match="one ONNX file holds"):
        hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path)
    assert list(path.parent.iterdir()) == []


class TestWithoutPackages:
    def without(self, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest)
        )

    @pytest.mark.parametrize("package", ["onnx", "onnxscript"])
    def test_the_extra_is_named(self, package: str, path: Path, monkeypatch: pytest.MonkeyPatch):
        self.without(package, monkeypatch)
        with pytest.raises(MissingPackageError, match=rf"needs {package}: pip install 'headgate\[export\]'"):
            hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path)

    def test_without_onnxruntime_nothing_is_checked(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        self.without("onnxruntime", monkeypatch)
        assert hg.export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path) is None
        assert path.stat().st_size > 0
