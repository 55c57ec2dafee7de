"""The paper's placement, before norms: where its masks are, and that what they close goes exactly all the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.errors import CompactionError, HeadgateWarning
from headgate.masked import gated, mask_on
from headgate.surgery import constants
from headgate.surgery.insert import INSERTION
from headgate_lab.models.preresnet import PreResNet
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_
from tests.toys import TOYS, Net, conv

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def normed(kind: Any = nn.BatchNorm1d) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), kind(4), nn.ReLU(), nn.Linear(4, 2)).double()


def masked_axes(model: nn.Module) -> set[tuple[str, tuple[int, ...]]]:
    paths = {module: path for path, module in model.named_modules()}
    return {(f"{paths[module]}.{name}", mask_on(module, name).axes) for module, name in gated(model)}


@torch.no_grad()
def test_one_closed_channel_carries_the_constants_by_hand() -> None:
    model = randomise_(normed())
    model[1].bias += 1.0
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    assert masked_axes(model) == {("0.weight", (0,)), ("0.bias", (0,))}
    gates["0"].offset.fill_(-2.5)  # closes the first two of four units
    assert gates["0"].keep().tolist() == [False, False, True, True]
    norm = model[1]
    constants = (norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt())[:2]
    assert (constants > 0).all()
    small = hg.compact(model)
    assert small[0].out_features == small[1].num_features == small[3].in_features == 3
    # The second, which closed last, is the carrier: its row is zero, its norm makes 1 of it.
    assert small[0].weight[0].tolist() == [0.0, 0.0, 0.0]
    assert (small[1].weight[0].item(), small[1].bias[0].item()) == (0.0, 1.0)
    torch.testing.assert_close(small[3].weight[:, 0], model[3].weight[:, :2] @ constants, rtol=1e-12, atol=0)
    torch.testing.assert_close(small(X), model(X), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_gate_that_closed_everything_leaves_its_constants() -> None:
    model = randomise_(normed())
    model[1].bias += 1.0
    hg.insert_gates_(model, X, floor=1, placement="before_norm")["0"].offset.fill_(-100.0)
    small = hg.compact(model)
    assert small[0].out_features == 1
    assert hg.kept(model) == 0.25
    torch.testing.assert_close(small(X), model(X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(small(X), small(2 * X))


@torch.no_grad()
def test_borders_are_exact_too() -> None:
    """Padding is zero where constants are not: what a convolution makes of a constant is another one there."""
    model = nn.Sequential(
        *(conv(3, 6), nn.BatchNorm2d(6), nn.Sigmoid(), nn.MaxPool2d(2, padding=1)),
        *(conv(6, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.AvgPool2d(3, padding=1), nn.Flatten(), nn.Linear(5 * 4, 2)),
    )
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    gates = hg.insert_gates_(randomise_(model).double(), images, floor=1, placement="before_norm")
    assert getattr(model, INSERTION).before_norm == {"0", "4"}
    for gate in gates.values():
        gate.offset.fill_(-3.0)
    small = hg.compact(model)
    assert (small[0].out_channels, small[4].out_channels, small[9].in_features) == (4, 3, 12)
    other = 3 * torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert error([model(other)], [small(other)]) < LIMIT


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
    hg.insert_gates_(model, X, floor=1, placement="before_norm")
    assert torch.equal(model(X), dense)
    assert error([dense], [hg.compact(model)(X)]) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize(("closed", "left"), [(1, 8), (3, 8), (4, 8), (5, 4), (8, 4)])
def test_multiples_count_the_carrier(closed: int, left: int) -> None:
    model = randomise_(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm", multiple_of=4)
    gates["0"].offset.fill_(-5 * (closed + 0.1) / 8)
    assert int(gates["0"].keep().sum()) == 8 - closed
    small = hg.compact(model)
    assert small[0].out_features == left == 8 * hg.kept(model)
    assert error([model(X)], [small(X)]) < LIMIT


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
        set(),
        {("2.weight", (1,))},
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
        set(),
        {("3.weight", (1,))},
    ),
    "whole groups of a norm": (
        nn.Sequential(conv(3, 8), nn.GroupNorm(4, 8), nn.GELU(), conv(8, 2), Sum()),
        torch.randn(2, 3, 5, 5),
        {"0"},
        {("0.weight", (0,)), ("0.bias", (0,))},
    ),
    "one of two that fails": (
        nn.Sequential(
            *(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU()),
            *(conv(4, 4), nn.BatchNorm2d(4), conv(4, 4, groups=4), conv(4, 2), Sum()),
        ),
        torch.randn(2, 3, 5, 5),
        {"0"},
        {("0.weight", (0,)), ("0.bias", (0,)), ("6.weight", (1,))},
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
    small = hg.compact(model)
    assert error(outputs(model, example.double()), outputs(small, example.double())) < LIMIT
    assert parameters(small) == hg.kept(model, "params") * parameters(CASES[name][0])
    plain = copy.deepcopy(model)
    hg.remove_gates_(plain)
    assert error(outputs(model, example.double()), outputs(plain, example.double())) < LIMIT


def between(function: Any, a: nn.Module | None = None, **more: nn.Module | nn.Parameter) -> nn.Module:
    """A layer, a norm, whatever the function makes of that and of the inputs, and a layer that sums over it."""
    a = nn.Linear(3, 4) if a is None else a
    norm = nn.BatchNorm2d(4) if isinstance(a, nn.Conv2d) else nn.BatchNorm1d(4)
    parts = {"a": a, "norm": norm, "out": nn.Linear(4, 2), **more}
    return Net(lambda net, x, *more: net.out(function(net, net.norm(net.a(x)), x, *more)), **parts)


class Renamed(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, self.weight, self.bias)


class Rectifying(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.relu(x))


def wide(seed: int = 0, *shape: int) -> Tensor:
    return torch.randn(*shape or (6, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_squares(y: Tensor) -> Tensor:
    """Four channels become the four positions of one, twice as high and wide."""
    n, channels, h, w = y.shape
    squares = y.view(n, channels // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
    return squares.reshape(n, channels // 4, 2 * h, 2 * w)


SMALL, LARGE, NUMBERS = wide(1, 2, 3, 6, 6), wide(2, 2, 3, 9, 9), torch.arange(6)
# Networks of which an example does not show that what is closed is no constant, or no multiple of another: what they
# are built with, and what they are given then.
UNSAFE: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], tuple[Any, ...]]] = {
    "sums over positions and more": (
        lambda: between(lambda net, y, x: y.flatten(2).logsumexp(2), conv(3, 4)), (SMALL,), (LARGE,)
    ),
    "an activation of sums": (lambda: between(lambda net, y, x: y.sum((2, 3)).tanh(), conv(3, 4)), (SMALL,), (LARGE,)),
    "an activation of padded means": (
        lambda: between(
            lambda net, y, x: torch.sigmoid(nn.functional.avg_pool2d(y, 3, 3, 1)).mean((2, 3)), conv(3, 4)
        ), (SMALL,), (LARGE,),
    ),
    "largest beside zeros": (
        lambda: between(
            lambda net, y, x: nn.functional.max_pool2d(
                nn.functional.pad(nn.functional.silu(y), (0, y.shape[3] % 2) * 2), 2
            ).mean((2, 3)), conv(3, 4),
        ), (SMALL,), (LARGE,),
    ),
    "times a number that is looked up": (
        lambda: between(lambda net, y, x, t: nn.functional.silu(y * net.e(t)), e=nn.Embedding(9, 1)),
        (wide(), 0 * NUMBERS), (wide(), NUMBERS),
    ),
    "times what depends on the input": (
        lambda: between(lambda net, y, x: torch.relu(y * x.sum(1, keepdim=True) + 0.3)), (0 * wide(),), (wide(3),)
    ),
    "a mask": (
        lambda: between(lambda net, y, x, kept: nn.functional.silu(y).masked_fill(~kept, 1.0)),
        (wide(), torch.ones(6, 1, dtype=torch.bool)), (wide(), NUMBERS[:, None] > 2),
    ),
    "a scale of its own": (
        lambda: between(lambda net, y, x: torch.relu(y * net.g), g=nn.Parameter(torch.ones(4))), (wide(),), (wide(3),)
    ),
    "a threshold": (lambda: between(lambda net, y, x: nn.functional.threshold(y, 1.0, 0.0)), (wide(),), (wide(3),)),
    "both signs": (
        lambda: between(lambda net, y, x: torch.cat([y.relu(), (-y).relu()], 1), out=nn.Linear(8, 2)),
        (wide(),), (wide(3),),
    ),
    "beside what depends on the input": (
        lambda: between(
            lambda net, y, x: torch.cat([y, x.mean(1, keepdim=True).expand_as(y)], 2).mean((2, 3)), conv(3, 4)
        ), (0 * SMALL,), (SMALL,),
    ),
    "a reader called twice": (
        lambda: between(lambda net, y, x: y.relu() + 0 * net.out(net.norm(net.a(2 * x))).sum()), (wide(),), (wide(3),)
    ),
    "a reader that calls its input otherwise": (
        lambda: between(lambda net, y, x: net.b(hidden=y), b=Renamed(4, 4)), (wide(),), (wide(3),)
    ),
    "a reader that does more": (lambda: between(lambda net, y, x: y, out=Rectifying(4, 2)), (wide(),), (wide(3),)),
    "channels that become positions": (
        lambda: Net(
            lambda net, x: net.out(nn.functional.adaptive_avg_pool2d(in_squares(net.norm(net.a(x)).relu()), 4)),
            a=conv(3, 16), norm=nn.BatchNorm2d(16), out=conv(4, 2),
        ), (wide(0, 2, 3, 8, 8),), (LARGE,),
    ),
    "slopes that depend on the input": (
        lambda: between(lambda net, y, x: nn.functional.prelu(y, net.g(x).mean(0)), g=nn.Linear(3, 1)),
        (0 * wide(),), (wide(3),),
    ),
    "slopes of positions": (
        lambda: between(lambda net, y, x: net.g(y.transpose(1, 2)).sum((1, 3)), conv(3, 4), g=nn.PReLU(6)),
        (wide(1, 2, 3, 6, 1),), (wide(3, 2, 3, 6, 1),),
    ),
    "a norm that others go through": (
        lambda: between(
            lambda net, y, x: torch.cat([y, net.norm(x[:, :1].expand_as(y))], 1), out=nn.Linear(8, 2)
        ), (0 * wide(),), (wide(3),),
    ),
    "dropped at random, always": (
        lambda: between(lambda net, y, x: nn.functional.dropout(y, 0.0, training=True)), (wide(),), (wide(3),)
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", UNSAFE)
def test_what_no_single_example_shows_stays_on_the_read_side(name: str) -> None:
    build, example, given = UNSAFE[name]
    model = randomise_(build().double())
    gates = hg.insert_gates_(model, example, floor=1, placement="before_norm")
    assert "a" in gates and "a" not in getattr(model, INSERTION).before_norm
    gates["a"].offset.fill_(-3.0)
    small = hg.compact(model)
    assert error(outputs(model, given), outputs(small, given)) < LIMIT


# What an example shows nothing of, though a larger input does: how much to pass on is not known.
HIDDEN: dict[str, tuple[Callable[[], nn.Module], Tensor, Tensor]] = {
    "shifted in time": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.ConstantPad1d((1, -1), 0.0), nn.Conv1d(8, 2, 1)
        ), wide(0, 2, 3, 1), wide(1, 2, 3, 9),
    ),
    "padding at some positions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ZeroPad2d(2), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(72, 2),
        ), wide(0, 2, 3, 2, 2), wide(1, 2, 3, 8, 8),
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", HIDDEN)
def test_what_an_example_shows_nothing_of_is_told_and_stays_on_the_read_side(name: str) -> None:
    build, example, given = HIDDEN[name]
    model = randomise_(build().double())
    with pytest.warns(HeadgateWarning, match="'before_norm' is not kept for '0', .* is zero, which it may not be"):
        gates = hg.insert_gates_(model, example, floor=1, placement="before_norm")
    assert not getattr(model, INSERTION).before_norm
    gates["0"].offset.fill_(-3.0)
    assert error([model(given)], [hg.compact(model)(given)]) < LIMIT


class Frozen(nn.Module):
    """A norm whose scales and shifts are no parameters."""

    def __init__(self, channels: int, attributes: bool) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            if attributes and name in ("weight", "bias"):
                setattr(self, name, torch.rand(channels, dtype=torch.float64) + 0.5)
            else:
                self.register_buffer(name, torch.rand(channels, dtype=torch.float64) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        return nn.functional.batch_norm(x, own.running_mean, own.running_var, own.weight, own.bias)


@torch.no_grad()
@pytest.mark.parametrize("attributes", [False, True])
def test_scales_that_are_no_parameters_carry_too(attributes: bool) -> None:
    model = nn.Sequential(conv(3, 8), Frozen(8, attributes), nn.ReLU(), conv(8, 2)).double()
    gates = hg.insert_gates_(model, SMALL, floor=1, placement="before_norm")
    assert getattr(model, INSERTION).before_norm == {"0"}
    gates["0"].offset.fill_(-2.0)
    small: Any = hg.compact(model)
    assert len(small[1].weight) == small[0].out_channels < 8
    assert error([model(LARGE)], [small(LARGE)]) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_rows_that_are_no_parameters_are_not_masked(leaf: str) -> None:
    model = randomise_(normed())
    value = model[0].get_parameter(leaf).data
    delattr(model[0], leaf)
    model[0].register_buffer(leaf, value)
    (gate,) = hg.insert_gates_(model, X, floor=1, placement="before_norm").values()
    gate.offset.fill_(-2.5)
    assert masked_axes(model) == {("3.weight", (1,))}
    assert error([model(X)], [hg.compact(model)(X)]) < LIMIT


@torch.no_grad()
def test_channels_of_one_unit_stay_apart_where_they_are_merged_with_positions() -> None:
    """Two channels of a group norm are one unit: flattened with their positions, each index is one of them."""
    model = nn.Sequential(conv(3, 8), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).double()
    gates = hg.insert_gates_(randomise_(model), SMALL, floor=1, placement="before_norm")
    assert getattr(model, INSERTION).before_norm == {"0"}
    gates["0"].offset.fill_(-2.5)
    small: Any = hg.compact(model)
    assert small[0].out_channels == 6 and error([model(3 * SMALL)], [small(3 * SMALL)]) < LIMIT


def test_a_network_that_cannot_be_traced_as_a_whole_has_none() -> None:
    model = Net(
        lambda net, x: net.part(x) if x.sum() > 0 else -net.part(x),
        part=nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    )
    gates = hg.insert_gates_(randomise_(model), X.float(), floor=1, placement="before_norm")
    assert list(gates) == ["part.0"] and not getattr(model, INSERTION).before_norm


def test_diverged_weights_are_told_as_such() -> None:
    model = randomise_(normed())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    with torch.no_grad():
        gates["0"].offset.fill_(-2.5)
        model[1].bias[0] = torch.nan
    with pytest.raises(CompactionError, match=r"what 3\.weight reads .* is not finite: .* diverged$"):
        hg.compact(model)


# Toys with gates before norms, and how many.
TOYS_BEFORE_NORM = {
    "conv chain": 2, "conv1d": 1, "conv3d": 1, "frozen parameters": 1, "post-activation residual": 2,
    "bottlenecks with projection": 5, "pre-activation residual": 3, "dense concatenation": 2, "inception": 5,
    "u-net": 5, "c2f by chunk": 4, "transposed": 1,
    "batch norm without statistics": 1, "batch norm with averages": 1, "batch norm on tokens": 1,
    "batch norm after flatten": 1, "instance norm with statistics": 1, "group norm of single channels": 1,
    "train-only head": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", TOYS_BEFORE_NORM)
def test_networks_of_all_kinds_go_exactly(name: str) -> None:
    (toy,) = (toy for toy in TOYS if toy.name == name)
    built = randomise_(toy.build())
    hg.insert_gates_(built, toy.example, floor=1, order="random:3", placement="before_norm", streams=False)
    before = getattr(built, INSERTION).before_norm
    assert len(before) == TOYS_BEFORE_NORM[name]
    for shut in (False, True):
        model = copy.deepcopy(built).double()
        move_offsets_(model, len(name))
        if shut:
            with torch.no_grad():
                for gate in before:
                    hg.gates(model)[gate].offset.fill_(-6.0)
        small = hg.compact(model, in_double(toy.example))
        assert parameters(small) == round(hg.kept(model, "params") * parameters(toy.build()))
        for example in (toy.example, *toy.others):
            assert error(outputs(model, in_double(example)), outputs(small, in_double(example))) < LIMIT


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
        small = hg.compact(model)
        assert error(outputs(model, self.IMAGES), outputs(small, self.IMAGES)) < LIMIT
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


def test_constants_that_turn_out_to_differ_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial has shown that they do not, so something must have changed since."""
    model = randomise_(normed())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    with torch.no_grad():
        gates["0"].offset.fill_(-2.5)
    model[2] = nn.Softmax(dim=1)
    with pytest.raises(CompactionError, match=r"carried by one channel: what 3\.weight reads of closed channels"):
        hg.compact(model)


@torch.no_grad()
def test_a_trial_that_fails_against_all_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    original = constants._multiples

    def failing(name: str, *given: Tensor) -> Tensor:
        if name == "6.weight":
            raise constants.CarrierError("by a test")
        return original(name, *given)

    monkeypatch.setattr(constants, "_multiples", failing)
    model = nn.Sequential(
        *(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU()),
        *(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
    )
    with pytest.warns(HeadgateWarning, match=r"'before_norm' is not kept for '3', .*: in a trial, by a test"):
        hg.insert_gates_(randomise_(model).double(), X, floor=1, placement="before_norm")
    assert getattr(model, INSERTION).before_norm == {"0"}
    move_offsets_(model, 1)
    assert error([model(X)], [hg.compact(model)(X)]) < LIMIT


def test_an_optimizer_is_not_transferred() -> None:
    model = randomise_(normed())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.1), momentum=0.9)
    with torch.no_grad():
        gates["0"].offset.fill_(-2.5)
    hg.bake_(model)
    with pytest.raises(hg.GateError, match=r"transfer_: '0' closed channels before a norm.*make a new optimizer"):
        hg.transfer_(optimizer, model, hg.compact(model))


def test_where_only_the_carrier_is_closed_an_optimizer_is_transferred() -> None:
    model = randomise_(normed())
    gates = hg.insert_gates_(model, X, floor=1, placement="before_norm")
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.1), momentum=0.9)
    with torch.no_grad():
        gates["0"].offset.fill_(-1.5)
    assert int(gates["0"].keep().sum()) == 3
    hg.bake_(model)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert optimizer.param_groups[0]["params"] == list(small.parameters())


@pytest.mark.parametrize("multiple_of", [1, 3])
def test_a_budget_counts_the_carriers(multiple_of: int) -> None:
    """Of the first units that a gate closes one stays, so that it takes two to save something."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(3, 12), nn.BatchNorm1d(12), nn.ReLU()),
        *(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2)),
    )
    x, y = torch.randn(64, 3), torch.randn(64, 2)
    hg.insert_gates_(model, x, floor=1, placement="before_norm", multiple_of=multiple_of)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.02))
    budget = hg.Budget(model, x, params=0.5, steps=200)
    for _ in range(200):
        loss = (model(x) - y).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step()
    assert budget.met
    small = hg.compact(model)
    assert parameters(small) == round(hg.kept(model, "params") * 278)
    assert 0.4 * 278 < parameters(small) <= 0.5 * 278
    assert small[0].out_features % multiple_of == small[3].out_features % multiple_of == 0


@pytest.mark.parametrize("given", ["before", None, True])
def test_an_unknown_placement_is_refused(given: Any) -> None:
    model = normed()
    with pytest.raises(hg.ArgumentError, match=r"placement=.* is unknown; use one of exact, before_norm"):
        hg.insert_gates_(model, X, placement=given)
    assert not hg.gates(model)
