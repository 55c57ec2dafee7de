"""Gates placed by hand: what they closed goes, exactly, wherever everything that reads it reads zeros."""

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
from headgate.layers import Scale
from headgate.surgery import hand
from tests.surgery.exactness import LIMIT, error, in_double, outputs, randomise_
from tests.toys import Net, conv, images, rows, tokens

Build = Callable[[], nn.Module]


def autoencoder() -> nn.Module:
    encoder = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8))
    return nn.Sequential(encoder, hg.Gate(8), nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 6)))


def lenet(activation: Callable[[Tensor], Tensor] = torch.tanh) -> nn.Module:
    """Gates before the activation, after it, and after a flatten that gives each channel four columns."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = F.max_pool2d(net.g1(activation(net.c1(x))), 2)
        x = F.max_pool2d(activation(net.g2(net.c2(x))), 2)
        return net.out(net.g3(activation(net.fc(x.flatten(1)))))

    return Net(
        run, c1=conv(3, 6), g1=hg.Gate(6), c2=conv(6, 8), g2=hg.Gate(8), fc=nn.Linear(32, 10), g3=hg.Gate(10),
        out=nn.Linear(10, 4),
    )  # fmt: skip


def twice(net: Any, x: Tensor) -> Tensor:
    return net.head(net.after(net.norm(net.before(net.conv(x)).relu())).mean((2, 3)))


def post_norm() -> nn.Module:
    """Conv, BatchNorm, ReLU, then the gate: where the constants of a norm are closed with their channel."""
    return nn.Sequential(
        conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), hg.Gate(8), conv(8, 6, bias=False), nn.BatchNorm2d(6), nn.ReLU6(),
        hg.Gate(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def dense() -> nn.Module:
    """A concatenation of a gated and an ungated part."""

    def run(net: Any, x: Tensor) -> Tensor:
        left = net.gate(net.left(x).relu())
        return net.head(torch.cat([net.right(x), left], 1).mean((2, 3)))

    return Net(run, left=conv(3, 6), gate=hg.Gate(6), right=conv(3, 5), head=nn.Linear(11, 4))


def excited() -> nn.Module:
    """Squeeze-and-excite behind the gate: the mean of zeros is zero, and so is zero times anything."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = net.gate(net.conv(x).relu())
        x = x * net.up(net.down(x.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        return net.head(x.mean((2, 3)))

    return Net(
        run, conv=conv(3, 8), gate=hg.Gate(8), down=nn.Linear(8, 4), up=nn.Linear(4, 8), head=nn.Linear(8, 3)
    )  # fmt: skip


def depthwise() -> nn.Module:
    return nn.Sequential(
        conv(3, 8), hg.Gate(8), conv(8, 8, groups=8, bias=False), nn.GELU(), conv(8, 4, 1), nn.Flatten(),
        nn.Linear(256, 3),
    )  # fmt: skip


def shared() -> nn.Module:
    """One gate used twice, on two groups of one size: they become one group."""

    def run(net: Any, x: Tensor) -> Tensor:
        return net.out(net.gate(net.second(net.gate(net.first(x)))))

    return Net(run, first=nn.Linear(6, 8), second=nn.Linear(8, 8), gate=hg.Gate(8), out=nn.Linear(8, 3))


def last_axis() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), hg.Gate(8, dim=-1, scale="relative"), nn.ReLU(), nn.Linear(8, 3))


class Mixing(nn.Module):
    """Channels that pass through a product over another axis, as nodes read their neighbours, before the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.empty(6, 8)), nn.Parameter(torch.empty(8))
        self.gate, self.last = hg.Gate(8, dim=-1), nn.Parameter(torch.empty(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.softmax(x @ x.mT, -1)
        x = self.gate(near @ (x @ self.first) + self.bias)
        return (near @ x) @ self.last


def one_on_each_way() -> nn.Module:
    """Two gates on two ways that read one layer: only what both closed can go."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = net.first(x).relu()
        return net.left(net.g1(x)) + net.right(net.g2(x))

    return Net(
        run, first=nn.Linear(6, 8), g1=hg.Gate(8), left=nn.Linear(8, 3), g2=hg.Gate(8), right=nn.Linear(8, 3)
    )  # fmt: skip


class Branching(nn.Module):
    """A residual block whose branch ends in a gate, and a gate on the stream before its last reader."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.last = conv(3, 8), conv(8, 5), conv(5, 8)
        self.branch, self.stream, self.head = hg.Gate(8), hg.Gate(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = (x + self.branch(self.last(self.inner(x).relu()))).relu()
        return self.head(self.stream(x).mean((2, 3)))


# What the weights of the small model look like, given how many units each gate leaves open.
EXACT: dict[str, tuple[Build, Any, Callable[..., dict[str, list[int]]]]] = {
    "autoencoder": (autoencoder, rows(), lambda k: {"0.2.weight": [k, 9], "2.0.weight": [9, k], "1.gain": [k]}),
    "lenet tanh": (lenet, images(), lambda a, b, c: {"c2.weight": [b, a, 3, 3], "fc.weight": [c, 4 * b]}),
    "lenet relu": (lambda: lenet(F.relu), images(), lambda a, b, c: {"c1.weight": [a, 3, 3, 3], "out.weight": [4, c]}),
    "lenet sin": (lambda: lenet(torch.sin), images(), lambda a, b, c: {"g1.gain": [a], "g2.gain": [b], "g3.gain": [c]}),
    "after norms": (post_norm, images(), lambda a, b: {"1.running_var": [a], "4.weight": [b, a, 3, 3]}),
    "concatenation": (dense, images(), lambda k: {"head.weight": [4, 5 + k], "right.weight": [5, 3, 3, 3]}),
    "squeeze and excite": (excited, images(), lambda k: {"down.weight": [4, k], "up.weight": [k, 4]}),
    "depthwise": (depthwise, images(), lambda k: {"2.weight": [k, 1, 3, 3], "4.weight": [4, k, 1, 1]}),
    "one gate twice": (shared, rows(), lambda k: {"second.weight": [k, k], "out.weight": [3, k]}),
    "passing products": (Mixing, tokens(), lambda k: {"first": [6, k], "bias": [k], "last": [k, 3], "gate.gain": [k]}),
    "last axis": (last_axis, tokens(), lambda k: {"0.weight": [k, 6], "3.weight": [3, k]}),
}


def close_(model: nn.Module, seed: int, fewest: int = 1) -> list[int]:
    """Random offsets; returns how many units each gate leaves open."""
    generator = torch.Generator().manual_seed(seed)
    opened = []
    with torch.no_grad():
        for gate in hg.gates(model).values():
            opened.append(int(torch.randint(fewest, gate.n, (), generator=generator)))
            gate.offset.fill_(5.0 * ((opened[-1] - 0.5) / gate.n - 1))
            gate.order.copy_(gate.order[torch.randperm(gate.n, generator=generator)])
    return opened


def ready(build: Build, seed: int = 0) -> nn.Module:
    """Random weights, gates as they were made, in double."""
    model = build()
    gates = {name: copy.deepcopy(gate.state_dict()) for name, gate in hg.gates(model).items()}
    randomise_(model, seed).double()
    for name, state in gates.items():
        model.get_submodule(name).load_state_dict(state)
    return model


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", EXACT)
def test_what_is_closed_goes_and_nothing_changes(name: str, seed: int) -> None:
    build, example, expected = EXACT[name]
    model, example = ready(build, seed), in_double(example)
    opened = close_(model, seed)
    before = outputs(model, example)
    small = hg.compact(model, example)
    assert error(before, outputs(small, example)) < LIMIT
    assert type(small) is type(model)
    assert not hg.gates(small)
    state = small.state_dict()
    for tensor, shape in expected(*opened).items():
        assert list(state[tensor].shape) == shape, tensor
    assert [gate.active for gate in hg.gates(model).values()] == opened


@pytest.mark.parametrize("name", EXACT)
def test_saved_and_loaded_with_the_class_that_places_the_gates(name: str, tmp_path: Path) -> None:
    build, example, _ = EXACT[name]
    model, example = ready(build), in_double(example)
    close_(model, 1)
    small = hg.compact(model, example)
    hg.save(small, tmp_path / "small.safetensors")
    again = hg.load(tmp_path / "small.safetensors", build)
    assert error(outputs(small, example), outputs(again, example)) == 0.0
    assert str(again) == str(small)


def test_two_ways_lose_only_what_both_gates_closed() -> None:
    model, example = ready(one_on_each_way), in_double(rows())
    with torch.no_grad():
        model.g1.offset.fill_(-1.0)  # closes 0
        model.g2.offset.fill_(-2.0)  # closes 0, 1, 2
    with pytest.raises(hg.GateError, match=r"gate 'g2': left: linear: reads it where it is not closed"):
        hg.compact(model, example)
    small = hg.compact(model, example, unremovable="scale")
    assert small.first.out_features == 7  # Eq. 3: g1 leaves ceil(8·0.8) = 7 open, g2 ceil(8·0.6) = 5
    assert (small.g1.gain == 0).sum() == 0
    assert error(outputs(model, example), outputs(small, example)) < LIMIT


@pytest.mark.parametrize("seed", range(2))
def test_the_end_of_a_branch_stops_writing_what_its_gate_closed(seed: int) -> None:
    model, example = ready(Branching, seed), in_double(images())
    branch = close_(model, seed)[0]
    small = hg.compact(model, example, unremovable="scale")
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    assert small.last.weight.shape[0] <= branch
    assert small.stem.weight.shape[0] == 8  # the branch reads the stream in front of the gate


def test_one_gate_under_two_names(tmp_path: Path) -> None:
    def build() -> nn.Module:
        gate = hg.Gate(8)
        return nn.Sequential(nn.Linear(6, 8), gate, nn.Linear(8, 8), gate, nn.Linear(8, 3))

    model, example = ready(build), in_double(rows())
    (opened,) = close_(model, 1)
    small = hg.compact(model, example)
    assert small[1] is small[3]
    assert list(small[2].weight.shape) == [opened, opened]
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    hg.save(small, tmp_path / "small.safetensors")
    again = hg.load(tmp_path / "small.safetensors", build)
    assert again[1] is again[3]
    assert error(outputs(small, example), outputs(again, example)) == 0.0


class Deciding(nn.Module):
    """Looks at values, which no graph can follow; the gate stands in a part that can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = autoencoder(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x if x.sum() > 0 else -x)


def test_a_gate_in_a_part_of_a_model_that_cannot_be_traced() -> None:
    model, example = ready(Deciding), in_double(rows())
    (opened,) = close_(model, 2)
    small = hg.compact(model, example)
    assert small.body[2][0].in_features == opened
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    with pytest.raises(hg.TraceError, match="cannot trace Deciding"):
        hg.compact(model, example, outputs="narrow")


REFUSED: dict[str, tuple[Build, Any, str]] = {
    "sigmoid": (
        lambda: nn.Sequential(nn.Linear(6, 8), hg.Gate(8), nn.Sigmoid(), nn.Linear(8, 3)), rows(),
        "gate '1': 2: sigmoid: does not send zero to zero, so a channel closed before it is heard after it; place the "
        "gate behind it. Place them",
    ),
    "softplus": (
        lambda: nn.Sequential(nn.Linear(6, 8), hg.Gate(8), nn.Softplus(), nn.Linear(8, 3)), rows(),
        "gate '1': 2: softplus: does not send zero to zero",
    ),
    "a number is added": (
        lambda: Net(lambda n, x: n.b(n.g(n.a(x)) + 1), a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3)), rows(),
        "gate 'g': root: add: does not send zero to zero",
    ),
    "before a norm": (
        lambda: nn.Sequential(conv(3, 8), hg.Gate(8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 3)), images(),
        "gate '1': 2: ",
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), hg.Gate(8), nn.LayerNorm(8), nn.Linear(8, 3)), rows(),
        "gate '1': 2: layer_norm: normalises over channels",
    ),
    "read before the gate": (
        lambda: Net(
            lambda n, x: n.b(n.g(h := n.a(x))) + n.c(h), a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3),
            c=nn.Linear(8, 3),
        ), rows(), "gate 'g': c: linear: reads it where it is not closed, past the gate; let it",
    ),
    "read by a product past the gate": (
        lambda: Net(
            lambda n, x: (h := n.a(x)) @ (h.T @ n.b(n.g(h))), a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3)
        ), rows(), "gate 'g': root: matmul: reads it where it is not closed, past the gate; let it",
    ),
    "a product that mixes channels": (
        lambda: Net(
            lambda n, x: n.b((h := n.g(n.a(x))) @ torch.tanh(h.T @ h + 1)), a=nn.Linear(6, 8), g=hg.Gate(8),
            b=nn.Linear(8, 3),
        ), rows(), "gate 'g': root: add: does not send zero to zero",
    ),
    "a depthwise bias": (
        lambda: nn.Sequential(conv(3, 8), hg.Gate(8), conv(8, 8, groups=8), conv(8, 3)), images(),
        "gate '1': 2: conv2d: does not send zero to zero",
    ),
    "a size of its own": (
        lambda: Net(
            lambda n, x: n.b(n.g(n.a(x)).reshape(-1, 8)), a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3)
        ), rows(), "a: trial: the model's own code does not run on fewer channels (RuntimeError: shape ",
    ),
    "a number of channels in the code": (
        lambda: Net(
            lambda n, x: n.b((h := n.g(n.a(x))) / h.shape[1]), a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3)
        ), rows(), "; the first to compute something else is b (Linear), or the code that leads to it",
    ),
    "a number of channels after the last layer": (
        lambda: Net(
            lambda n, x: n.b(h := n.g(n.a(x))) / h.shape[1], a=nn.Linear(6, 8), g=hg.Gate(8), b=nn.Linear(8, 3)
        ), rows(), "; all layers compute the same, the code that joins them does not",
    ),
    "what no layer writes": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3, padding=6), hg.Gate(16, dim=2),
                              nn.Conv1d(3, 4, 3)), rows(), "gate '2': 2: gate: scales what no layer writes: ",
    ),
    "a function that is never zero": (
        lambda: nn.Sequential(nn.Linear(6, 8), hg.Gate(8, fn="sigmoid"), nn.Linear(8, 3)), rows(),
        "gate '1': 1: sigmoid: is never exactly 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_or_kept_as_a_scale(name: str) -> None:
    build, example, reason = REFUSED[name]
    model, example = ready(build), in_double(example)
    close_(model, 0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(hg.GateError, match="cannot be removed exactly") as refusal:
        hg.compact(model, example)
    assert reason in str(refusal.value)
    small = hg.compact(model, example, unremovable="scale")
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    assert [len(m.gain) for m in small.modules() if isinstance(m, Scale)] == [
        gate.n for gate in hg.gates(model).values()
    ]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_an_output_keeps_its_width_unless_asked() -> None:
    model, example = ready(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), hg.Gate(8))), in_double(rows())
    with torch.no_grad():
        model[2].offset.fill_(-2.0)
    whole, expected = hg.compact(model, example), outputs(model, example)[0]
    assert error([expected], outputs(whole, example)) < LIMIT
    assert whole[0].out_features == 8
    narrow = hg.compact(model, example, outputs="narrow")
    assert narrow[0].out_features == 5
    assert error([expected[:, 3:]], outputs(narrow, example)) < LIMIT


def code_and_more(net: Any, x: Tensor) -> dict[str, Any]:
    code = net.gate(net.encoder(x))
    return {"rebuilt": net.decoder(code), "none": None, "code": code.t()}


def test_a_returned_code_becomes_narrow_along_its_own_axis() -> None:
    def build() -> nn.Module:
        return Net(code_and_more, encoder=nn.Linear(6, 8), gate=hg.Gate(8), decoder=nn.Linear(8, 6))

    model, example = ready(build), in_double(rows())
    close_(model, 2)
    open_units = model.gate.keep().nonzero().squeeze(1)
    assert hg.compact(model, example).encoder.out_features == 8
    small = hg.compact(model, example, outputs="narrow")
    with torch.no_grad():
        expected, got = model(example), small(example)
    assert error([expected["rebuilt"]], [got["rebuilt"]]) < LIMIT
    assert error([expected["code"][open_units]], [got["code"]]) < LIMIT


def test_an_output_that_also_shows_what_was_closed_is_refused() -> None:
    model = ready(lambda: Net(lambda n, x: (h := n.a(x), n.g(h)), a=nn.Linear(6, 8), g=hg.Gate(8)))
    close_(model, 0)
    with pytest.raises(hg.GateError, match=r"output: the model returns it"):
        hg.compact(model, in_double(rows()), outputs="narrow")


def test_a_gate_that_closed_everything_leaves_one_channel_of_zeros() -> None:
    model, example = ready(autoencoder), in_double(rows())
    with torch.no_grad():
        model[1].offset.fill_(-5.0)
    small = hg.compact(model, example)
    assert small[1].gain.tolist() == [0.0]
    assert error(outputs(model, example), outputs(small, example)) < LIMIT


@pytest.mark.parametrize("offset", [1.0, 5.0])
def test_a_mask_of_ones_becomes_an_identity(offset: float) -> None:
    model = nn.Sequential(nn.Linear(6, 8), hg.Gate(8, offset=offset, fn="piecewise_linear"), nn.Linear(8, 3))
    example = rows()
    small = hg.compact(model, example)
    assert isinstance(small[1], nn.Identity)
    assert torch.equal(small(example), model(example))


def test_a_baked_gate_is_removed_with_the_values_it_was_baked_with() -> None:
    model, example = ready(autoencoder), in_double(rows())
    close_(model, 3)
    expected = outputs(model, example)
    hg.bake_(model)
    with torch.no_grad():
        model[1].offset.fill_(1.0)
    assert error(expected, outputs(hg.compact(model, example), example)) < LIMIT


class Both(nn.Module):
    """A hand-placed gate in a network that gets inserted ones."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 12), nn.BatchNorm2d(12), nn.ReLU(), conv(12, 10), nn.ReLU())
        self.gate, self.hidden, self.head = hg.Gate(10), nn.Linear(10, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.gate(self.features(x)).mean((2, 3))).relu())


@pytest.mark.parametrize("given", [True, False])
def test_inserted_and_hand_placed_gates_together(given: bool, tmp_path: Path) -> None:
    model, example = ready(Both), in_double(images())
    inserted = hg.insert_gates_(model, example)
    assert set(inserted) == {"features.0", "hidden"}
    opened = dict(zip(hg.gates(model), close_hand_and_inserted_(model), strict=True))
    small = hg.compact(model, example if given else None)
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    assert list(small.features[3].weight.shape[:2]) == [opened["gate"], opened["features.0"]]
    with pytest.raises(hg.GateError, match="'gate' of Both were placed by hand"):
        hg.kept(model, of="params")
    hg.save(small, tmp_path / "small.safetensors")
    again = hg.load(tmp_path / "small.safetensors", Both)
    assert error(outputs(small, example), outputs(again, example)) == 0.0


@torch.no_grad()
def close_hand_and_inserted_(model: nn.Module) -> list[int]:
    for number, gate in enumerate(hg.gates(model).values()):
        gate.offset.fill_(5.0 * ((4.5 + number % 2) / gate.n - 1))
    return [gate.active for gate in hg.gates(model).values()]


def test_the_small_model_can_be_gated_and_compacted_again(tmp_path: Path) -> None:
    model, example = ready(post_norm), in_double(images())
    close_(model, 5, fewest=5)
    small = hg.compact(model, example)
    inserted = hg.insert_gates_(small, example, floor=1)
    assert inserted
    close_hand_and_inserted_(small)
    with torch.no_grad():
        for gate in hg.gates(small).values():
            gate.offset.fill_(-2.0)
    smaller = hg.compact(small, example)
    assert error(outputs(small, example), outputs(smaller, example)) < LIMIT
    assert smaller[0].out_channels < small[0].out_channels
    hg.save(smaller, tmp_path / "smaller.safetensors")
    again = hg.load(tmp_path / "smaller.safetensors", post_norm)
    assert error(outputs(smaller, example), outputs(again, example)) == 0.0


def test_remove_gates_keeps_full_size_and_can_be_saved(tmp_path: Path) -> None:
    model, example = ready(lenet), in_double(images())
    close_(model, 1)
    expected = outputs(model, example)
    hg.remove_gates_(model)
    assert not hg.gates(model)
    assert [len(m.gain) for m in model.modules() if isinstance(m, Scale)] == [6, 8, 10]
    assert error(expected, outputs(model, example)) == 0.0
    hg.save(model, tmp_path / "full.safetensors")
    again = hg.load(tmp_path / "full.safetensors", lenet)
    assert error(expected, outputs(again, example)) == 0.0


@pytest.mark.parametrize("step", ["_remove_ones_", "apply_recipe_"])
def test_a_failing_removal_leaves_no_trace(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = ready(Both), in_double(images())
    hg.insert_gates_(model, example)
    close_hand_and_inserted_(model)
    before, modules = {k: v.clone() for k, v in model.state_dict().items()}, list(model.modules())
    expected = outputs(model, example)

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(hand, step, fail)
    with pytest.raises(RuntimeError, match="injected"):
        hg.remove_gates_(model)
    with pytest.raises(RuntimeError, match="injected"):
        hg.compact(model, example)
    assert [id(module) for module in model.modules()] == [id(module) for module in modules]
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert error(expected, outputs(model, example)) == 0.0


def test_errors_that_say_what_to_do() -> None:
    model = autoencoder()
    with pytest.raises(hg.GateError, match=r"placed by hand; give an example input"):
        hg.compact(model)
    with pytest.raises(hg.ArgumentError, match="outputs='small' is unknown; use one of full, narrow"):
        hg.compact(model, rows(), outputs="small")  # type: ignore[arg-type]
    with pytest.raises(hg.ArgumentError, match="unremovable='drop' is unknown"):
        hg.compact(model, rows(), unremovable="drop")  # type: ignore[arg-type]
    with pytest.raises(hg.GateError, match="itself a Gate"):
        hg.compact(hg.Gate(6), rows())
    with torch.no_grad():
        model[1].offset.fill_(float("nan"))
    with pytest.raises(hg.GateError, match="1 "):
        hg.compact(model, rows())


def test_a_file_is_only_for_a_network_with_those_gates(tmp_path: Path) -> None:
    model, example = ready(autoencoder), in_double(rows())
    close_(model, 0)
    path = tmp_path / "small.safetensors"
    hg.save(hg.compact(model, example), path)

    def without() -> nn.Module:
        plain = autoencoder()
        plain[1] = nn.Identity()
        return plain

    with pytest.raises(hg.RecipeError, match=r"1\.offset of shape \[\] is missing"):
        hg.load(path, without)

    def with_more() -> nn.Module:
        more = autoencoder()
        more[0].append(hg.Gate(8))
        return more

    with pytest.raises(hg.GateError, match="has gates"):
        hg.load(path, with_more)


def test_training_goes_on_after_compaction() -> None:
    model, example = ready(post_norm), in_double(images())
    close_(model, 0)
    small = hg.compact(model, example).train()
    small(example).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
