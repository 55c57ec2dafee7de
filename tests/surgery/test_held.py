"""Where only heads of an attention can go, or only places of heads, the plan says why the others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from headgate.channels.held import HEADS as OF_HEADS
from headgate.channels.held import PLACES as OF_PLACES
from tests.attention_toys import HEADS, PLACES, WIDTH, SelfAttention, merged, plain_kernel
from tests.place_toys import (
    VALUES,
    Inferred,
    OneProjection,
    Valued,
    by_a_fixed_scale,
    by_the_size_at_hand,
    fused,
    linear,
    with_normed_queries,
)
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, randomise_
from tests.toys import tokens

X = tokens()


class Around(nn.Module):
    """A linear map before an attention and one behind it; what else the attention returns is returned."""

    def __init__(self, attention: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.before, self.attention, self.behind = nn.Linear(6, width), attention, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.attention(self.before(x))
        return (self.behind(y[0]), *y[1:]) if isinstance(y, tuple) else self.behind(y)


class ReturnsWeights(Inferred):
    def forward(self, x: Tensor) -> Any:
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1) * PLACES**-0.5).softmax(-1)
        return self.o(merged(weights @ v)), weights


class Averages(ReturnsWeights):
    def forward(self, x: Tensor) -> Any:
        out, weights = super().forward(x)
        return out, weights.mean(1)


class Rotated(nn.Module):
    """Rotary positions over heads of four places, with a scale of its own or without."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 16) for _ in range(3))
        self.o, self.scale = nn.Linear(16, WIDTH), scale

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] / torch.tensor([1.0, 3.0]).repeat(2)

        def turned(x: Tensor) -> Tensor:
            low, high = x.chunk(2, dim=-1)
            return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

        q, k, v = (part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(merged(F.scaled_dot_product_attention(turned(q), turned(k), v, scale=self.scale)))


class Packed(nn.Module):
    """torch's own attention, which may be asked for its weights."""

    def __init__(self, weights: bool, average: bool = False) -> None:
        super().__init__()
        self.mha, self.weights, self.average = nn.MultiheadAttention(12, 4, batch_first=True), weights, average

    def forward(self, x: Tensor) -> Any:
        y, weights = self.mha(x, x, x, need_weights=self.weights, average_attn_weights=self.average)
        return (y, weights) if self.weights else y


class Slopes(Valued):
    """As Bloom has it: positions weigh by a slope for every head, which follows from the number of heads."""

    def __init__(self) -> None:
        super().__init__(fused)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k(x).view(batch, length, self.num_heads, self.key_dim).transpose(1, 2)
        v = self.v(x).view(batch, length, self.num_heads, self.value_dim).transpose(1, 2)
        slopes = 0.5 ** torch.arange(1, 1 + self.num_heads, dtype=x.dtype)
        scores = q @ k.transpose(-2, -1) + slopes[:, None, None] * torch.arange(length, dtype=x.dtype)
        return self.o(merged(scores.softmax(-1) @ v))


class HeadsLast(Inferred):
    """Channels lie place by place, in each of them head by head."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.num_heads)).movedim(-1, 1) for part in (self.q, self.k, self.v))
        return self.o(self.kernel(q, k, v).movedim(1, -1).flatten(2))


# For each: what stays, how many, and parts of what is said: module, operation, reason, what to do.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, int, tuple[str, ...]]]] = {
    "returned weights": (
        lambda: Around(ReturnsWeights(fused)),
        (OF_HEADS, HEADS, ("attention: output: the model returns it", "without them among the outputs heads could go")),
    ),
    "averaged weights": (
        lambda: Around(Averages(fused)),
        (OF_HEADS, HEADS, ("attention: mean: reduces over channels", "averaged over heads: without them heads could")),
    ),
    "rotary positions": (
        lambda: Around(Rotated(0.4)),
        (OF_PLACES, 4, ("attention: scaled_dot_product_attention: sums over", "does not get past add in attention")),
    ),
    "rotary positions, scaled by their number": (
        lambda: Around(Rotated(None)),
        (OF_PLACES, 4, ("attention: scaled_dot_product_attention: sums over", "does not get past add in attention")),
    ),
    "torch's own": (
        lambda: Around(Packed(weights=False), 12),
        (OF_PLACES, 3, ("attention.mha: scaled_dot_product_attention: torch's MultiheadAttention", "written out")),
    ),
    "torch's own, returned weights": (
        lambda: Around(Packed(weights=True), 12),
        (OF_HEADS, 4, ("attention.mha: output: the model returns it", "without them among the outputs heads could go")),
    ),
    "torch's own, averaged weights": (
        lambda: Around(Packed(weights=True, average=True), 12),
        (OF_HEADS, 4, ("attention.mha: mean: reduces over channels", "without them heads could go")),
    ),
    "scaled by their number": (
        lambda: Around(Inferred(fused)),
        (OF_PLACES, PLACES, ("attention: scaled_dot_product_attention: multiplies queries", "unless scale= is given")),
    ),
    "one projection, scaled by their number": (
        lambda: Around(OneProjection("view", False)),
        (OF_PLACES, VALUES, ("attention: scaled_dot_product_attention: multiplies queries", "unless scale= is given")),
    ),
    "scaled by the size at hand": (
        lambda: Around(Inferred(by_the_size_at_hand)),
        (OF_PLACES, PLACES, ("attention.k: trial: outputs differ by", "made once, as self.scale = head_dim ** -0.5")),
    ),
    "normed": (
        lambda: Around(Inferred(with_normed_queries)),
        (OF_PLACES, PLACES, ("attention: linalg_vector_norm: reduces over channels",)),
    ),
    "linear attention": (
        lambda: Around(Inferred(linear)),
        (OF_PLACES, PLACES, ("attention: softmax: mixes channels along this axis",)),
    ),
    "one size for all three": (
        lambda: Around(SelfAttention(plain_kernel)),
        (
            OF_PLACES,
            PLACES,
            ("attention.k: trial: the model's own code does not run", "(head_dim of attention was tried)"),
        ),
    ),
    "heads last": (
        lambda: Around(HeadsLast(by_a_fixed_scale, values=PLACES)),
        (OF_PLACES, PLACES, ("attention: view: merges axes", "with view(…, heads, width) their places could go too")),
    ),
    "heads last, scaled by their number": (
        lambda: Around(HeadsLast(fused)),
        (OF_PLACES, PLACES, ("attention: scaled_dot_product_attention: multiplies queries", "unless scale= is given")),
    ),
    "slopes by the number of heads": (
        lambda: Around(Slopes()),
        (OF_HEADS, HEADS, ("trial: outputs differ by", "(arange in attention): kept in a buffer they would be cut")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_says_why_the_others_stay(name: str) -> None:
    build, (what, size, said) = CASES[name]
    plan = hg.find_groups(build(), X)
    told = [refusal for refusal in plan.refusals if refusal.what == what]
    fitting = [one for one in told if all(part in "; ".join(map(str, one.obstacles)) for part in said)]
    assert len(fitting) == 1 and fitting[0].size == size
    assert all(axis[0].startswith("attention.") for axis in fitting[0].axes)
    assert f"{what}: {min(fitting[0].axes)[0]}" in str(plan)
    assert ("attention.before" not in str(plan)) and any(group.name == "before" for group in plan.groups)


def test_the_axes_that_carry_them_are_named() -> None:
    (told,) = (one for one in hg.find_groups(Around(Inferred(fused)), X).refusals if one.what)
    assert told.axes == tuple((f"attention.{part}.{leaf}", 0) for part in "kq" for leaf in ("bias", "weight"))
    (told,) = (one for one in hg.find_groups(Around(Packed(False), 12), X).refusals if one.what)
    own = [(f"attention.mha.{name}", 0) for name in ("in_proj_bias", "in_proj_weight")]
    assert told.axes == (*own, ("attention.mha.out_proj.weight", 1))


def test_nothing_is_said_where_both_go_or_where_there_is_no_attention() -> None:
    plan = hg.find_groups(Around(OneProjection("view")), X)
    assert not any(refusal.what for refusal in plan.refusals)
    plan = hg.find_groups(
        nn.Sequential(nn.Linear(6, 12), nn.Unflatten(-1, (4, 3)), nn.Flatten(-2), nn.Linear(12, 2)), X
    )
    assert not any(refusal.what for refusal in plan.refusals)


@pytest.mark.parametrize("weights", [False, True])
def test_torchs_own_attention_reads_fewer_channels_and_keeps_its_heads(weights: bool) -> None:
    model = randomise_(Around(Packed(weights), 12)).double()
    gates = hg.insert_gates_(model, X.double(), floor=1, where=lambda name, _: name == "before")
    assert list(gates) == ["before"]
    move_offsets_(model, seed=1)
    small = hg.compact(model)
    assert small.attention.mha.num_heads == 4 and small.before.out_features < 12
    assert error(outputs(model, X.double()), outputs(small, X.double())) < LIMIT


class ByColumns(nn.Module):
    """As GPT-2 has it: maps whose weights are stored the other way round, one number for their outputs."""

    class Map(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.nf, self.weight, self.bias = (
                outputs,
                nn.Parameter(torch.rand(inputs, outputs)),
                nn.Parameter(torch.rand(outputs)),
            )

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.head_dim, self.split_size, self.scale = 3, width, 0.5
        self.attn, self.proj = self.Map(width, 3 * width), self.Map(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attn(x).split(self.split_size, dim=-1)
        q, k, v = (part.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in parts)
        return self.proj(merged(F.scaled_dot_product_attention(q, k, v, scale=self.scale)))


def test_places_go_where_columns_of_a_weight_write_them() -> None:
    """As wide as its heads together: the number of outputs of the last map must not shrink with these."""
    layers = (nn.Linear(6, 12), nn.LayerNorm(12), ByColumns(), nn.LayerNorm(12), nn.Linear(12, 3))
    model = randomise_(nn.Sequential(*layers)).double()
    gates = hg.insert_gates_(model, X.double(), floor=1)
    assert {name: gate.n for name, gate in gates.items()} == {"2.attn": 4, "2.attn#2": 3}
    move_offsets_(model, seed=2)
    small = hg.compact(model)
    assert small[2].proj.nf == 12 and small[2].attn.nf == 3 * small[2].split_size < 36
    assert error(outputs(model, X.double()), outputs(small, X.double())) < LIMIT


class Masked(Inferred):
    """As DeBERTa has it: what the code makes for every sequence meets the tokens, and heads join the batch."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.ones(x.shape[:2], dtype=x.dtype).unsqueeze(-1)
        parts = (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1) for part in parts)
        out = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.o(merged(out.view(-1, self.num_heads, *out.shape[1:])))


def test_heads_go_although_they_join_a_batch_that_carries_something() -> None:
    model = randomise_(Around(Masked(fused))).double()
    plan = hg.find_groups(model, X.double())
    assert {group.name: group.size for group in plan.groups} == {
        "before": WIDTH, "attention.q": HEADS, "attention.v": VALUES, "attention.o": WIDTH,
    }  # fmt: skip
    hg.insert_gates_(model, X.double(), floor=1, order="random:1")
    move_offsets_(model, seed=4)
    small = hg.compact(model)
    for x in (X, tokens(batch=3), tokens(length=7)):
        assert error(outputs(model, x.double()), outputs(small, x.double())) < LIMIT


class Limited(Inferred):
    """Takes so many tokens at most: as many as there are channels of values, which have nothing to do with it."""

    def __init__(self) -> None:
        super().__init__(fused)
        self.block_size = HEADS * VALUES

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, : self.block_size])


def test_a_limit_on_tokens_that_the_example_does_not_reach_stays() -> None:
    model = randomise_(Around(Limited())).double()
    hg.insert_gates_(model, X.double(), floor=1)
    move_offsets_(model, seed=4)
    small, longer = hg.compact(model), tokens(length=30).double()
    assert small.attention.block_size == HEADS * VALUES > small.attention.v.out_features
    assert error(outputs(model, longer), outputs(small, longer)) < LIMIT
