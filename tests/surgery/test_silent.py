"""Branches that write nothing: their layers go, the block and its class stay, and outputs are what they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from headgate.layers import WriteBack, Zeros
from headgate_lab.models.preresnet import PreResNet
from tests.surgery.exactness import LIMIT, error, in_double, outputs, randomise_
from tests.toys import Net, PostBlock, PostBottleneck, PreBlock, conv, images

IMAGE = in_double(images(size=9))
Build = Callable[[], nn.Module]


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4)]


def basic() -> nn.Module:
    return nn.Sequential(conv(3, 8), PostBlock(8, 8), PostBlock(8, 12, 2), PostBlock(12, 12), *head(12))


def bottlenecks() -> nn.Module:
    return nn.Sequential(conv(3, 8), PostBottleneck(8, 6, 10), PostBottleneck(10, 6, 12, 2), *head(12))


def projected() -> nn.Module:
    return nn.Sequential(conv(3, 8), PreBlock(8, 10), PreBlock(10, 12, 2), PreBlock(12, 12), *head(12))


def preresnet() -> nn.Module:
    return PreResNet(20, classes=4)


# The modules that only feed a branch's end, itself included, and the blocks that vanish altogether.
SILENT: dict[str, tuple[Build, dict[str, set[str]], set[str]]] = {
    "basic": (
        basic,
        {f"{i}.bn2:write": {f"{i}.{m}{k}" for m in ("conv", "bn") for k in (1, 2)} for i in (1, 2, 3)},
        set(),
    ),
    "bottlenecks": (
        bottlenecks,
        {f"{i}.bn3:write": {f"{i}.{m}{k}" for m in ("conv", "bn") for k in (1, 2, 3)} for i in (1, 2)},
        set(),
    ),
    "projected": (
        projected,
        {f"{i}.conv2:write": {f"{i}.{m}{k}" for m in ("conv", "bn") for k in (1, 2)} for i in (1, 2)},
        {"3"},
    ),
    "preresnet": (
        preresnet,
        {
            f"stage{s}.0.conv3:write": {f"stage{s}.0.{m}{k}" for m in ("conv", "bn") for k in (1, 2, 3)}
            for s in (1, 2, 3)
        },
        {"stage1.1", "stage2.1", "stage3.1"},
    ),
}  # fmt: skip


def gated(build: Build, seed: int = 0) -> nn.Module:
    model = randomise_(build(), seed).double()
    hg.insert_gates_(model, IMAGE)
    return model


@torch.no_grad()
def silence_(model: nn.Module, which: Callable[[str], bool] = lambda name: True, others: float = -1.5) -> None:
    """Closes branches altogether, and something of every group."""
    for name, gate in hg.gates(model).items():
        if name.endswith(":write"):
            gate.offset.fill_(-5.0 if which(name) else others)
        else:
            gate.offset.fill_(min(1.0, 5.0 * (4.5 / gate.n - 1)))


@pytest.mark.parametrize("name", SILENT)
def test_everything_that_only_fed_a_silent_branch_goes(name: str, tmp_path: Path) -> None:
    build, expected, blocks = SILENT[name]
    model = gated(build)
    silence_(model)
    before = outputs(model, IMAGE)
    small = hg.compact(model)
    assert error(before, outputs(small, IMAGE)) < LIMIT
    assert error(outputs(model, IMAGE[:1, :, :7]), outputs(small, IMAGE[:1, :, :7])) < LIMIT
    emptied = {path for path, module in small.named_modules() if isinstance(module, Zeros)}
    assert emptied == set().union(*expected.values())
    assert not any(path.startswith(tuple(f"{e}." for e in emptied)) for path in small.state_dict())
    assert {path for path, m in small.named_modules() if isinstance(m, nn.Identity)} >= blocks
    assert not any(isinstance(module, WriteBack) for module in small.modules())
    _agree(model, small, build)
    hg.save(small, tmp_path / "small.safetensors")
    again = hg.load(tmp_path / "small.safetensors", build)
    assert str(again) == str(small)
    assert error(outputs(small, IMAGE), outputs(again, IMAGE)) == 0.0
    small.train()(IMAGE).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


def _agree(model: nn.Module, small: nn.Module, build: Build) -> None:
    """`kept` foretells exactly what compaction left."""
    dense, left = hg.cost(build().double(), IMAGE), hg.cost(small, IMAGE)
    assert hg.kept(model, of="params") == pytest.approx(left.params / dense.params, abs=1e-12)
    assert left.params == sum(parameter.numel() for parameter in small.parameters())
    assert hg.kept(model, of="macs") == pytest.approx(left.macs / dense.macs, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_silent_and_narrow_branches_side_by_side(seed: int) -> None:
    model = gated(basic, seed)
    silence_(model, lambda name: (int(name[0]) + seed) % 3 == 0, others=-4.0)
    small = hg.compact(model)
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT
    assert sum(isinstance(module, Zeros) for module in small.modules()) == 4
    assert sum(isinstance(module, WriteBack) for module in small.modules()) >= 1
    _agree(model, small, basic)


def test_the_stream_of_an_emptied_branch_can_be_narrowed_again(tmp_path: Path) -> None:
    model = gated(basic)
    silence_(model)
    with torch.no_grad():
        for name, gate in hg.gates(model).items():
            if not name.endswith(":write"):
                gate.offset.fill_(-0.5)
    small = hg.compact(model)
    gates = hg.insert_gates_(small, IMAGE, floor=1)
    assert set(gates) == {"0", "2.downsample.0"}
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(-2.5)
    smaller = hg.compact(small)
    assert error(outputs(small, IMAGE), outputs(smaller, IMAGE)) < LIMIT
    assert len(smaller[1].conv2.zeros) == smaller[0].out_channels < small[0].out_channels
    hg.save(smaller, tmp_path / "smaller.safetensors")
    again = hg.load(tmp_path / "smaller.safetensors", basic)
    assert error(outputs(smaller, IMAGE), outputs(again, IMAGE)) == 0.0


def test_full_branches_need_no_layer_of_ours() -> None:
    model = randomise_(basic()).double()
    hg.insert_gates_(model, IMAGE, branches="full")
    silence_(model)
    small = hg.compact(model)
    assert not any(isinstance(module, (Zeros, WriteBack)) for module in small.modules())
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT


class Base(nn.Module):
    """A residual block with a ReLU behind the sum, the second of its convolutions in `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.last, self.head = conv(3, 6), conv(6, 5), conv(5, 6), nn.Linear(6, 4)

    def branch(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        return self.head(F.relu(x + self.branch(x)).mean((2, 3)))


class Shown(Base):
    """What the first convolution computes is returned too."""

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        inside = self.first(x)
        return self.head(F.relu(x + self.last(F.relu(inside))).mean((2, 3))), inside


class OnlyInTraining(Base):
    """What the first convolution computes is returned in training alone."""

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        inside = self.first(x)
        out = self.head(F.relu(x + self.last(F.relu(inside))).mean((2, 3)))
        return (out, inside.mean()) if self.training else out


class Twice(Base):
    """The first convolution is called again behind the block."""

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        x = F.relu(x + self.branch(x))
        return self.head(x.mean((2, 3))), self.first(x).mean((2, 3))


class Looks(Base):
    """The code looks into its last layer: it would not run without a weight there."""

    def branch(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)).to(self.last.weight.dtype))


class Bare(Base):
    """A parameter of the block's own on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5, 1, 1))

    def branch(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)) * self.scale)


def hooked() -> nn.Module:
    model = Base()
    model.last.register_forward_hook(lambda module, args, out: None)
    return model


LEFT: dict[str, tuple[Build, set[str]]] = {
    "everything goes": (Base, {"first", "last"}),
    "shown": (Shown, {"last"}),
    "shown in training": (OnlyInTraining, {"last"}),
    "called twice": (Twice, {"last"}),
    "looked into": (Looks, set()),
    "a bare parameter": (Bare, {"first", "last"}),
    "a hook": (hooked, set()),
}


@pytest.mark.parametrize("name", LEFT)
def test_only_what_is_proven_to_be_idle_is_emptied(name: str) -> None:
    build, expected = LEFT[name]
    model = randomise_(build()).double()
    gates = hg.insert_gates_(model, IMAGE, floor=1)
    with torch.no_grad():
        gates["last:write"].offset.fill_(-5.0)
    small = hg.compact(model)
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT
    assert {path for path, module in small.named_modules() if isinstance(module, Zeros)} == expected
    assert isinstance(small.last, WriteBack) != ("last" in expected)
    params = sum(parameter.numel() for parameter in small.parameters())
    assert hg.kept(model, of="params") == pytest.approx(params / sum(p.numel() for p in build().parameters()))


def test_a_layer_of_two_branches_stays() -> None:
    """One convolution feeds two branches: neither alone may take it along."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        x = F.relu(x + net.b1(F.relu(net.shared(x))))
        x = F.relu(x + net.b2(F.relu(net.shared(x))))
        return net.head(x.mean((2, 3)))

    model = Net(run, stem=conv(3, 6), shared=conv(6, 5), b1=conv(5, 6), b2=conv(5, 6), head=nn.Linear(6, 4))
    model = randomise_(model).double()
    gates = hg.insert_gates_(model, IMAGE, floor=1)
    with torch.no_grad():
        gates["b1:write"].offset.fill_(-5.0)
        gates["b2:write"].offset.fill_(-5.0)
    small = hg.compact(model)
    assert {path for path, module in small.named_modules() if isinstance(module, Zeros)} == {"b1", "b2"}
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT


@pytest.mark.parametrize("inner", [-2.0, -5.0], ids=["narrow", "silent"])
def test_a_branch_within_a_silent_branch_writes_nothing(inner: float, tmp_path: Path) -> None:
    """The inner one was narrowed before all of the outer one fell silent."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        y = net.enter(x)
        return net.head((x + net.leave(y + net.inner(F.relu(y)))).mean((2, 3)))

    def build() -> nn.Module:
        layers = {"enter": conv(6, 8), "inner": conv(8, 8), "leave": conv(8, 6)}
        return Net(run, stem=conv(3, 6), **layers, head=nn.Linear(6, 4)).double()

    model = randomise_(build())
    gates = hg.insert_gates_(model, IMAGE, floor=1)
    with torch.no_grad():
        gates["enter"].offset.fill_(-1.0)
        gates["inner:write"].offset.fill_(inner)
        gates["leave:write"].offset.fill_(-5.0)
    small = hg.compact(model)
    assert {path for path, module in small.named_modules() if isinstance(module, Zeros)} == {"enter", "inner", "leave"}
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT
    left = sum(parameter.numel() for parameter in small.parameters())
    assert hg.kept(model, of="params") == left / sum(parameter.numel() for parameter in build().parameters())
    hg.save(small, tmp_path / "small")
    assert error(outputs(small, IMAGE), outputs(hg.load(tmp_path / "small", build).eval(), IMAGE)) == 0


class PadsItself(nn.Conv2d):
    """A convolution with code of its own, which nothing but itself can stand in for."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1)))


def test_kept_agrees_where_a_layer_before_the_last_norm_must_stay() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        return net.head(F.relu(x + net.bn(net.conv(F.relu(net.enter(x))))))

    layers = {"enter": conv(8, 6), "conv": PadsItself(6, 8, 3), "bn": nn.BatchNorm2d(8)}
    model = randomise_(Net(run, stem=conv(3, 8), **layers, head=conv(8, 2))).double()
    total = sum(parameter.numel() for parameter in model.parameters())
    gates = hg.insert_gates_(model, IMAGE, floor=1)
    with torch.no_grad():
        gates["bn:write"].offset.fill_(-5.0)
    small = hg.compact(model)
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT
    assert hg.kept(model, of="params") == sum(parameter.numel() for parameter in small.parameters()) / total


def test_the_gated_model_is_left_as_it_is() -> None:
    model = gated(bottlenecks)
    silence_(model)
    before = copy.deepcopy(model.state_dict())
    hg.compact(model)
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_entry_of_a_silent_branch_picks_nothing(tmp_path: Path) -> None:
    model = randomise_(preresnet().double())
    gates = hg.insert_gates_(model, IMAGE, readers=True, scale="plain")
    with torch.no_grad():
        for name, gate in gates.items():
            gate.offset.fill_(-4.0 if name.endswith(":read") else -2.0)
        gates["stage2.0.conv3:write"].offset.fill_(-9.0)
    small = hg.compact(model)
    assert isinstance(small.stage2[0].bn1, Zeros)
    assert type(small.stage1[0].bn1).__name__ == "GatherBatchNorm2d"
    assert error(outputs(model, IMAGE), outputs(small, IMAGE)) < LIMIT
    left = sum(parameter.numel() for parameter in small.parameters())
    assert hg.kept(model, of="params") == left / sum(parameter.numel() for parameter in preresnet().parameters())
    hg.save(small, tmp_path / "small")
    loaded = hg.load(tmp_path / "small", lambda: preresnet().double())
    assert error(outputs(small, IMAGE), outputs(loaded.eval(), IMAGE)) == 0
