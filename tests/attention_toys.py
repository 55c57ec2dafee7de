"""Attention as users write it, with the answers worked out by hand: one unit per head, or per group of shared keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.toys import Net, Toy, head, tokens

WIDTH, HEADS, PLACES = 10, 4, 3


def merged(x: Tensor) -> Tensor:
    """(B, H, T, D) to (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Separate projections, (B, H, T, D), a kernel that says what happens between them."""

    def __init__(self, kernel: Callable[[Any, Tensor, Tensor, Tensor], Tensor], shared: int = 1, bias: bool = True):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = HEADS, HEADS // shared, PLACES
        self.q = nn.Linear(WIDTH, HEADS * PLACES, bias=bias)
        self.k = nn.Linear(WIDTH, HEADS // shared * PLACES, bias=bias)
        self.v = nn.Linear(WIDTH, HEADS // shared * PLACES, bias=bias)
        self.o = nn.Linear(HEADS * PLACES, WIDTH, bias=bias)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        return self.o(merged(self.kernel(self, q, k, v)))


def fused_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)


def plain_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(m.head_dim)
    length = scores.shape[-1]
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1, m.training) @ v


def einsum_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def merged_batch_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Batch and heads as one axis, and `bmm`."""
    shape = (q.shape[0] * m.num_heads, -1, m.head_dim)
    q, k, v = (one.reshape(shape) for one in (q, k, v))
    out = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
    return out.view(-1, m.num_heads, *out.shape[1:])


def normed_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys normalised head by head."""
    q, k = F.layer_norm(q, (m.head_dim,)), F.normalize(k, dim=-1)
    return F.scaled_dot_product_attention(q, k, v)


def casting_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled in one type, brought back to another tensor's."""
    return F.scaled_dot_product_attention((2 * q.double()).type_as(k), k, v)


def empty_rest_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Something happens to the first places, which here are all: the slice of the others is empty."""
    q = torch.cat([-q[..., :PLACES], q[..., PLACES:]], -1)
    return F.scaled_dot_product_attention(q, k, v)


def repeating_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = m.num_heads // m.num_kv_heads
    return fused_kernel(m, q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def expanding_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, length, places = k.shape
    times = m.num_heads // m.num_kv_heads
    k, v = (
        one[:, :, None].expand(batch, heads, times, length, places).reshape(batch, heads * times, length, places)
        for one in (k, v)
    )
    return fused_kernel(m, q, k, v)


def grouped_kernel(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class FusedQkv(nn.Module):
    """One projection for queries, keys and values, taken apart in one of several ways."""

    def __init__(self, apart: Callable[[Any, Tensor], tuple[Tensor, Tensor, Tensor]]):
        super().__init__()
        self.heads, self.dim_head = HEADS, PLACES
        self.inner_dim = HEADS * PLACES
        self.qkv = nn.Linear(WIDTH, 3 * self.inner_dim)
        self.proj = nn.Linear(self.inner_dim, WIDTH)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.apart(self, self.qkv(x))
        return self.proj(merged(F.scaled_dot_product_attention(q, k, v)))


def by_heads(m: Any, x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], m.heads, m.dim_head).transpose(1, 2)


def by_chunk(m: Any, x: Tensor) -> Any:
    return tuple(by_heads(m, part) for part in x.chunk(3, dim=-1))


def by_split(m: Any, x: Tensor) -> Any:
    return tuple(by_heads(m, part) for part in x.split(m.inner_dim, dim=-1))


def by_unbind(m: Any, x: Tensor) -> Any:
    return x.reshape(*x.shape[:2], 3, m.heads, m.dim_head).permute(2, 0, 3, 1, 4).unbind(0)


def by_index(m: Any, x: Tensor) -> Any:
    qkv = x.reshape(*x.shape[:2], 3, m.heads, m.dim_head).permute(2, 0, 3, 1, 4)
    return qkv[0], qkv[1], qkv[2]


def head_by_head(m: Any, x: Tensor) -> Any:
    """As GPT-NeoX stores it: the three of each head side by side."""
    return x.view(*x.shape[:2], m.heads, 3 * m.dim_head).transpose(1, 2).chunk(3, dim=-1)


class Projection(nn.Module):
    """A linear map with its weight the other way round that keeps the width of its output, as GPT-2's has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.rand(inputs, outputs)), nn.Parameter(torch.rand(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class ByProjections(nn.Module):
    """The stream is as wide as all heads, so that the number kept by the last map could count either."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.split_size = HEADS, HEADS * PLACES
        self.c_attn, self.c_proj = Projection(12, 36), Projection(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(*x.shape[:2], -1, PLACES).transpose(1, 2) for part in self.c_attn(x).split(self.split_size, dim=2)
        )
        return self.c_proj(merged(F.scaled_dot_product_attention(q, k, v)))


class Positions(nn.Module):
    """A bias for every head and distance, as Swin and T5 have it."""

    def __init__(self, length: int = 5) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(2 * length - 1, HEADS))
        steps = torch.arange(length)
        self.register_buffer("distance", steps[:, None] - steps[None] + length - 1)

    def forward(self) -> Tensor:
        length = len(self.distance)
        return self.table[self.distance.view(-1)].view(length, length, -1).permute(2, 0, 1).unsqueeze(0)


class Biased(SelfAttention):
    """Scores get a learned bias that depends on head and distance, and a temperature per head."""

    def __init__(self, embedded: bool = False) -> None:
        super().__init__(plain_kernel)
        self.embedded = embedded
        self.bias = nn.Embedding(9, HEADS) if embedded else Positions()
        self.logit_scale = nn.Parameter(torch.rand(HEADS, 1, 1))
        self.kernel = self.biased

    def biased(self, m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m = self
        scores = q @ k.transpose(-2, -1) * m.logit_scale
        if m.embedded:
            steps = torch.arange(scores.shape[-1])
            bias = m.bias(steps[:, None] - steps[None] + 4).permute(2, 0, 1)
        else:
            bias = m.bias()
        return (scores + bias).softmax(-1) @ v


class Windowed(nn.Module):
    """Swin's reshapes: windows of positions become part of the batch, shifted and back."""

    def __init__(self, window: int = 2) -> None:
        super().__init__()
        self.window, self.attention = window, FusedQkv(by_unbind)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        w = self.window
        x = torch.roll(x, (-1, -1), (1, 2))
        x = x.view(batch, height // w, w, width // w, w, channels).permute(0, 1, 3, 2, 4, 5)
        x = self.attention(x.reshape(-1, w * w, channels))
        x = x.view(batch, height // w, width // w, w, w, channels).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(x.reshape(batch, height, width, channels), (1, 1), (1, 2))


def turned(x: Tensor, style: str) -> Tensor:
    """Rotary positions, in one of three ways of writing them."""
    length, places = x.shape[-2:]
    angles = torch.arange(length)[:, None] / 10 ** (torch.arange(0, places, 2) / places)
    if style == "complex":
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    if style == "pairs":
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    angles = torch.cat([angles, angles], -1)
    low, high = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()


class Rotary(nn.Module):
    """Grouped queries with rotary positions: four heads, two of keys and values, four places."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.head_dim = style, 4
        self.q, self.k, self.v = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.o = nn.Linear(16, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = turned(q, self.style), turned(k, self.style)
        return self.o(merged(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


class PerHeadWeights(nn.Module):
    """Heads as an axis of the weights themselves, by einsum: places of values can go too."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q", "k", "v"):
            setattr(self, name, nn.Parameter(torch.rand(WIDTH, HEADS, PLACES)))
        self.o = nn.Parameter(torch.rand(HEADS, PLACES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btc,chd->bthd", x, w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        return torch.einsum("bihd,hdc->bic", torch.einsum("bhij,bjhd->bihd", weights, v), self.o)


class Cross(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.kv = nn.Linear(WIDTH, HEADS * PLACES), nn.Linear(WIDTH, 2 * HEADS * PLACES)
        self.o = nn.Linear(HEADS * PLACES, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q = self.q(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).view(*y.shape[:2], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(merged(F.scaled_dot_product_attention(q, k, v)))


class SizedByInput(nn.Module):
    """Takes the width of a head from the width of its input, which never shrinks: cannot have fewer heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, length, width)
        return self.proj(x)


class AsManyPlacesAsHeads(nn.Module):
    """Heads, places, and something else have the same number: trials tell which attribute counts what."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = self.head_dim = self.num_steps = 4
        self.q, self.k, self.v, self.o = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        return self.o(merged(F.scaled_dot_product_attention(q, k, v))) * self.num_steps


def between(attention: nn.Module, width: int = WIDTH) -> Callable[[], nn.Module]:
    """A pre-norm residual block around it, an embedding before and a head after."""
    return lambda: Net(
        lambda m, x: m.head((h := m.embed(x)) + m.attention(m.norm(h))),
        embed=nn.Linear(6, width),
        norm=nn.LayerNorm(width),
        attention=attention,
        head=nn.Sequential(nn.LayerNorm(width), head(width)),
    )


def _toy(name: str, build: Callable[[], nn.Module], groups: dict[str, int], width: int = WIDTH, **options: Any) -> Toy:
    def fresh() -> nn.Module:
        return between(build(), width)()

    others = options.pop("others", (tokens(batch=3),))
    return Toy(name, fresh, tokens(), {f"attention.{key}": n for key, n in groups.items()}, others=others, **options)


KERNELS = {
    "fused kernel": fused_kernel, "causal": causal_kernel, "masked": masked_kernel, "plain matmul": plain_kernel,
    "einsum": einsum_kernel, "batch and heads merged": merged_batch_kernel, "normalised queries": normed_kernel,
    "cast like another": casting_kernel, "an empty rest": empty_rest_kernel,
}  # fmt: skip
# Where the scale is no number of places, these can go too: of queries, keys and values together, since one attribute
# gives them all one size.
GROUPS = {name: {"q": 4, "k": 3} for name in ("masked", "einsum", "batch and heads merged")}
SHARED_KEYS = {"repeated": repeating_kernel, "expanded": expanding_kernel, "by the kernel": grouped_kernel}
APART = {"chunk": by_chunk, "split": by_split, "unbind": by_unbind, "index": by_index, "head by head": head_by_head}

ATTENTION = [
    *(_toy(f"attention, {name}", partial(SelfAttention, k), GROUPS.get(name, {"q": 4})) for name, k in KERNELS.items()),
    _toy("attention without biases", lambda: SelfAttention(fused_kernel, bias=False), {"q": 4}),
    *(_toy(f"shared keys, {name}", partial(SelfAttention, k, 2), {"q": 2}) for name, k in SHARED_KEYS.items()),
    *(_toy(f"fused qkv, {name}", partial(FusedQkv, k), {"qkv": 4}) for name, k in APART.items()),
    _toy("relative positions", Biased, {"q": 4, "k": 3}),
    _toy("relative positions embedded", lambda: Biased(True), {"q": 4, "k": 3}),
    *(_toy(f"rotary, {s}", partial(Rotary, s), {"q": 2}) for s in ("halves", "pairs", "complex")),
    Toy("heads in the weights", lambda: between(PerHeadWeights())(), tokens(), {"attention": 4, "attention#2": 3}),
    _toy("as many places as heads", AsManyPlacesAsHeads, {"q": 4}, 8),
    _toy("projections that keep their width", ByProjections, {"c_attn": 4}, 12),
    _toy("heads sized by the input", SizedByInput, {}, 12, stays=("attention.qkv: trial",)),
    Toy(
        "windowed attention",
        lambda: Net(
            lambda m, x: m.head(m.attention(m.embed(x))),
            embed=nn.Linear(3, WIDTH),
            attention=Windowed(),
            head=head(WIDTH),
        ),
        torch.randn(2, 4, 6, 3, generator=torch.Generator().manual_seed(0)),
        {"attention.attention.qkv": 4},
        stays=("embed: trial", "attention.attention.proj: trial"),
    ),
    Toy(
        "cross attention",
        lambda: Net(lambda m, x, y: m.head(x + m.cross(x, y)), cross=Cross(), head=head(WIDTH)),
        (tokens(WIDTH), tokens(WIDTH, length=7)),
        {"cross.q": 4},
    ),
]  # fmt: skip
