"""The paper's placement, before norms: where its masks are, what its removal drops, and that it says so."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.errors import CompactionError, HeadgateWarning
from headgate.masked import gated, mask_on
from headgate.surgery import compact as compact_module
from headgate.surgery.insert import INSERTION
from headgate.surgery.shrink import shrink_
from headgate_lab.models.preresnet import PreResNet
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, parameters, randomise_
from tests.toys import Net, conv

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def normed(kind: Any = nn.BatchNorm1d) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), kind(4), nn.ReLU(), nn.Linear(4, 2)).double()


def masked_axes(model: nn.Module) -> set[tuple[str, tuple[int, ...]]]:
    paths = {module: path for path, module in model.named_modules()}
    return {(f"{paths[module]}.{name}", mask_on(module, name).axes) for module, name in gated(model)}


def quietly(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return hg.compact(model)


@torch.no_grad()
def test_what_a_closed_channel_leaves_behind_by_hand() -> None:
    model = randomise_(normed())
    model[1].bias += 1.0
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    assert masked_axes(model) == {("0.weight", (0,)), ("0.bias", (0,))}
    gates["0"].offset.fill_(-1.25)  # closes the first of four units
    assert gates["0"].keep().tolist() == [False, True, True, True]
    norm = model[1]
    constant = norm.bias[0] - norm.running_mean[0] * norm.weight[0] / (norm.running_var[0] + norm.eps).sqrt()
    assert constant > 0
    dropped = constant * model[3].weight[:, 0]
    size = (dropped.abs().max() / model(X).abs().max()).item()
    with pytest.warns(
        HeadgateWarning, match=rf"placement='before_norm'.*dropped \(0\).*differ by {size:.1e} of their size"
    ):
        small = hg.compact(model, X)
    assert small[0].out_features == small[1].num_features == small[3].in_features == 3
    torch.testing.assert_close(model(X) - small(X), dropped.expand(5, 2), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_mask_is_before_the_norm_by_hand() -> None:
    model = randomise_(normed())
    plain = copy.deepcopy(model)
    gate = hg.insert_gates_(model, X, floor=1, placement="before_norm")["0"]
    gate.offset.fill_(-0.7)
    expected = plain[3](plain[2](plain[1](plain[0](X) * gate.mask().double())))
    torch.testing.assert_close(model(X), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_with_everything_open_it_is_exact_and_silent() -> None:
    model = randomise_(normed())
    dense = model(X)
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    assert torch.equal(model(X), dense)
    assert error([dense], [quietly(model)(X)]) < LIMIT
    gates["0"].offset.fill_(-1.25)
    model.headgate_insertion = model.headgate_insertion.__class__(
        **{**vars(model.headgate_insertion), "multiple_of": 4}
    )  # the closed channel stays to fill up, and so does its constant
    assert error([model(X)], [quietly(model)(X)]) < LIMIT


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum((2, 3))


# What is built, the gates before a norm, and the axes that are masked.
CASES: dict[str, tuple[nn.Module, Tensor, set[str], set[tuple[str, tuple[int, ...]]]]] = {
    "no norm": (
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        X.float(),
        set(),
        {("2.weight", (1,))},
    ),
    "one of two": (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
        X.float(),
        {"2"},
        {("2.weight", (0, 1)), ("2.bias", (0,))},
    ),
    "instance norm without tensors": (
        nn.Sequential(conv(3, 4), nn.InstanceNorm2d(4), conv(4, 2), Sum()),
        torch.randn(2, 3, 5, 5),
        {"0"},
        {("0.weight", (0,)), ("0.bias", (0,))},
    ),
    "transposed": (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), conv(4, 2), Sum()),
        torch.randn(2, 3, 5, 5),
        {"0"},
        {("0.weight", (1,)), ("0.bias", (0,))},
    ),
    "depthwise behind it": (
        nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), conv(4, 4, groups=4), conv(4, 2), Sum()),
        torch.randn(2, 3, 5, 5),
        {"0"},
        {("0.weight", (0,)), ("0.bias", (0,))},
    ),
    "two writers": (
        Net(
            lambda net, x: net.out(net.norm(net.a(x) * net.b(x))),
            a=nn.Linear(3, 4), b=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), out=nn.Linear(4, 2),
        ),
        X.float(),
        set(),
        {("out.weight", (1,))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_where_it_applies(name: str) -> None:
    model, example, before_norm, axes = CASES[name]
    model = randomise_(copy.deepcopy(model))
    hg.insert_gates_(model, example, floor=1, placement="before_norm")
    assert getattr(model, INSERTION).before_norm == before_norm
    assert masked_axes(model) == axes
    move_offsets_(model.double(), 1)
    if before_norm:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            small = hg.compact(model)
        assert all(issubclass(warning.category, HeadgateWarning) for warning in said)
    else:
        small = quietly(model)
        assert error(outputs(model, example.double()), outputs(small, example.double())) < LIMIT
    assert parameters(small) == hg.kept(model, "params") * parameters(CASES[name][0])
    plain = copy.deepcopy(model)
    hg.remove_gates_(plain)
    assert error(outputs(model, example.double()), outputs(plain, example.double())) < LIMIT


class TestPreResNet:
    IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def test_the_papers_gates_and_a_small_network(self, tmp_path: Path) -> None:
        """After the stem and after each of the three convolutions of every bottleneck; none on a shortcut."""
        model = randomise_(PreResNet(20)).double()
        gates = hg.insert_gates_(model, self.IMAGES, placement="before_norm", streams=False)
        blocks = [f"stage{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1)]
        convolutions = {"stem", *(f"{block}.conv{number}" for block in blocks for number in (1, 2, 3))}
        assert len(gates) == len(convolutions) == 19
        assert masked_axes(model) == {(f"{path}.weight", (0,)) for path in convolutions}
        move_offsets_(model, 2)
        with pytest.warns(HeadgateWarning, match=r"\(stem, stage1\.0\.conv1, stage1\.0\.conv2 and 10 more\)"):
            small = hg.compact(model)
        assert parameters(small) == hg.kept(model, "params") * parameters(PreResNet(20)) < 0.8 * parameters(model)
        hg.save(small, tmp_path / "small.safetensors")
        again = hg.load(tmp_path / "small.safetensors", lambda: PreResNet(20))
        assert torch.equal(again(self.IMAGES), small(self.IMAGES))

    def test_streams_and_readers_stay_on_the_read_side(self) -> None:
        model = PreResNet(11)
        gates = hg.insert_gates_(model, self.IMAGES.float(), placement="before_norm", readers=True)
        assert len(gates) == 1 + 6 + 3 + 3 + 3
        axes = dict(masked_axes(model))
        assert axes["stage2.0.conv1.weight"] == (0, 1, 1)
        assert axes["classifier.weight"] == (1,)


def test_its_removal_is_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the network in which nothing reads what goes: damage is still found."""
    model = randomise_(normed())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    with torch.no_grad():
        gates["0"].offset.fill_(-1.25)

    def damaging(small: nn.Module, *args: Any) -> None:
        shrink_(small, *args)
        with torch.no_grad():
            next(iter(small.parameters())).mul_(1.001)

    monkeypatch.setattr(compact_module, "shrink_", damaging)
    with pytest.raises(CompactionError):
        hg.compact(model)


@pytest.mark.parametrize("given", ["before", None, True])
def test_an_unknown_placement_is_refused(given: Any) -> None:
    model = normed()
    with pytest.raises(hg.ArgumentError, match=r"placement=.* is unknown; use one of exact, before_norm"):
        hg.insert_gates_(model, X, placement=given)
    assert not hg.gates(model)
