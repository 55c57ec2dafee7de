"""Gates on single readers of a stream: which entries there are, what is cut, and that nothing changes."""

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
from headgate import masked
from headgate.errors import RecipeError
from headgate.layers import Gather, GatherBatchNorm2d, GatherLinear
from headgate.surgery import placement
from headgate.surgery.insert import INSERTION
from headgate.surgery.keep import chosen, random_vectors, sites
from headgate.surgery.recipe import Cut, Read, Recipe, recipe_on
from headgate.surgery.trial import randomised, silence_
from headgate_lab.models.preresnet import PreResNet
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_
from tests.toys import IMAGE, Net, PostBlock, PreBlock, conv, images, pooled


class LinearBlock(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.first(x).relu())


def linear_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), LinearBlock(4, 5), nn.Linear(4, 2))


def residual(run: Callable[..., Any], **parts: Any) -> Net:
    """Stem, a residual step of the caller's, pooling and a classifier, all 8 channels wide."""
    return Net(
        lambda net, x: pooled(net, net.step(net, net.stem(x))), stem=conv(3, 8), head=nn.Linear(8, 3), step=run, **parts
    )


def pre(net: Any, x: Tensor) -> Tensor:
    return x + net.conv(F.relu(net.bn(x)))


def shared_activation(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.bn(x))
    return net.conv(h) + net.shortcut(h)


def pooled_entry(net: Any, x: Tensor) -> Tensor:
    return x + net.fc(F.adaptive_avg_pool2d(net.bn(x).tanh(), 2).flatten(1))[:, :, None, None]


def two_norms(net: Any, x: Tensor) -> Tensor:
    return x + net.conv(F.relu(net.bn2(F.dropout(net.bn(x), 0.5, net.training))))


def product_at_entry(net: Any, x: Tensor) -> Tensor:
    return x + net.conv(net.bn(x) * torch.sigmoid(x))


def returned_too(net: Any, x: Tensor) -> Tensor:
    h = net.bn(x)
    return x + net.conv(h) + F.relu(h)


def functional(net: Any, x: Tensor) -> Tensor:
    return x + F.conv2d(x, net.kernel, padding=1)


def called_twice(net: Any, x: Tensor) -> Tensor:
    x = x + net.conv(x)
    return x + net.conv(x)


def grouped_entry(net: Any, x: Tensor) -> Tensor:
    return x + net.conv(net.deep(x))


def bn(width: int = 8) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width)


# What is built, the readers by hand (name, read axes), and what the plan says of those that cannot.
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, set[str]], tuple[str, ...]]] = {
    "pre-activation": (lambda: residual(pre, bn=bn(), conv=conv(8, 8)), {"bn:read": {"conv.weight"}}, ()),
    "activation shared with the shortcut": (
        lambda: residual(shared_activation, bn=bn(), conv=nn.Sequential(conv(8, 6), conv(6, 8)), shortcut=conv(8, 8)),
        {"conv.0:read": {"conv.0.weight"}},
        (),
    ),
    "flattened positions": (
        lambda: residual(pooled_entry, bn=bn(), fc=nn.Linear(32, 8)),
        {"bn:read": {"fc.weight"}},
        (),
    ),
    "two norms": (lambda: residual(two_norms, bn=bn(), bn2=bn(), conv=conv(8, 8)), {"bn:read": {"conv.weight"}}, ()),
    "norm without parameters": (
        lambda: residual(pre, bn=nn.BatchNorm2d(8, affine=False), conv=conv(8, 8)),
        {"bn:read": {"conv.weight"}},
        (),
    ),
    "product at the entry": (
        lambda: residual(product_at_entry, bn=bn(), conv=conv(8, 8)),
        {},
        ("bn: gather: what it passes on goes through mul",),
    ),
    # The norm itself cannot gather; for the second sum, the branch is the convolution alone, and that can.
    "added itself": (
        lambda: residual(returned_too, bn=bn(), conv=conv(8, 8)),
        {"conv:read": {"conv.weight"}},
        ("bn: gather: what it passes on goes through add",),
    ),
    "functional code": (
        lambda: residual(functional, kernel=nn.Parameter(torch.randn(8, 8, 3, 3))),
        {},
        ("root: gather: is no layer that can pick channels",),
    ),
    "one layer twice": (
        lambda: residual(called_twice, conv=conv(8, 8)),
        {},
        ("conv: gather: conv.weight is used in several places",),
    ),
    "depthwise entry": (
        lambda: residual(grouped_entry, deep=conv(8, 8, groups=8), conv=conv(8, 8)),
        {},
        ("deep: gather: conv2d in deep groups channels",),
    ),
    "post-activation": (
        lambda: nn.Sequential(conv(3, 8), PostBlock(8, 8), PostBlock(8, 12, 2), nn.Flatten(), nn.Linear(192, 3)),
        {"1.conv1:read": {"1.conv1.weight"}, "2.conv1:read": {"2.conv1.weight"}},
        (),
    ),
    "pre-activation stages": (
        lambda: nn.Sequential(conv(3, 8), PreBlock(8, 8), PreBlock(8, 12, 2), bn(12), nn.Flatten(), nn.Linear(192, 3)),
        {"1.bn1:read": {"1.conv1.weight"}, "2.bn1:read": {"2.conv1.weight"}},
        (),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_readers_by_hand_and_exact(name: str) -> None:
    build, readers, reasons = CASES[name]
    model = randomise_(build())
    dense = outputs(model, IMAGE)
    gates = hg.insert_gates_(model, IMAGE, floor=1, order="random:5", readers=True)
    plan = getattr(model, INSERTION).plan
    assert {reader.name: {axis[0] for axis in reader.masked} for reader in plan.readers} == readers
    assert all(reason in str(plan) for reason in reasons), str(plan)
    assert "gather" not in str(plan) or reasons
    assert readers.keys() == {gate for gate in gates if gate.endswith(":read")}
    assert all(map(torch.equal, dense, outputs(model, IMAGE)))
    for seed in range(3):
        move_offsets_(model.double(), seed)
        small = hg.compact(model, in_double(IMAGE))
        assert sum(isinstance(module, Gather) for module in small.modules()) <= len(readers)
        for example in (IMAGE, images(batch=3, size=8)):
            assert error(outputs(model, in_double(example)), outputs(small, in_double(example))) < LIMIT
        dense_size = parameters(build())
        assert hg.kept(model, "params") == pytest.approx(parameters(small) / dense_size, abs=1e-12)
        sum(out.sum() for out in outputs(small.train(), in_double(IMAGE)))


def test_without_being_asked_there_are_none() -> None:
    model = linear_net()
    assert hg.find_groups(model, torch.randn(2, 3)).readers == ()
    assert not any(name.endswith(":read") for name in hg.insert_gates_(model, torch.randn(2, 3), floor=1))


def test_the_plan_prints_them() -> None:
    text = str(hg.find_groups(linear_net(), torch.randn(2, 3), readers=True))
    assert text.endswith("reader        units  reads from  through\n1.first:read  4      0           1.first.weight")


@pytest.mark.parametrize("given", [None, 1, "yes"])
def test_only_true_or_false(given: Any) -> None:
    model = linear_net()
    with pytest.raises(hg.ArgumentError, match=r"readers=.* must be True or False"):
        hg.find_groups(model, torch.randn(2, 3), readers=given)
    with pytest.raises(hg.ArgumentError, match=r"readers=.* must be True or False"):
        hg.insert_gates_(model, torch.randn(2, 3), readers=given)
    assert not hg.gates(model)


class TestShrink:
    """On the linear toy: a stream of 4 channels, of which the branch reads some."""

    X = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])

    def test_the_picked_channels_by_hand(self) -> None:
        model = linear_net()
        plan = hg.find_groups(model, self.X, readers=True)
        small = hg.shrink(model, plan, {"1.first:read": torch.tensor([True, False, True, False])})
        h = model[0](self.X)
        inner = (h[:, [0, 2]] @ model[1].first.weight[:, [0, 2]].T + model[1].first.bias).relu()
        torch.testing.assert_close(small(self.X), model[2](h + model[1].last(inner)))
        assert isinstance(small[1].first, GatherLinear) and small[1].first.in_features == 2
        assert small[1].first.picked.tolist() == [0, 2] and small[1].first.wide == 4
        assert recipe_on(small) is not None and recipe_on(small).reads == (Read("1.first", ((0, 1), (2, 3)), 4),)
        assert "picked from 4 channels" in repr(small)

    def test_a_narrow_stream_renumbers_what_is_left_of_both(self) -> None:
        model = linear_net()
        plan = hg.find_groups(model, self.X, readers=True)
        keep = {"0": torch.tensor([True, False, True, True]), "1.first:read": torch.tensor([False, True, True, True])}
        small = hg.shrink(model, plan, keep)
        assert torch.equal(small[1].first.weight, model[1].first.weight[:, [2, 3]])
        assert small[1].first.picked.tolist() == [1, 2] and small[1].first.wide == 3

    def test_where_the_stream_keeps_no_more_nothing_is_picked(self) -> None:
        model = linear_net()
        plan = hg.find_groups(model, self.X, readers=True)
        keep = {"0": torch.tensor([True, False, True, False]), "1.first:read": torch.tensor([True, True, True, False])}
        small = hg.shrink(model, plan, keep)
        assert type(small[1].first) is nn.Linear and small[1].first.in_features == 2

    @pytest.mark.parametrize(
        ("read", "words"), [([False] * 4, "leaves none of its 4 units"), ([True, False, False, False], "keeps none of")]
    )
    def test_a_reader_needs_a_channel(self, read: list[bool], words: str) -> None:
        model = linear_net()
        plan = hg.find_groups(model, self.X, readers=True)
        keep = {"0": torch.tensor([False, True, True, True]), "1.first:read": torch.tensor(read)}
        with pytest.raises(hg.ArgumentError, match=words):
            hg.shrink(model, plan, keep)

    def test_a_stream_that_must_stay_can_be_read_in_part(self) -> None:
        model = nn.Sequential(nn.Linear(3, 4), LinearBlock(4, 5))
        plan = hg.find_groups(model, self.X, readers=True)
        assert [(reader.name, reader.group) for reader in plan.readers] == [("1.first:read", None)]
        keep = {"1.first:read": torch.tensor([False, True, True, False])}
        silenced = randomised(model, 0)
        silence_(silenced, plan, chosen(plan, keep))
        small = hg.shrink(silenced, plan, keep)
        assert small[1].first.in_features == 2
        assert error(outputs(silenced, self.X.double()), outputs(small, self.X.double())) < LIMIT

    def test_one_layer_may_pick_and_write_back(self) -> None:
        class Step(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.map = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                return x + self.map(x)

        model = nn.Sequential(nn.Linear(3, 4), Step(), nn.Linear(4, 2))
        plan = hg.find_groups(model, self.X, readers=True)
        for seed in range(6):
            keep = random_vectors(sites(plan).values(), seed)
            silenced = randomised(model, seed)
            silence_(silenced, plan, chosen(plan, keep))
            small = hg.shrink(silenced, plan, keep)
            assert error(outputs(silenced, self.X.double()), outputs(small, self.X.double())) < LIMIT


class TestPreResNet:
    X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    BLOCKS = tuple(f"stage{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1))

    def test_one_reader_per_block_exact_saved_and_cut_again(self, tmp_path: Path) -> None:
        """The final norm has no shortcut beside it: the stream's own gate is its gate. Nor has a shortcut a reader."""
        model = randomise_(PreResNet(20)).double()
        gates = hg.insert_gates_(model, self.X.double(), readers=True, order="random:1", multiple_of=2)
        readers = [name for name in gates if name.endswith(":read")]
        assert readers == [f"{block}.bn1:read" for block in self.BLOCKS]
        assert len(gates) == 1 + 12 + 3 + 6 + 6
        assert all(gates[name].floor == 4 for name in readers)
        streams = {"stage1.1": "stage1.0.conv3", "stage2.1": "stage2.0.conv3"}
        for block, stream in streams.items():
            same = (gates[f"{block}.bn1:read"].mask(), gates[stream].mask())
            assert torch.equal(*same)
        self.check_nested_and_exact(model, gates)
        small = hg.compact(model)
        gathers = {name for name, module in small.named_modules() if isinstance(module, GatherBatchNorm2d)}
        assert gathers and gathers <= {f"{block}.bn1" for block in self.BLOCKS}
        hg.save(small, tmp_path / "small.safetensors")
        again = hg.load(tmp_path / "small.safetensors", lambda: PreResNet(20))
        assert torch.equal(again(self.X.double()), small(self.X.double()))
        assert repr(again) == repr(small)
        self.check_second_compaction(small, tmp_path)

    def check_nested_and_exact(self, model: nn.Module, gates: dict[str, Any]) -> None:
        for seed in range(2):
            move_offsets_(model, seed)
            small = hg.compact(model)
            assert error(outputs(model, self.X.double()), outputs(small, self.X.double())) < LIMIT
            assert hg.kept(model, "params") == parameters(small) / parameters(PreResNet(20))
            dense = hg.cost(PreResNet(20).double(), self.X.double()).macs
            assert hg.kept(model, "macs") == hg.cost(small, self.X.double()).macs / dense
            read = gates["stage2.0.bn1:read"].keep() & gates["stage1.0.conv3"].keep()
            if bool(gates["stage2.0.conv3:write"].keep().any()):
                assert small.stage2[0].bn1.num_features == -(-int(read.sum()) // 2) * 2

    def check_second_compaction(self, small: nn.Module, tmp_path: Path) -> None:
        """What picks its inputs is left as it is; the rest shrinks on, and one recipe tells of both."""
        hg.insert_gates_(small, self.X.double(), floor=1, readers=True)
        move_offsets_(small, 5)
        smaller = hg.compact(small)
        assert parameters(smaller) < parameters(small)
        assert error(outputs(small, self.X.double()), outputs(smaller, self.X.double())) < LIMIT
        hg.save(smaller, tmp_path / "smaller.safetensors")
        again = hg.load(tmp_path / "smaller.safetensors", lambda: PreResNet(20))
        assert torch.equal(again(self.X.double()), smaller(self.X.double()))


def test_a_reader_trains_and_its_floor_holds() -> None:
    model = linear_net()
    x = torch.randn(6, 3)
    gates = hg.insert_gates_(model, x, floor=2, readers=True, where=lambda name, module: name == "1.first:read")
    assert list(gates) == ["1.first:read"]
    before = model(x)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.0, offset_lr=0.5))
    (model(x).square().sum() + hg.penalty(model)).backward()
    assert model.headgate_offsets.grad.abs().item() > 0
    for _ in range(30):
        optimizer.zero_grad()
        hg.penalty(model).backward()
        optimizer.step()
    assert gates["1.first:read"].active == 2
    assert not torch.allclose(before, model(x))
    plain = copy.deepcopy(model)
    hg.remove_gates_(plain)
    torch.testing.assert_close(plain(x), model(x))
    assert int((plain[1].first.weight == 0).all(0).sum()) == 2


def test_a_failure_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model = linear_net()
    state, text = copy.deepcopy(model.state_dict()), repr(model)
    real, calls = masked.put_mask_on_, []

    def failing(*args: Any) -> None:
        calls.append(args[1])
        if len(calls) == 4:
            raise MemoryError
        real(*args)

    monkeypatch.setattr(placement, "put_mask_on_", failing)
    with pytest.raises(MemoryError):
        hg.insert_gates_(model, torch.randn(2, 3), floor=1, readers=True)
    assert repr(model) == text and list(model.state_dict()) == list(state)
    assert not hg.gates(model) and not hasattr(model, INSERTION)


def test_what_is_picked_is_not_cut_again() -> None:
    whole = Recipe((("a.weight", (4, 6)),), (Cut("a.weight", 1, ((0, 3),)),), reads=(Read("a", ((0, 3),), 6),))
    later = (("a.weight", (4, 3)),)
    with pytest.raises(RecipeError, match="a: its inputs are picked from a wider stream"):
        whole.then(Recipe(later, (Cut("a.weight", 1, ((0, 2),)),)))
    joined = whole.then(Recipe(later, (Cut("a.weight", 0, ((0, 2),)),)))
    assert joined.reads == whole.reads and joined.outcome() == {"a.weight": (2, 3)}
