"""Small networks, one per structure that users write, with the answers worked out by hand.

`groups` are the names and sizes of what can be removed; `stays` are pieces of the printed reasons ("path: operation")
that must be there; `prunable` says whether the toy must come out smaller.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class Net(nn.Module):
    """A network from named parts and a function that says what its forward does with them."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


@dataclass(frozen=True)
class Toy:
    """A structure: how to build it, what to call it with, and what is expected."""

    name: str
    build: Callable[[], nn.Module]
    example: Any
    groups: dict[str, int] | None = None
    branches: dict[str, int] | None = None
    stays: tuple[str, ...] = ()
    prunable: bool = True
    others: tuple[Any, ...] = field(default=())


def images(channels: int = 3, batch: int = 2, size: int = 8, rank: int = 2) -> Tensor:
    return torch.randn(batch, channels, *[size] * rank, generator=torch.Generator().manual_seed(batch + size))


def rows(width: int = 6, batch: int = 3) -> Tensor:
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(batch))


def tokens(width: int = 6, batch: int = 2, length: int = 5) -> Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(length))


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=options.pop("padding", kernel // 2), **options)


def unit(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    return nn.Sequential(conv(inputs, outputs, kernel, bias=False, **options), nn.BatchNorm2d(outputs), nn.ReLU())


def pooled(net: Any, x: Tensor) -> Tensor:
    return net.head(x.mean((2, 3)))


IMAGE = images()
ELSEWHERE = (images(batch=3, size=10),)
BATCHES = (images(batch=5),)


# ---- blocks ----


class PostBlock(nn.Module):
    """As torchvision writes it: in-place ReLU and `out += identity`."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv(width, width, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != width:
            self.downsample = nn.Sequential(conv(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class PostBottleneck(nn.Module):
    """Narrow, convolve, widen; added in place to its input or a projection of it, then activated."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, stride=stride, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class PreBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, width, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv(width, width)
        self.shortcut = conv(inputs, width, 1, stride=stride) if stride > 1 or inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(out))) + self.shortcut(x)


class PlainBlock(nn.Module):
    """Nothing but its input plus a branch: can vanish altogether."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(x)))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool, self.fc1, self.fc2 = (
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, squeezed, 1),
            nn.Conv2d(squeezed, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x)))))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), conv(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = unit(width, width), unit(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class C2f(nn.Module):
    """YOLO's: split by a stored width or by chunk, bottlenecks on the last piece, all pieces concatenated."""

    def __init__(self, inputs: int, width: int, stored: bool) -> None:
        super().__init__()
        self.c, self.stored = width, stored
        self.cv1, self.m = unit(inputs, 2 * width, 1), nn.ModuleList(Bottleneck(width) for _ in range(2))
        self.cv2 = unit(4 * width, inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).split((self.c, self.c), 1) if self.stored else self.cv1(x).chunk(2, 1))
        y.extend(block(y[-1]) for block in self.m)
        return self.cv2(torch.cat(y, 1))


class ShuffleBlock(nn.Module):
    """ShuffleNet-v2's, with the shuffle written as view, transpose, view."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            unit(half, half, 1), conv(half, half, groups=half), nn.BatchNorm2d(half), unit(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        out = torch.cat([left, self.branch(right)], 1)
        b, c, h, w = out.shape
        return out.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


class InvertedResidual(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            conv(width, inner, 1), nn.BatchNorm2d(inner), nn.Hardswish(),
            conv(inner, inner, groups=inner), nn.BatchNorm2d(inner), nn.Hardswish(),
            SqueezeExcite(inner, 6), conv(inner, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv, self.norm = conv(width, width, groups=width), nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        out = self.gamma * self.pwconv2(F.gelu(self.pwconv1(out)))
        return x + out.permute(0, 3, 1, 2)


class ResNextBlock(nn.Module):
    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = unit(width, inner, 1), unit(inner, inner, groups=groups)
        self.conv3, self.bn3 = conv(inner, width, 1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn3(self.conv3(self.conv2(self.conv1(x)))))


class MixerBlock(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token = nn.Sequential(nn.Linear(length, 7), nn.GELU(), nn.Linear(7, length))
        self.channel = nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = unit(3, 6), unit(6, 8), unit(8, 10)
        self.up2, self.up1 = nn.ConvTranspose2d(10, 8, 2, 2), nn.ConvTranspose2d(8, 6, 2, 2)
        self.merge2, self.merge1, self.head = unit(16, 8), unit(12, 6), conv(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        y = self.merge2(torch.cat([self.up2(self.bottom(F.max_pool2d(second, 2))), second], 1))
        return self.head(self.merge1(torch.cat([self.up1(y), first], 1)))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.b1, self.b3, self.bp = (
            unit(3, 6),
            unit(6, 4, 1),
            nn.Sequential(unit(6, 5, 1), unit(5, 6)),
            unit(6, 4, 1),
        )
        self.head = nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pool = F.avg_pool2d(x, 3, stride=1, padding=1)
        return pooled(self, torch.cat([self.b1(x), self.b3(x), self.bp(pool)], 1))


class TrainHead(nn.Module):
    """An auxiliary head that only training sees."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = unit(3, 8), unit(8, 6)
        self.aux, self.head = nn.Linear(8, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        out = pooled(self, self.body(x))
        return (out, self.aux(x.mean((2, 3)))) if self.training else out


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(11, 6), nn.Linear(6, 10), nn.Linear(10, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.down(F.relu(self.up(self.embed(ids)))))


class Carried(nn.Module):
    """Channels in a persistent buffer, a non-persistent one and, where asked, a plain attribute."""

    def __init__(self, attribute: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.rand(8))
        self.register_buffer("scale", torch.rand(8) + 1, persistent=False)
        self.plain = torch.rand(8) if attribute else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x) * self.scale + self.shift
        return self.fc2(F.relu(x if self.plain is None else x - self.plain))


class Fixed(nn.Module):
    """Reads channels through a buffer, which carries no mask: the rows that write them do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(5, 3)
        self.register_buffer("projection", torch.rand(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)))) @ self.projection)


class Sized(nn.Module):
    """Its forward reads the width it was built with, or has it written down."""

    def __init__(self, by_attribute: bool = True) -> None:
        super().__init__()
        self.by_attribute = by_attribute
        self.width, self.fc1, self.fc2, self.fc3 = 8, nn.Linear(6, 8), nn.Linear(8, 10), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x)).view(len(x), self.width if self.by_attribute else 8)
        return self.fc3(F.relu(self.fc2(x)))


class Standardised(nn.Conv2d):
    """Weight standardisation: each filter to mean 0 and variance 1 at every call."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        spread = self.weight.std((1, 2, 3), keepdim=True) + 1e-5
        return F.conv2d(x, (self.weight - mean) / spread, self.bias, self.stride, self.padding)


class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = unit(3, 8), conv(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.conv(x)
        if self.training:
            out = out * torch.empty(len(x), 1, 1, 1).bernoulli_(0.5)
        return pooled(self, x + F.dropout(out, 0.1, self.training))


@dataclass
class Answer:
    """A result class of the user's own, as many libraries return."""

    scores: Tensor
    features: Tensor


torch.utils._pytree.register_dataclass(Answer)


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


def head(width: int, outputs: int = 3) -> nn.Linear:
    return nn.Linear(width, outputs)


def between(middle: Callable[[Tensor], Tensor], width: int = 8, after: int | None = None) -> Callable[[], nn.Module]:
    """Convolution, something, convolution, pooled to a head."""
    return lambda: Net(
        lambda m, x: pooled(m, F.relu(m.b(middle(F.relu(m.a(x)))))),
        a=conv(3, width),
        b=conv(after or width, 6),
        head=head(6),
    )


def with_layer(layer: Callable[[], nn.Module], width: int = 8, after: int | None = None) -> Callable[[], nn.Module]:
    """As `between`, with a module in the middle."""
    return lambda: nn.Sequential(
        OrderedDict(
            a=conv(3, width), mid=layer(), relu=nn.ReLU(), b=conv(after or width, 6), pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(), head=head(6),
        )
    )  # fmt: skip


AB = {"a": 8, "b": 6}


def _inplace_write(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    z = torch.zeros_like(y)
    z[:, : y.shape[1] // 2] = F.relu(y[:, : y.shape[1] // 2])
    z[:, y.shape[1] // 2 :] = torch.tanh(y[:, y.shape[1] // 2 :])
    return pooled(m, m.b(z))


def _inplace_hard(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y[:, :2] = m.c(x)
    return pooled(m, m.b(y))


def _inplace_corner(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y[:, :, 1:3, 1:3] = 0.5
    y[..., 0] += 1
    return pooled(m, m.b(y))


def _mask_write(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y[y > 0.5] = 0.25
    return pooled(m, m.b(y))


def _shift(x: Tensor) -> Tensor:
    """Temporal-shift-like: an eighth of the channels rolled along the width."""
    part = x.shape[1] // 4
    return torch.cat([x[:, :part].roll(1, -1), x[:, part : 2 * part].roll(-1, -1), x[:, 2 * part :]], 1)


def _swiglu(m: Any, x: Tensor) -> Tensor:
    return m.down(F.silu(m.gate(x)) * m.up(x))


def _fused_swiglu(m: Any, x: Tensor) -> Tensor:
    gate, up = m.both(x).chunk(2, -1)
    return m.down(F.silu(gate) * up)


def _eca(x: Tensor, weight: Tensor) -> Tensor:
    gate = F.conv1d(x.mean((2, 3)).unsqueeze(1), weight, padding=1)
    return x * torch.sigmoid(gate).squeeze(1)[:, :, None, None]


def _highway(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    gate = torch.sigmoid(m.gate(x))
    return m.head(gate * F.relu(m.fc(x)) + (1 - gate) * x)


def _siamese(m: Any, left: Tensor, right: Tensor) -> Tensor:
    a, b = m.fc(left), m.fc(right)
    return m.head(torch.cat([a, b, (a - b).abs()], -1))


CHAINS = [
    Toy(
        "linear chain",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3)),
        rows(),
        {"0": 8, "2": 7},
        {},
        ("0: linear: reads channels that cannot be removed", "4: output: the model returns it"),
        others=(rows(batch=7),),
    ),
    Toy(
        "conv chain",
        lambda: nn.Sequential(*unit(3, 8), *unit(8, 6), conv(6, 4, 1)),
        IMAGE,
        {"0": 8, "3": 6},
        {},
        others=ELSEWHERE,
    ),
    Toy(
        "nested sequential",
        lambda: nn.Sequential(unit(3, 8), nn.Sequential(unit(8, 6), conv(6, 4))),
        IMAGE,
        {"0.0": 8, "1.0.0": 6},
        {},
        others=ELSEWHERE,
    ),
    Toy(
        "conv flatten linear",
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 6), nn.ReLU(), nn.Linear(6, 3)
        ),
        IMAGE,
        {"0": 8, "4": 6},
        {},
        others=BATCHES,
    ),
    Toy(
        "flatten by view",
        lambda: Net(lambda m, x: m.head(m.a(x).view(x.size(0), -1)), a=conv(3, 8), head=head(512)),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "flatten with a fixed size",
        lambda: Net(lambda m, x: m.head(m.a(x).view(-1, 512)), a=conv(3, 8), head=head(512)),
        IMAGE,
        {},
        stays=("a: trial: the model's own code",),
        prunable=False,
    ),
    Toy(
        "conv1d",
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3)),
        images(rank=1),
        {"0": 8},
        others=(images(rank=1, size=12),),
    ),
    Toy(
        "conv3d",
        lambda: nn.Sequential(nn.Conv3d(2, 6, 3), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(6, 4, 1)),
        images(2, rank=3, size=6),
        {"0": 6},
        others=(images(2, rank=3, size=7),),
    ),
    Toy(
        "unbatched images",
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU(), conv(6, 2)),
        IMAGE[0],
        {"0": 8, "2": 6},
    ),
    Toy("unbatched row", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), rows()[0], {"0": 8}),
    Toy(
        "one example, one pixel",
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 2)),
        images(batch=1, size=1),
        {"0": 8},
        others=BATCHES,
    ),
    Toy(
        "strided and dilated",
        lambda: nn.Sequential(conv(3, 8, stride=2), nn.ReLU(), conv(8, 6, dilation=2), nn.ReLU(), conv(6, 2)),
        IMAGE,
        {"0": 8, "2": 6},
        others=ELSEWHERE,
    ),
    Toy(
        "padding mode circular",
        lambda: nn.Sequential(
            conv(3, 8, padding_mode="circular"),
            nn.ReLU(),
            conv(8, 6, padding_mode="reflect"),
            nn.ReLU(),
            conv(6, 2, padding_mode="replicate"),
        ),
        IMAGE,
        {"0": 8, "2": 6},
        others=ELSEWHERE,
    ),
    Toy(
        "padding same",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding="same"), nn.ReLU(), nn.Conv2d(8, 2, 3, padding="same")),
        IMAGE,
        {"0": 8},
    ),
    Toy(
        "frozen parameters",
        lambda: nn.Sequential(unit(3, 8).requires_grad_(False), conv(8, 6), nn.ReLU(), conv(6, 2)),
        IMAGE,
        {"0.0": 8, "1": 6},
    ),
    Toy(
        "shared module",
        lambda: Net(
            lambda m, x: m.head(F.relu(m.mid(F.relu(m.mid(m.stem(x)))))),
            stem=nn.Linear(6, 8),
            mid=nn.Linear(8, 8),
            head=head(8),
        ),
        rows(),
        {"stem": 8},
    ),
    Toy(
        "one module, two names",
        lambda: (lambda fc: nn.Sequential(nn.Linear(6, 8), fc, nn.ReLU(), fc, nn.Linear(8, 2)))(nn.Linear(8, 8)),
        rows(),
        {"0": 8},
    ),
    Toy(
        "bilinear",
        lambda: Net(lambda m, x: m.mix(F.relu(m.a(x)), F.relu(m.a(x))), a=nn.Linear(6, 8), mix=nn.Bilinear(8, 8, 3)),
        rows(),
        {"a": 8},
    ),
    Toy(
        "one channel inside",
        lambda: nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2)),
        rows(),
        {"1": 8},
    ),
    Toy(
        "lazy once called",
        lambda: (lambda m: (m(rows()), m)[1])(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))),
        rows(),
        {"0": 8},
    ),
]

RESIDUALS = [
    Toy(
        "post-activation residual",
        lambda: nn.Sequential(unit(3, 8), PostBlock(8, 8), PostBlock(8, 8), conv(8, 2, 1)),
        IMAGE,
        {"0.0": 8, "1.conv1": 8, "2.conv1": 8},
        {"1.bn2:write": 8, "2.bn2:write": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "bottlenecks with projection",
        lambda: nn.Sequential(unit(3, 6), PostBottleneck(6, 5, 8), PostBottleneck(8, 5, 10, 2), conv(10, 2, 1)),
        IMAGE,
        {
            "0.0": 6,
            "1.conv1": 5,
            "1.conv2": 5,
            "1.conv3": 8,
            "2.conv1": 5,
            "2.conv2": 5,
            "2.conv3": 10,
        },
        {"1.bn3:write": 8, "2.bn3:write": 10},
        others=ELSEWHERE,
    ),
    Toy(
        "post-activation with stride",
        lambda: nn.Sequential(unit(3, 8), PostBlock(8, 8), PostBlock(8, 10, 2), conv(10, 2, 1)),
        IMAGE,
        {"0.0": 8, "1.conv1": 8, "2.conv1": 10, "2.conv2": 10},
        others=ELSEWHERE,
    ),
    Toy(
        "pre-activation residual",
        lambda: nn.Sequential(
            conv(3, 8),
            PreBlock(8, 8),
            PreBlock(8, 10, 2),
            PreBlock(10, 10),
            nn.BatchNorm2d(10),
            nn.ReLU(),
            conv(10, 2, 1),
        ),
        IMAGE,
        {"0": 8, "1.conv1": 8, "2.conv1": 10, "2.conv2": 10, "3.conv1": 10},
        others=ELSEWHERE,
    ),
    Toy(
        "blocks that can vanish",
        lambda: nn.Sequential(nn.Linear(6, 8), PlainBlock(8, 10), PlainBlock(8, 12), nn.Linear(8, 3)),
        rows(),
        {"0": 8, "1.fc1": 10, "2.fc1": 12},
        {"1.fc2:write": 8, "2.fc2:write": 8},
    ),
    Toy("residual at the output", lambda: PlainBlock(6, 10), rows(), {"fc1": 10}, {"fc2:write": 6}),
    Toy(
        "in-place relu residual",
        lambda: Net(
            lambda m, x: pooled(m, m.act(m.b(m.act(m.a(m.act(x)))).add_(x))),
            a=conv(3, 8),
            b=conv(8, 3),
            act=nn.ReLU(),
            head=head(3),
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy("stochastic depth", StochasticDepth, IMAGE, {"stem.0": 8}, others=BATCHES),
    Toy(
        "highway",
        lambda: Net(_highway, stem=nn.Linear(6, 8), gate=nn.Linear(8, 8), fc=nn.Linear(8, 8), head=head(8)),
        rows(),
        {"stem": 8},
    ),
    Toy(
        "rezero",
        lambda: Net(
            lambda m, x: m.head((y := m.stem(x)) + m.alpha * m.fc(F.relu(y))),
            stem=nn.Linear(6, 8),
            fc=nn.Linear(8, 8),
            alpha=nn.Parameter(torch.zeros(1)),
            head=head(8),
        ),
        rows(),
        {"stem": 8},
    ),
    Toy(
        "layer scale",
        lambda: Net(
            lambda m, x: m.head((y := m.stem(x)) + m.gamma * m.fc(F.relu(y))),
            stem=nn.Linear(6, 8),
            fc=nn.Linear(8, 8),
            gamma=nn.Parameter(torch.ones(8)),
            head=head(8),
        ),
        rows(),
        {"stem": 8},
    ),
    Toy(
        "inverted residual with SE",
        lambda: nn.Sequential(unit(3, 8), InvertedResidual(8, 12), InvertedResidual(8, 12), conv(8, 2, 1)),
        IMAGE,
        {"0.0": 8, "1.block.0": 12, "1.block.6.fc1": 6, "2.block.0": 12, "2.block.6.fc1": 6},
        others=ELSEWHERE,
    ),
    Toy(
        "resnext",
        lambda: nn.Sequential(unit(3, 8), ResNextBlock(8, 12, 4), conv(8, 2, 1)),
        IMAGE,
        {"0.0": 8, "1.conv1.0": 4},
        others=ELSEWHERE,
    ),
    Toy(
        "convnext",
        lambda: nn.Sequential(conv(3, 8), ConvNextBlock(8), conv(8, 2, 1)),
        IMAGE,
        {"1.pwconv1": 16},
        {"1.pwconv2:write": 8},
        ("1.norm: layer_norm: normalises over channels",),
        others=ELSEWHERE,
    ),
    Toy(
        "mixer",
        lambda: nn.Sequential(nn.Linear(6, 8), MixerBlock(5, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        tokens(),
        {"1.token.0": 7, "1.channel.0": 12},
        stays=("1.norm1: layer_norm",),
        others=(tokens(batch=4),),
    ),
    Toy(
        "scaled branch",
        lambda: Net(
            lambda m, x: m.head((y := m.stem(x)) + 0.1 * m.fc(F.relu(y))),
            stem=nn.Linear(6, 8),
            fc=nn.Linear(8, 8),
            head=head(8),
        ),
        rows(),
        {"stem": 8},
        {"fc:write": 8},
    ),
]

SPLITS = [
    Toy(
        "dense concatenation",
        lambda: nn.Sequential(unit(3, 6), DenseLayer(6, 4), DenseLayer(10, 5), conv(15, 2, 1)),
        IMAGE,
        {"0.0": 6, "1.conv": 4, "2.conv": 5},
        others=ELSEWHERE,
    ),
    Toy("inception", Inception, IMAGE, {"stem.0": 6, "b1.0": 4, "b3.0.0": 5, "b3.1.0": 6, "bp.0": 4}, others=ELSEWHERE),
    Toy(
        "u-net",
        UNet,
        IMAGE,
        {"down1.0": 6, "down2.0": 8, "bottom.0": 10, "up2": 8, "merge2.0": 8, "up1": 6, "merge1.0": 6},
        {},
        others=(images(size=12),),
    ),
    Toy(
        "concatenation with the input",
        between(lambda x: torch.cat([x, x.new_ones(len(x), 2, 8, 8)], 1), after=10),
        IMAGE,
        AB,
    ),
    Toy(
        "concatenation with itself", between(lambda x: torch.cat([x, -x, x], 1), after=24), IMAGE, AB, others=ELSEWHERE
    ),
    Toy("concatenation on a position", between(lambda x: torch.cat([x, x.flip(2)], 2)), IMAGE, AB),
    Toy("stack and sum", between(lambda x: torch.stack([x, x.relu(), x.tanh()], 1).sum(1)), IMAGE, AB),
    Toy("stack on channels", between(lambda x: torch.stack([x, x.tanh()], 2).flatten(1, 2), after=16), IMAGE, AB),
    Toy(
        "chunk",
        between(lambda x: (lambda a, b: a * torch.sigmoid(b))(*x.chunk(2, 1)), after=4),
        IMAGE,
        {"a": 4, "b": 6},
        others=ELSEWHERE,
    ),
    Toy(
        "chunk and rejoin",
        between(lambda x: (lambda a, b: torch.cat([a, b.relu()], 1))(*x.split(x.shape[1] // 2, 1))),
        IMAGE,
        {"a": 4, "b": 6},
    ),
    Toy(
        "slice by computed half",
        between(lambda x: x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :], after=4),
        IMAGE,
        {"a": 4, "b": 6},
    ),
    Toy(
        "every second channel", between(lambda x: torch.cat([x[:, ::2], x[:, 1::2].relu()], 1)), IMAGE, {"a": 4, "b": 6}
    ),
    Toy(
        "split by a number",
        between(lambda x: (lambda a, b: a + b.relu())(*x.split(4, 1)), after=4),
        IMAGE,
        {"b": 6},
        stays=("a: trial",),
    ),
    Toy(
        "split by hand-written sizes",
        between(lambda x: (lambda a, b: torch.cat([a.relu(), b], 1))(*x.split([2, 6], 1))),
        IMAGE,
        {"b": 6},
        stays=("a: trial: the model's own code does not run on fewer channels",),
    ),
    Toy(
        "slice by a number",
        between(lambda x: torch.cat([x[:, :3].tanh(), x[:, 3:]], 1)),
        IMAGE,
        {"b": 6},
        stays=("slice: cuts channels",),
    ),
    Toy(
        "slice by a dividing number",
        between(lambda x: torch.cat([x[:, :4].tanh(), x[:, 4:]], 1)),
        IMAGE,
        {"b": 6},
        stays=("a: trial",),
    ),
    Toy(
        "narrow",
        between(lambda x: x.narrow(1, 0, x.shape[1] // 2) * x.narrow(1, x.shape[1] // 2, x.shape[1] // 2), after=4),
        IMAGE,
        {"a": 4, "b": 6},
    ),
    Toy(
        "unbind channels",
        between(lambda x: torch.stack(x.unbind(1), 1)),
        IMAGE,
        {"b": 6},
        stays=("unbind: picks channels",),
    ),
    Toy("pick a channel", between(lambda x: x * x[:, 0:1].sigmoid()), IMAGE, {"b": 6}),
    Toy(
        "pick a channel by index",
        between(lambda x: x * x[:, 2].unsqueeze(1).sigmoid()),
        IMAGE,
        {"b": 6},
        stays=("select: picks a channel",),
    ),
    Toy("index with constants", between(lambda x: x[:, [3, 1, 0, 2, 7, 6, 5, 4]]), IMAGE, {"b": 6}),
    Toy("index_select", between(lambda x: x.index_select(1, torch.tensor([1, 0, 2, 3, 4, 5, 6, 7]))), IMAGE, {"b": 6}),
    Toy("index positions", between(lambda x: x[:, :, [0, 2, 4]][..., torch.arange(3)]), IMAGE, AB),
    Toy("c2f by chunk", lambda: nn.Sequential(unit(3, 6), C2f(6, 4, False), conv(6, 2, 1)), IMAGE, others=ELSEWHERE),
    Toy(
        "c2f by a stored width",
        lambda: nn.Sequential(unit(3, 6), C2f(6, 4, True), conv(6, 2, 1)),
        IMAGE,
        others=ELSEWHERE,
    ),
    Toy(
        "shufflenet",
        lambda: nn.Sequential(unit(3, 8), ShuffleBlock(8), ShuffleBlock(8), conv(8, 2, 1)),
        IMAGE,
        others=ELSEWHERE,
    ),
    Toy("temporal shift", between(_shift), IMAGE),
    Toy("flip channels", between(lambda x: torch.cat([x, x.flip(1)], 1), after=16), IMAGE, AB),
    Toy("gather positions", between(lambda x: x.gather(3, torch.tensor([2, 0, 1]).expand(*x.shape[:3], 3))), IMAGE, AB),
    Toy(
        "take along channels",
        between(lambda x: x.gather(1, torch.arange(8).view(1, 8, 1, 1).expand(len(x), 8, 8, 8))),
        IMAGE,
        {"b": 6},
        stays=("gather: picks channels by their numbers",),
    ),
    Toy("roll channels", between(lambda x: x.roll(1, 1)), IMAGE, {"b": 6}, stays=("roll: rolls channels",)),
    Toy("repeat channels", between(lambda x: x.repeat(1, 2, 1, 1), after=16), IMAGE, AB),
    Toy("repeat_interleave", between(lambda x: x.repeat_interleave(2, 1), after=16), IMAGE, AB),
]

WRITES = [
    Toy(
        "write halves in place",
        lambda: Net(_inplace_write, a=conv(3, 8), b=conv(8, 6), head=head(6)),
        IMAGE,
        {"a": 4, "b": 6},
    ),
    Toy(
        "write two channels in place",
        lambda: Net(_inplace_hard, a=conv(3, 8), b=conv(8, 6), c=conv(3, 2), head=head(6)),
        IMAGE,
    ),
    Toy("write a corner in place", lambda: Net(_inplace_corner, a=conv(3, 8), b=conv(8, 6), head=head(6)), IMAGE, AB),
    Toy("masked_fill", between(lambda x: x.masked_fill(x > 1, 0.5)), IMAGE, AB),
    Toy("where", between(lambda x: torch.where(x > 0, x, 0.1 * x)), IMAGE, AB),
    Toy(
        "boolean index write",
        between(lambda x: x.clone().index_put_((torch.tensor([0]),), torch.ones((), dtype=x.dtype))),
        IMAGE,
        AB,
    ),
    Toy(
        "masked write",
        between(lambda x: x.clone().masked_scatter(x > 9, x)),
        IMAGE,
        {"b": 6},
        stays=("masked_scatter: headgate has no rule",),
    ),
    Toy("boolean mask write", lambda: Net(_mask_write, a=conv(3, 8), b=conv(8, 6), head=head(6)), IMAGE, AB),
    Toy("addcmul", between(lambda x: torch.addcmul(x, x, x.tanh(), value=0.5)), IMAGE, AB),
    Toy("lerp", between(lambda x: torch.lerp(x, x.tanh(), 0.3)), IMAGE, AB),
    Toy(
        "clamp and friends",
        between(lambda x: torch.clamp(x, -1, 1).abs().sqrt().pow(2).floor() + x.sign().round()),
        IMAGE,
        AB,
    ),
    Toy("maximum", between(lambda x: torch.maximum(x, x.mean((2, 3), keepdim=True))), IMAGE, AB),
    Toy("max of two tensors", between(lambda x: torch.max(x, torch.min(x.neg(), x.mean((2, 3), True)))), IMAGE, AB),
    Toy("triu", between(lambda x: x.triu() + x.tril()), IMAGE, AB),
]

SPATIAL = [
    Toy(
        "pooling of all kinds",
        between(
            lambda x: (
                F.max_pool2d(x, 2)
                + F.avg_pool2d(x, 2)
                + F.adaptive_avg_pool2d(x, 4)
                + F.adaptive_max_pool2d(x, 4)
                + F.lp_pool2d(x.abs() + 1, 2, 2)
            )
        ),
        IMAGE,
        AB,
    ),
    Toy("odd adaptive pooling", between(lambda x: F.adaptive_avg_pool2d(x, (3, 5))), IMAGE, AB, others=ELSEWHERE),
    Toy(
        "max pooling with unpooling",
        between(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
        IMAGE,
        {"b": 6},
        stays=("max_unpool2d: headgate has no rule",),
    ),
    Toy(
        "fractional pooling",
        between(lambda x: F.fractional_max_pool2d(x, 2, 4, _random_samples=torch.full((2, x.shape[1], 2), 0.3).to(x))),
        IMAGE,
        {"b": 6},
        stays=("fractional_max_pool2d",),
    ),
    Toy(
        "pooling in one dimension",
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 3),
            nn.AvgPool1d(2),
            nn.Conv1d(8, 6, 1),
            nn.AdaptiveMaxPool1d(2),
            nn.Conv1d(6, 4, 1),
            nn.MaxPool1d(2),
            nn.Conv1d(4, 2, 1),
        ),
        images(rank=1),
        {"0": 8, "2": 6, "4": 4},
    ),
    Toy(
        "pooling in three dimensions",
        lambda: nn.Sequential(
            nn.Conv3d(2, 6, 1), nn.AvgPool3d(2), nn.Conv3d(6, 4, 1), nn.AdaptiveAvgPool3d(2), nn.Conv3d(4, 2, 1)
        ),
        images(2, rank=3, size=6),
        {"0": 6, "2": 4},
    ),
    Toy(
        "global pooling",
        lambda: Net(
            lambda m, x: m.head(torch.cat([m.a(x).amax((2, 3)), m.a(x).mean((-1, -2))], 1)), a=conv(3, 8), head=head(16)
        ),
        IMAGE,
        {"a": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "upsampling of all kinds",
        between(
            lambda x: (
                F.interpolate(x, scale_factor=2, mode="nearest")
                + F.interpolate(x, 16, mode="bilinear")
                + F.interpolate(x, 16, mode="bicubic", align_corners=True)
                + F.interpolate(x, 16, mode="area")
                + F.interpolate(x, 16, mode="nearest-exact")
                + F.interpolate(x, 16, mode="bilinear", antialias=True)
            )
        ),
        IMAGE,
        AB,
    ),
    Toy(
        "upsampling to a skip",
        lambda: Net(
            lambda m, x: m.head(m.a(x) + F.interpolate(m.b(x), m.a(x).shape[-2:])),
            a=conv(3, 8),
            b=conv(3, 8, stride=2),
            head=conv(8, 2),
        ),
        IMAGE,
        {"a": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "spatial padding",
        between(
            lambda x: (
                F.pad(x, (1, 2, 0, 1))
                + F.pad(x, (1, 2, 0, 1), mode="reflect")
                + F.pad(x, (1, 2, 0, 1), mode="replicate")
                + F.pad(x, (1, 2, 0, 1), mode="circular")
            )
        ),
        IMAGE,
        AB,
        others=ELSEWHERE,
    ),
    Toy("channel padding", between(lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)), after=11), IMAGE, AB, others=ELSEWHERE),
    Toy(
        "zero-padded shortcut",
        lambda: Net(
            lambda m, x: pooled(m, F.pad(m.a(x)[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + m.b(F.relu(m.a(x)))),
            a=conv(3, 6),
            b=conv(6, 10, stride=2),
            head=head(10),
        ),
        IMAGE,
    ),
    Toy(
        "padding layers",
        with_layer(
            lambda: nn.Sequential(
                nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ConstantPad2d(1, 0.3)
            )
        ),
        IMAGE,
        AB,
        others=ELSEWHERE,
    ),
    Toy(
        "grid sample",
        between(
            lambda x: F.grid_sample(
                x, F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3).to(x), x.shape, False), align_corners=False
            )
        ),
        IMAGE,
        AB,
    ),
    Toy(
        "unfold patches",
        lambda: Net(lambda m, x: m.head(F.unfold(m.a(x), 2, stride=2).transpose(1, 2)), a=conv(3, 8), head=head(32)),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "tensor unfold",
        lambda: Net(
            lambda m, x: m.head(m.a(x).unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)).flatten(2).transpose(1, 2)),
            a=conv(3, 8),
            head=head(8),
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "patch merging",
        lambda: Net(
            lambda m, x: m.head(torch.cat([(y := m.a(x))[:, :, ::2, ::2], y[:, :, 1::2, ::2], y[:, :, ::2, 1::2]], 1)),
            a=conv(3, 8),
            head=conv(24, 3, 1),
        ),
        IMAGE,
        {"a": 8},
        others=(images(size=10),),
    ),
    Toy(
        "reorganise by view",
        lambda: Net(
            lambda m, x: m.head(
                (y := m.a(x)).view(len(y), y.shape[1], 4, 2, 4, 2).permute(0, 1, 3, 5, 2, 4).reshape(len(y), -1, 4, 4)
            ),
            a=conv(3, 8),
            head=conv(32, 2, 1),
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy("pixel shuffle", with_layer(lambda: nn.PixelShuffle(2), 16, 4), IMAGE, {"a": 4, "b": 6}, others=ELSEWHERE),
    Toy("pixel unshuffle", with_layer(lambda: nn.PixelUnshuffle(2), 8, 32), IMAGE, AB, others=ELSEWHERE),
    Toy("channel shuffle layer", with_layer(lambda: nn.ChannelShuffle(2)), IMAGE, {"a": 4, "b": 6}, others=ELSEWHERE),
    Toy("local response norm", with_layer(lambda: nn.LocalResponseNorm(3)), IMAGE, {"b": 6}),
    Toy(
        "transposed",
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3)
        ),
        IMAGE,
        {"0": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "transposed, other ranks",
        lambda: nn.Sequential(nn.ConvTranspose1d(3, 8, 2), nn.ReLU(), nn.ConvTranspose1d(8, 2, 2)),
        images(rank=1),
        {"0": 8},
    ),
]

GROUPED = [
    Toy(
        "depthwise",
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8, groups=8), nn.BatchNorm2d(8), conv(8, 2, 1)),
        IMAGE,
        {"0": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "depthwise with a multiplier",
        lambda: nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 12, groups=6), nn.BatchNorm2d(12), conv(12, 2, 1)),
        IMAGE,
        {"0": 6},
        others=ELSEWHERE,
    ),
    Toy(
        "grouped",
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(), conv(8, 12, groups=4), nn.BatchNorm2d(12), nn.ReLU(), conv(12, 2, 1)
        ),
        IMAGE,
        {"0": 4},
        others=ELSEWHERE,
    ),
    Toy(
        "two grouped",
        lambda: nn.Sequential(conv(3, 12), conv(12, 12, groups=4), nn.ReLU(), conv(12, 6, groups=6), conv(6, 2, 1)),
        IMAGE,
    ),
    Toy(
        "grouped on the input",
        lambda: nn.Sequential(conv(4, 8, groups=2), nn.ReLU(), conv(8, 2, 1)),
        images(4),
        {},
        prunable=False,
        stays=("0: conv2d: groups channels that cannot be removed",),
    ),
    Toy(
        "grouped transposed",
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 12, 2, 2, groups=4), nn.ReLU(), conv(12, 2, 1)
        ),
        IMAGE,
        {"0": 4},
        others=ELSEWHERE,
    ),
    Toy(
        "depthwise transposed",
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, 2, groups=8), conv(8, 2, 1)),
        IMAGE,
        {"0": 8},
    ),
    Toy(
        "grouped in one dimension",
        lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.Conv1d(8, 8, 3, groups=2), nn.Conv1d(8, 2, 1)),
        images(rank=1),
        {"0": 2},
    ),
    Toy(
        "shared depthwise",
        lambda: Net(
            lambda m, x: m.head(m.dw(F.relu(m.dw(m.a(x))))), a=conv(3, 8), dw=conv(8, 8, groups=8), head=conv(8, 2, 1)
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "shuffled groups",
        lambda: Net(
            lambda m, x: m.head(m.g2(F.channel_shuffle(m.g1(m.a(x)), 2))),
            a=conv(3, 8),
            g1=conv(8, 8, groups=2),
            g2=conv(8, 8, groups=2),
            head=conv(8, 2),
        ),
        IMAGE,
        {},
        prunable=False,
        stays=("a: units: all its channels live and die together",),
    ),
]

NORMS = [
    Toy("batch norm without affine", with_layer(lambda: nn.BatchNorm2d(8, affine=False)), IMAGE, AB, others=ELSEWHERE),
    Toy(
        "batch norm without statistics",
        with_layer(lambda: nn.BatchNorm2d(8, track_running_stats=False)),
        IMAGE,
        AB,
        others=ELSEWHERE,
    ),
    Toy(
        "batch norm without anything",
        with_layer(lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
        IMAGE,
        AB,
    ),
    Toy("batch norm with averages", with_layer(lambda: nn.BatchNorm2d(8, momentum=None)), IMAGE, AB),
    Toy(
        "batch norm on the input",
        lambda: nn.Sequential(nn.BatchNorm2d(3), conv(3, 8), nn.ReLU(), conv(8, 2)),
        IMAGE,
        {"1": 8},
    ),
    Toy(
        "batch norm last",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.BatchNorm1d(5)),
        rows(),
        {"0": 8},
    ),
    Toy(
        "batch norm on tokens",
        lambda: Net(
            lambda m, x: m.head(m.bn(m.a(x).transpose(1, 2)).transpose(1, 2)),
            a=nn.Linear(6, 8),
            bn=nn.BatchNorm1d(8),
            head=head(8),
        ),
        tokens(),
        {"a": 8},
    ),
    Toy(
        "batch norm after flatten",
        lambda: nn.Sequential(conv(3, 4), nn.Flatten(), nn.BatchNorm1d(256), nn.Linear(256, 3)),
        IMAGE,
        {"0": 4},
    ),
    Toy("instance norm", with_layer(lambda: nn.InstanceNorm2d(8)), IMAGE, AB, others=ELSEWHERE),
    Toy(
        "instance norm with affine", with_layer(lambda: nn.InstanceNorm2d(8, affine=True)), IMAGE, AB, others=ELSEWHERE
    ),
    Toy(
        "instance norm with statistics",
        with_layer(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        IMAGE,
        AB,
    ),
    Toy(
        "instance norm of tokens",
        lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.InstanceNorm1d(8), nn.Conv1d(8, 2, 1)),
        images(rank=1),
        {"0": 8},
    ),
    Toy("group norm", with_layer(lambda: nn.GroupNorm(4, 8)), IMAGE, {"a": 4, "b": 6}, others=ELSEWHERE),
    Toy(
        "group norm without affine",
        with_layer(lambda: nn.GroupNorm(4, 8, affine=False)),
        IMAGE,
        {"a": 4, "b": 6},
        others=ELSEWHERE,
    ),
    Toy("group norm of one group", with_layer(lambda: nn.GroupNorm(1, 8)), IMAGE, {"b": 6}),
    Toy("group norm of single channels", with_layer(lambda: nn.GroupNorm(8, 8)), IMAGE, AB),
    Toy("functional group norm", between(lambda x: F.group_norm(x, 4)), IMAGE, {"b": 6}, stays=("a: trial",)),
    Toy(
        "layer norm",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)),
        tokens(),
        {"2": 10},
        stays=("1: layer_norm: normalises over channels",),
        others=(tokens(batch=3, length=7),),
    ),
    Toy("layer norm over positions", between(lambda x: F.layer_norm(x, (8, 8))), IMAGE, AB),
    Toy(
        "layer norm over maps", with_layer(lambda: nn.LayerNorm([8, 8, 8])), IMAGE, {"b": 6}, stays=("mid: layer_norm",)
    ),
    Toy(
        "rms norm",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)),
        tokens(),
        {"2": 10},
        stays=("1: rms_norm",),
    ),
    Toy(
        "rms norm by hand",
        lambda: Net(
            lambda m, x: m.c(F.relu(m.b((y := m.a(x)) * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 10),
            c=head(10),
        ),
        rows(),
        {"b": 10},
        stays=("mean: reduces over channels",),
    ),
    Toy(
        "softmax over channels",
        between(lambda x: x.softmax(1)),
        IMAGE,
        {"b": 6},
        stays=("softmax: mixes channels along this axis",),
    ),
    Toy("softmax over positions", between(lambda x: x.flatten(2).softmax(-1).view_as(x)), IMAGE, AB),
    Toy(
        "mean over channels",
        between(lambda x: x - x.mean(1, keepdim=True)),
        IMAGE,
        {"b": 6},
        stays=("mean: reduces over channels",),
    ),
    Toy(
        "max over channels",
        between(lambda x: torch.cat([x.amax(1, True), x.mean(1, True)], 1), after=2),
        IMAGE,
        {"b": 6},
        stays=("amax",),
    ),
    Toy("normalize", between(lambda x: F.normalize(x, dim=1)), IMAGE, {"b": 6}, stays=("norm: reduces over channels",)),
    Toy("cumsum over channels", between(lambda x: x.cumsum(1)), IMAGE, {"b": 6}, stays=("cumsum: mixes channels",)),
    Toy(
        "eca",
        lambda: Net(
            lambda m, x: pooled(m, m.b(_eca(m.a(x), m.k))),
            a=conv(3, 8),
            b=conv(8, 6),
            k=nn.Parameter(torch.rand(1, 1, 3)),
            head=head(6),
        ),
        IMAGE,
        {"b": 6},
        stays=("mixes positions, and units lie along them",),
    ),
    Toy(
        "squeeze and excite",
        lambda: nn.Sequential(unit(3, 8), SqueezeExcite(8, 5), conv(8, 2)),
        IMAGE,
        {"0.0": 8, "1.fc1": 5},
        others=ELSEWHERE,
    ),
    Toy(
        "global response norm",
        between(lambda x: x * (g := x.norm(dim=(2, 3), keepdim=True)) / (g.mean(1, keepdim=True) + 1e-6)),
        IMAGE,
        {"b": 6},
    ),
    Toy("prelu per channel", with_layer(lambda: nn.PReLU(8)), IMAGE, AB),
    Toy("prelu for all", with_layer(nn.PReLU), IMAGE, AB),
    Toy(
        "activations of all kinds",
        with_layer(
            lambda: nn.Sequential(
                nn.GELU(),
                nn.SiLU(),
                nn.Mish(),
                nn.ELU(),
                nn.CELU(),
                nn.SELU(),
                nn.Hardswish(),
                nn.Hardsigmoid(),
                nn.Softplus(),
                nn.LeakyReLU(),
                nn.ReLU6(),
                nn.Hardtanh(),
                nn.Softsign(),
                nn.Tanhshrink(),
                nn.LogSigmoid(),
                nn.RReLU(),
                nn.Softshrink(),
                nn.Hardshrink(),
                nn.Threshold(0.1, 0.2),
                nn.Sigmoid(),
            )
        ),
        IMAGE,
        AB,
    ),
    Toy(
        "dropout of all kinds",
        with_layer(lambda: nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout())),
        IMAGE,
        AB,
    ),
]

GATED_UNITS = [
    Toy("glu", lambda: nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3)), rows(), {"0": 8}),
    Toy("glu on channels", with_layer(lambda: nn.GLU(1), 8, 4), IMAGE, {"a": 4, "b": 6}),
    Toy("swiglu", lambda: Net(_swiglu, gate=nn.Linear(6, 8), up=nn.Linear(6, 8), down=head(8)), tokens(), {"gate": 8}),
    Toy("fused swiglu", lambda: Net(_fused_swiglu, both=nn.Linear(6, 16), down=head(8)), tokens(), {"both": 8}),
    Toy(
        "products",
        lambda: Net(
            lambda m, x: pooled(m, m.a(x) * m.b(x).sigmoid() / (1 + m.c(x).abs())),
            a=conv(3, 8),
            b=conv(3, 8),
            c=conv(3, 8, 1),
            head=head(8),
        ),
        IMAGE,
        {"a": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "outer product",
        lambda: Net(
            lambda m, x: m.head((m.a(x)[:, :, None] * m.b(x)[:, None, :]).flatten(1)),
            a=nn.Linear(6, 4),
            b=nn.Linear(6, 5),
            head=head(20),
        ),
        rows(),
        {"b": 5},
        stays=("root: view: merges axes of channels or takes one apart",),
    ),
    Toy(
        "film",
        lambda: Net(
            lambda m, x, c: pooled(m, m.a(x) * m.scale(c)[:, :, None, None] + m.shift(c)[..., None, None]),
            a=conv(3, 8),
            scale=nn.Linear(6, 8),
            shift=nn.Linear(6, 8),
            head=head(8),
        ),
        (images(batch=3), rows()),
        {"a": 8},
    ),
    Toy(
        "mixture of experts, dense",
        lambda: Net(
            lambda m, x: sum(m.router(x).softmax(-1)[:, i : i + 1] * e(x) for i, e in enumerate(m.experts)),
            router=nn.Linear(6, 2),
            experts=nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)),
        ),
        rows(),
        {"experts.0.0": 8, "experts.1.0": 8},
    ),
]

PARAMETERS = [
    Toy(
        "functional convolution",
        lambda: Net(
            lambda m, x: pooled(m, F.relu(F.conv2d(x, m.w, m.c, padding=1))),
            w=nn.Parameter(torch.rand(8, 3, 3, 3)),
            c=nn.Parameter(torch.rand(8)),
            head=head(8),
        ),
        IMAGE,
        {"w": 8},
        others=ELSEWHERE,
    ),
    Toy(
        "functional linear",
        lambda: Net(
            lambda m, x: F.linear(F.relu(F.linear(x, m.w)), m.v),
            w=nn.Parameter(torch.rand(8, 6)),
            v=nn.Parameter(torch.rand(3, 8)),
        ),
        rows(),
        {"w": 8},
    ),
    Toy(
        "x @ W",
        lambda: Net(
            lambda m, x: F.relu(x @ m.w + m.b) @ m.v,
            w=nn.Parameter(torch.rand(6, 8)),
            b=nn.Parameter(torch.rand(8)),
            v=nn.Parameter(torch.rand(8, 3)),
        ),
        rows(),
        {"w": 8},
    ),
    Toy(
        "x @ W on tokens",
        lambda: Net(
            lambda m, x: F.relu(x @ m.w) @ m.v.t(), w=nn.Parameter(torch.rand(6, 8)), v=nn.Parameter(torch.rand(3, 8))
        ),
        tokens(),
        {"w": 8},
    ),
    Toy(
        "W @ x",
        lambda: Net(
            lambda m, x: m.v @ F.relu(m.w @ x.transpose(-1, -2)),
            w=nn.Parameter(torch.rand(8, 6)),
            v=nn.Parameter(torch.rand(3, 8)),
        ),
        tokens(),
        {"w": 8},
    ),
    Toy(
        "einsum",
        lambda: Net(
            lambda m, x: torch.einsum("blh,ho->blo", F.relu(torch.einsum("bli,ih->blh", x, m.w)), m.v),
            w=nn.Parameter(torch.rand(6, 8)),
            v=nn.Parameter(torch.rand(8, 3)),
        ),
        tokens(),
        {"w": 8},
    ),
    Toy(
        "einsum on maps",
        lambda: Net(
            lambda m, x: torch.einsum("bchw,oc->bohw", F.relu(m.a(x)), m.v),
            a=conv(3, 8),
            v=nn.Parameter(torch.rand(2, 8)),
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "einsum with an ellipsis",
        lambda: Net(
            lambda m, x: torch.einsum("...h,ho", F.relu(torch.einsum("...i,ih", x, m.w)), m.v),
            w=nn.Parameter(torch.rand(6, 8)),
            v=nn.Parameter(torch.rand(8, 3)),
        ),
        tokens(),
        {"w": 8},
    ),
    Toy(
        "matrix times vector",
        lambda: Net(
            lambda m, x: F.relu(x @ m.w) @ m.v, w=nn.Parameter(torch.rand(6, 8)), v=nn.Parameter(torch.rand(8))
        ),
        rows(),
        {"w": 8},
    ),
    Toy(
        "fixed projection",
        lambda: Fixed(),
        rows(),
        {"a": 10, "projection": 8, "projection#2": 5},
    ),
    Toy(
        "made tensors",
        lambda: Net(
            lambda m, x: m.head(F.relu(m.a(x) + torch.zeros(m.a.out_features)) * x.new_ones(m.a.weight.shape[0])),
            a=nn.Linear(6, 8),
            head=head(8),
        ),
        rows(),
        {"a": 8},
    ),
    Toy(
        "made in a size of its own",
        lambda: Net(lambda m, x: m.head(F.relu(m.a(x) + torch.ones(8))), a=nn.Linear(6, 8), head=head(8)),
        rows(),
        {},
        prunable=False,
        stays=("a: trial: the model's own code",),
    ),
    Toy(
        "addmm",
        lambda: Net(
            lambda m, x: torch.addmm(m.c, F.relu(torch.addmm(m.b, x, m.w)), m.v),
            w=nn.Parameter(torch.rand(6, 8)),
            b=nn.Parameter(torch.rand(8)),
            v=nn.Parameter(torch.rand(8, 3)),
            c=nn.Parameter(torch.rand(3)),
        ),
        rows(),
        {"w": 8},
    ),
    Toy(
        "tied transposed weight",
        lambda: Net(lambda m, x: F.relu(x @ m.w) @ m.w.t(), w=nn.Parameter(torch.rand(6, 8))),
        rows(),
        {"w": 8},
    ),
    Toy(
        "tied autoencoder",
        lambda: Net(lambda m, x: F.linear(torch.tanh(m.enc(x)), m.enc.weight.t()), enc=nn.Linear(6, 8)),
        rows(),
        {"enc": 8},
    ),
    Toy(
        "concatenated weights",
        lambda: Net(
            lambda m, x: m.head(F.linear(x, torch.cat([m.w, m.v]))),
            w=nn.Parameter(torch.rand(4, 6)),
            v=nn.Parameter(torch.rand(5, 6)),
            head=head(9),
        ),
        rows(),
    ),
    Toy(
        "concatenated reading weights",
        lambda: Net(
            lambda m, x: F.linear(F.relu(m.a(x)), torch.cat([m.w, m.v])),
            a=nn.Linear(6, 8),
            w=nn.Parameter(torch.rand(2, 8)),
            v=nn.Parameter(torch.rand(3, 8)),
        ),
        rows(),
        # What reads them is no parameter; the rows that write them are masked.
        {"w": 8},
    ),
    Toy(
        "scaled weight",
        lambda: Net(
            lambda m, x: m.head(F.linear(F.relu(m.a(x)), m.w * 0.5)).relu(),
            a=nn.Linear(6, 8),
            w=nn.Parameter(torch.rand(5, 8)),
            head=head(5),
        ),
        rows(),
        {"a": 8, "w": 5},
    ),
    Toy(
        "learned scale and shift",
        lambda: Net(
            lambda m, x: pooled(m, F.relu(m.a(x) * m.g + m.s)),
            a=conv(3, 8),
            g=nn.Parameter(torch.rand(8, 1, 1)),
            s=nn.Parameter(torch.rand(1, 8, 1, 1)),
            head=head(8),
        ),
        IMAGE,
        {"a": 8},
    ),
    Toy(
        "stored positions",
        lambda: Net(
            lambda m, x: m.head(F.relu(m.a(x) + m.pos)),
            a=nn.Linear(6, 8),
            pos=nn.Parameter(torch.rand(1, 5, 8)),
            head=head(8),
        ),
        tokens(),
        {"a": 8},
        others=(tokens(batch=4),),
    ),
    Toy(
        "class token",
        lambda: Net(
            lambda m, x: m.head(torch.cat([m.cls.expand(len(x), -1, -1), m.a(x)], 1)[:, 0]),
            a=nn.Linear(6, 8),
            cls=nn.Parameter(torch.rand(1, 1, 8)),
            head=head(8),
        ),
        tokens(),
        {"a": 8},
    ),
    Toy(
        "embedding",
        lambda: nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)),
        torch.tensor([[1, 4, 10], [0, 4, 2]]),
        {"0": 8, "1": 6},
    ),
    Toy(
        "embedding with padding",
        lambda: nn.Sequential(nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 3)),
        torch.tensor([[1, 4, 10], [0, 4, 2]]),
        {"0": 8},
    ),
    Toy(
        "embedding bag",
        lambda: nn.Sequential(nn.EmbeddingBag(11, 8), nn.Linear(8, 3)),
        torch.tensor([[1, 4, 10], [0, 4, 2]]),
        {"0": 8},
    ),
    Toy("tied embedding", TiedLanguageModel, torch.tensor([[1, 4, 10], [0, 4, 2]]), {"down": 6, "up": 10}),
    Toy(
        "weight norm",
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)
        ),
        rows(),
    ),
    Toy(
        "weight norm on the reader",
        lambda: nn.Sequential(
            nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), parametrizations.weight_norm(nn.Linear(8, 3))
        ),
        rows(),
    ),
    Toy(
        "spectral norm",
        lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)
        ),
        rows(),
        {"2": 10},
    ),
    Toy(
        "old spectral norm",
        lambda: nn.Sequential(
            nn.utils.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)
        ),
        rows(),
        {"2": 10},
    ),
    Toy(
        "weight standardisation",
        lambda: nn.Sequential(Standardised(3, 8, 3), nn.ReLU(), Standardised(8, 10, 3), nn.ReLU(), conv(10, 2)),
        IMAGE,
    ),
    Toy("carried buffers", Carried, rows(), {"fc1": 8}),
    Toy("carried attribute", lambda: Carried(True), rows(), {"fc1": 8}),
    Toy("shape attribute", Sized, rows(), {"fc1": 8, "fc2": 10}),
    Toy("shape by a number", lambda: Sized(by_attribute=False), rows(), {"fc2": 10}, stays=("fc1: trial",)),
]

SIGNATURES = [
    Toy("two inputs", lambda: Net(_siamese, fc=nn.Linear(6, 8), head=head(24)), (rows(), rows().flip(0)), {"fc": 8}),
    Toy(
        "dict input",
        lambda: Net(
            lambda m, image, label: m.head(m.a(image).mean((2, 3)) + m.b(label)),
            a=conv(3, 8),
            b=nn.Linear(6, 8),
            head=head(8),
        ),
        {"image": images(batch=3), "label": rows()},
        {"a": 8},
    ),
    Toy(
        "a dict as the only argument",
        lambda: Net(lambda m, batch: m.head(F.relu(m.a(batch["x"]))), a=nn.Linear(6, 8), head=head(8)),
        ({"x": rows()},),
        {"a": 8},
    ),
    Toy(
        "tuple output",
        lambda: Net(
            lambda m, x: (m.one(y := F.relu(m.a(x))), m.two(y)), a=nn.Linear(6, 8), one=head(8), two=nn.Linear(8, 4)
        ),
        rows(),
        {"a": 8},
    ),
    Toy(
        "dict output",
        lambda: Net(
            lambda m, x: {"features": (y := F.relu(m.b(F.relu(m.a(x))))), "scores": [m.head(y)]},
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 7),
            head=head(7),
        ),
        rows(),
        {"a": 8},
        stays=("output: the model returns it",),
    ),
    Toy(
        "dataclass output",
        lambda: Net(
            lambda m, x: Answer(m.head(y := F.relu(m.b(m.a(x)))), y), a=nn.Linear(6, 8), b=nn.Linear(8, 7), head=head(7)
        ),
        rows(),
        {"a": 8},
    ),
    Toy("train-only head", TrainHead, IMAGE, {"stem.0": 8, "body.0": 6}, others=ELSEWHERE),
    Toy(
        "unused layers",
        lambda: Net(lambda m, x: m.head(F.relu(m.a(x))), a=nn.Linear(6, 8), never=nn.Linear(5, 5), head=head(8)),
        rows(),
        {"a": 8},
    ),
    Toy(
        "loss inside",
        lambda: Net(lambda m, x, y: F.cross_entropy(m.head(F.relu(m.a(x))), y), a=nn.Linear(6, 8), head=head(8)),
        (rows(), torch.tensor([0, 2, 1])),
        {"a": 8},
    ),
    Toy(
        "half inside",
        lambda: Net(lambda m, x: m.head(m.a(x).to(torch.float64).to(x.dtype)), a=nn.Linear(6, 8), head=head(8)),
        rows(),
        {"a": 8},
    ),
    Toy(
        "reshape with batch merged",
        lambda: Net(
            lambda m, x: m.head(F.relu(m.b(F.relu(m.a(x)).flatten(0, 1))).view(2, 5, -1)),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 7),
            head=head(7),
        ),
        tokens(),
        {"a": 8, "b": 7},
    ),
    Toy(
        "frames merged with batch",
        lambda: Net(
            lambda m, x: m.head(m.a(x.flatten(0, 1)).mean((2, 3)).view(2, 3, -1).mean(1)), a=conv(3, 8), head=head(8)
        ),
        torch.randn(2, 3, 3, 6, 6, generator=torch.Generator().manual_seed(1)),
        {"a": 8},
    ),
    Toy(
        "attention",
        lambda: Net(
            lambda m, x: m.fc2(F.relu(m.fc1(x + m.mha(x, x, x, need_weights=False)[0]))),
            mha=nn.MultiheadAttention(6, 2, batch_first=True),
            fc1=nn.Linear(6, 10),
            fc2=head(10),
        ),
        tokens(),
        {"mha": 2, "fc1": 10},
    ),
    Toy(
        "transposed conv layout",
        lambda: Net(
            lambda m, x: m.head(m.b(m.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
            a=conv(3, 8),
            b=nn.Linear(8, 10),
            head=conv(10, 2),
        ),
        IMAGE,
        {"a": 8, "b": 10},
        others=ELSEWHERE,
    ),
    Toy(
        "nothing to prune", lambda: nn.Linear(6, 3), rows(), {}, prunable=False, stays=("output: the model returns it",)
    ),
]

TOYS = [
    *CHAINS, *RESIDUALS, *SPLITS, *WRITES, *SPATIAL, *GROUPED, *NORMS, *GATED_UNITS, *PARAMETERS, *SIGNATURES,
]  # fmt: skip
