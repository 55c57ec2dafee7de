"""The inner widths of heads, with the answers worked out by hand: heads are units, and so are places of every head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attention_toys import HEADS, PLACES, WIDTH, SelfAttention, between, merged, plain_kernel
from tests.toys import Net, Toy, head, images, tokens

VALUES = 5
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * PLACES**-0.5).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)


def batch_and_heads_merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch = len(q)
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v).unflatten(0, (batch, -1))


def by_a_fixed_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.4)


def grouped_by_a_fixed_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.4, enable_gqa=True)


def by_the_size_at_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v


def with_normed_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)).softmax(-1) @ v


def turned_by_position_of_eight(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rotary positions of eight places: what the first of a pair becomes depends on the other one."""
    angles = torch.arange(q.shape[-2])[:, None] / torch.tensor([1.0, 3.0, 10.0, 30.0]).repeat(2)

    def turned(x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

    return F.scaled_dot_product_attention(turned(q), turned(k), v, scale=0.4)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Without a softmax over positions: keys meet values first."""
    return q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)


class Valued(nn.Module):
    """Four heads with three places for queries and keys, five for values; sizes by attributes."""

    def __init__(self, kernel: Kernel, shared: int = 1, bias: bool = True, values: int = VALUES) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.key_dim, self.value_dim = HEADS, HEADS // shared, PLACES, values
        self.q = nn.Linear(WIDTH, HEADS * PLACES, bias=bias)
        self.k = nn.Linear(WIDTH, self.kv_heads * PLACES, bias=bias)
        self.v = nn.Linear(WIDTH, self.kv_heads * values, bias=bias)
        self.o = nn.Linear(HEADS * values, WIDTH, bias=bias)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, self.key_dim).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, self.value_dim).transpose(1, 2)
        return self.o(merged(self.kernel(q, k, v)))


class Inferred(Valued):
    """The width of a head is what is left; the code gives none."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(merged(self.kernel(q, k, v)))


class InnerWidth(Valued):
    """Keeps the product of both numbers, too."""

    def __init__(self) -> None:
        super().__init__(fused)
        self.inner_dim = HEADS * VALUES

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(fused(q, k, v).transpose(1, 2).reshape(*x.shape[:2], self.inner_dim))


class Scaled(Inferred):
    """A learned scale for each channel of the values, and one for each place of what comes out."""

    def __init__(self) -> None:
        super().__init__(fused)
        self.before, self.after = nn.Parameter(torch.rand(HEADS * VALUES)), nn.Parameter(torch.rand(VALUES))

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.q(x), self.k(x), self.v(x) * self.before)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        return self.o(merged(fused(q, k, v) * self.after))


class SideBySide(nn.Module):
    """As LeViT has it: one projection, in it for each head queries, keys and wider values, split by their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim = HEADS, PLACES, VALUES
        self.qkv = nn.Linear(WIDTH, HEADS * (2 * PLACES + VALUES))
        self.proj = nn.Linear(HEADS * VALUES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).view(*x.shape[:2], self.num_heads, -1)
        q, k, v = parts.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        return self.proj(merged(fused(*(part.transpose(1, 2) for part in (q, k, v)))))


class ReadByRows(Inferred):
    """The output projection is a bare parameter, read along its first axis."""

    def __init__(self) -> None:
        super().__init__(fused)
        self.o = nn.Parameter(torch.rand(HEADS * VALUES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return merged(fused(q, k, v)) @ self.o


class SingleHead(nn.Module):
    """No heads at all: channels of values are ordinary ones, those of queries go with those of keys."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.v, self.o = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.kernel(self.q(x), self.k(x), self.v(x)))


class OneProjection(nn.Module):
    """Queries, keys and values from one map, one width for all of them; the scale is a number of its own."""

    def __init__(self, apart: str, scale: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.inner = HEADS, VALUES, HEADS * VALUES
        self.scale = VALUES**-0.5 if scale else None
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * self.inner), nn.Linear(self.inner, WIDTH)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(x)
        if self.apart == "view":
            q, k, v = y.view(*x.shape[:2], 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            pieces = y.chunk(3, dim=-1) if self.apart == "chunk" else y.split(self.inner, dim=-1)
            q, k, v = (one.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for one in pieces)
        return self.proj(merged(F.scaled_dot_product_attention(q, k, v, scale=self.scale)))


class NonLocal(nn.Module):
    """Every position of a map looks at all others, by maps of single pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(8, n, 1) for n in (5, 5, 6))
        self.out = nn.Conv2d(6, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        theta, phi, g = (part(x).flatten(2) for part in (self.theta, self.phi, self.g))
        weights = (theta.transpose(1, 2) @ phi).softmax(-1)
        return x + self.out((g @ weights.transpose(1, 2)).view(len(x), -1, *x.shape[2:]))


class Spread(nn.Module):
    """One number for each position, spread over channels that no row of its map carries: the rows of the keys do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.over = nn.Linear(WIDTH, 1), nn.Parameter(torch.rand(8))
        self.k, self.o = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(((self.one(x) * self.over) @ self.k(x).transpose(-2, -1)).softmax(-1) @ x)


class FeedForward(nn.Module):
    """Two maps and what lies between them; gated ones have a second map beside the first, or both in one."""

    def __init__(self, style: str, bias: bool) -> None:
        super().__init__()
        self.style = style
        self.up = nn.Linear(WIDTH, 16 if style in ("glu", "fused swiglu") else 8, bias=bias)
        self.gate = nn.Linear(WIDTH, 8, bias=bias) if style in ("swiglu", "geglu") else None
        self.down = nn.Linear(8, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.style == "glu":
            y = F.glu(y)
        elif self.style == "fused swiglu":
            gate, y = y.chunk(2, dim=-1)
            y = F.silu(gate) * y
        elif self.gate is not None:
            y = y * (F.silu if self.style == "swiglu" else F.gelu)(self.gate(x))
        else:
            y = F.gelu(y, approximate="tanh" if self.style == "fast gelu" else "none")
        return self.down(y)


class ShiftedWindows(nn.Module):
    """As Swin has it: shifted windows, a bias for every head and distance, a mask for every window."""

    def __init__(self, window: int = 2) -> None:
        super().__init__()
        self.window, self.num_heads, self.head_dim = window, HEADS, PLACES
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * HEADS * PLACES), nn.Linear(HEADS * PLACES, WIDTH)
        self.table = nn.Parameter(torch.rand((2 * window - 1) ** 2, HEADS))
        steps = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        away = (steps[:, :, None] - steps[:, None]) + window - 1
        self.register_buffer("distance", (away[0] * (2 * window - 1) + away[1]).flatten())

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        w, many = self.window, height * width // self.window**2
        x = torch.roll(x, (-1, -1), (1, 2))
        x = (
            x.view(batch, height // w, w, width // w, w, channels)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, w * w, channels)
        )
        qkv = self.qkv(x).reshape(len(x), w * w, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = qkv[0] * self.head_dim**-0.5 @ qkv[1].transpose(-2, -1)
        scores = scores + self.table[self.distance].view(w * w, w * w, -1).permute(2, 0, 1).unsqueeze(0)
        # The last windows hold what was rolled over from the other side.
        side = torch.zeros(many, w * w)
        side[-1, 1:] = 1
        mask = (side[:, None] - side[:, :, None]).abs() * -100.0
        scores = scores.view(batch, many, self.num_heads, w * w, w * w) + mask[None, :, None]
        weights = scores.view(-1, self.num_heads, w * w, w * w).softmax(-1)
        x = self.proj((weights @ qkv[2]).transpose(1, 2).reshape(len(x), w * w, -1))
        x = x.view(batch, height // w, width // w, w, w, channels).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(x.reshape(batch, height, width, channels), (1, 1), (1, 2))


def _toy(name: str, build: Callable[[], nn.Module], groups: dict[str, int], **options: Any) -> Toy:
    def fresh() -> nn.Module:
        return between(build())()

    named = {f"attention.{key}": n for key, n in groups.items()}
    return Toy(name, fresh, tokens(), named, others=(tokens(batch=3), tokens(length=7)), **options)


BOTH = {"q": HEADS, "v": VALUES}
KERNELS = {
    "fused": fused, "matmul": by_matmul, "einsum": by_einsum, "batch and heads merged": batch_and_heads_merged,
    "linear": linear,
}  # fmt: skip
# Where the scale is no number of places, those of queries and keys can go, together.
ALL = {"q": HEADS, "k": PLACES, "v": VALUES}
GROUPS = {name: BOTH if name in ("fused", "linear") else ALL for name in KERNELS}
STYLES = ("gelu", "fast gelu", "glu", "swiglu", "geglu", "fused swiglu")

PLACE_TOYS = [
    *(_toy(f"values of their own width, {name}", partial(Valued, k), GROUPS[name]) for name, k in KERNELS.items()),
    _toy("values of their own width, shared", lambda: Valued(grouped, shared=2), {"q": 2, "v": VALUES}),
    _toy("values of their own width, no biases", lambda: Valued(fused, bias=False), BOTH),
    _toy("widths of heads left open", lambda: Inferred(fused), BOTH),
    _toy("as many values as queries, left open", lambda: Inferred(fused, values=PLACES), {"q": HEADS, "v": PLACES}),
    _toy("heads times places kept", InnerWidth, BOTH),
    _toy("scales of channels and of places", Scaled, BOTH),
    _toy("read by rows", ReadByRows, BOTH),
    _toy("queries, keys and values side by side", SideBySide, {"qkv": HEADS, "qkv#2": VALUES}),
    _toy(
        "one size for queries, keys and values",
        lambda: SelfAttention(plain_kernel),
        {"q": HEADS},
        stays=("attention.v: trial: the model's own code does not run on fewer channels",),
    ),
    _toy(
        "a single head",
        lambda: SingleHead(fused),
        {"v": 7},
        stays=("attention: scaled_dot_product_attention: multiplies queries with keys, summed over these channels",),
    ),
    _toy("a single head, a fixed scale", lambda: SingleHead(by_a_fixed_scale), {"k": 8, "v": 7}),
    _toy(
        "a single head, turned",
        lambda: SingleHead(turned_by_position_of_eight),
        {"v": 7},
        stays=("attention: scaled_dot_product_attention: sums over channels without a parameter of its own",),
    ),
    Toy("queries spread over channels", lambda: between(Spread())(), tokens(), {"attention": 8}),
    _toy("queries with keys", lambda: Valued(by_a_fixed_scale), ALL),
    _toy("queries with keys, shared", lambda: Valued(grouped_by_a_fixed_scale, 2), {"q": 2, "k": PLACES, "v": VALUES}),
    _toy("queries with keys, left open", lambda: Inferred(by_matmul), ALL),
    _toy("queries with keys, no biases", lambda: Inferred(by_matmul, bias=False), ALL),
    _toy(
        "queries with keys, scaled by their size",
        lambda: Inferred(by_the_size_at_hand),
        BOTH,
        stays=("attention.k: trial: outputs differ by",),
    ),
    _toy("queries with keys, normed", lambda: Inferred(with_normed_queries), BOTH),
    *(
        _toy(f"one projection, {apart}", partial(OneProjection, apart), {"qkv": HEADS, "qkv#2": VALUES})
        for apart in ("view", "chunk", "split")
    ),
    _toy("one projection, scaled by its size", lambda: OneProjection("view", False), {"qkv": HEADS}),
    Toy(
        "non-local",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), NonLocal(), nn.Conv2d(8, 2, 1)),
        images(),
        {"0": 8, "2.phi": 5, "2.g": 6},
        others=(images(batch=3, size=10),),
    ),
    *(
        _toy(f"feed-forward, {style}{'' if bias else ', no biases'}", partial(FeedForward, style, bias), {"up": 8})
        for style in STYLES
        for bias in (True, False)
    ),
    Toy(
        "shifted windows",
        lambda: Net(
            lambda m, x: m.head((h := m.embed(x)) + m.attention(m.norm(h))),
            embed=nn.Linear(3, WIDTH),
            norm=nn.LayerNorm(WIDTH),
            attention=ShiftedWindows(),
            head=head(WIDTH),
        ),
        torch.randn(2, 4, 6, 3, generator=torch.Generator().manual_seed(0)),
        {"attention.qkv": HEADS},
        others=(torch.randn(3, 6, 4, 3, generator=torch.Generator().manual_seed(1)),),
    ),
]  # fmt: skip
