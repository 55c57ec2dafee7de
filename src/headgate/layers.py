"""The few layers of our own that a compacted model may contain, under the same parameter names as before.

A residual branch that was narrowed still adds into a wider stream. Its last layer then becomes a `WriteBack` layer:
the same layer with fewer outputs, which writes them into their places and zeros everywhere else. A branch that reads
only some channels of its stream begins with a `Gather` layer: the same layer with fewer inputs, which picks them. A
gate that was placed by hand becomes a `Scale`, which multiplies the channels that are left by what its mask was. A
branch that writes nothing at all ends in `Zeros`, and so does whatever only fed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    _Layer = nn.Module
else:
    _Layer = object


class WriteBack(_Layer):
    """Mixed into a layer class: computes a narrow output and writes it into `width` channels along `channel_dim`."""

    places: Tensor
    width: int
    channel_dim: int

    def forward(self, x: Tensor) -> Tensor:
        """The layer's own output at `places`, zeros elsewhere, in a fresh tensor."""
        narrow: Tensor = super().forward(x)
        return written_back(narrow, self.places, self.width, self.channel_dim, self.first)

    @property
    def first(self) -> int | None:
        """Where the places begin, if they are one block."""
        return self._first

    def write_into_(self, places: Tensor, width: int, channel_dim: int) -> None:
        """Sets where the outputs go."""
        self.register_buffer("places", places, persistent=False)
        self.width, self.channel_dim = width, channel_dim
        start = int(places[0])
        block = torch.equal(places.cpu(), torch.arange(start, start + len(places)))
        self._first = start if block else None

    def extra_repr(self) -> str:
        """The layer's own description, and how many channels it is written into."""
        return f"{super().extra_repr()}, written into {self.width} channels"


def written_back(narrow: Tensor, places: Tensor, width: int, dim: int, first: int | None) -> Tensor:
    """`narrow` in a wider tensor of zeros; one padding where the places are a block that begins at `first`."""
    if first is not None:
        after = width - first - narrow.shape[dim]
        return F.pad(narrow, [0, 0] * (narrow.dim() - 1 - dim) + [first, after])
    shape = list(narrow.shape)
    shape[dim] = width
    return narrow.new_zeros(shape).index_copy(dim, places, narrow)


class WriteBackLinear(WriteBack, nn.Linear):
    """A narrow `nn.Linear` that writes back."""


class WriteBackConv1d(WriteBack, nn.Conv1d):
    """A narrow `nn.Conv1d` that writes back."""


class WriteBackConv2d(WriteBack, nn.Conv2d):
    """A narrow `nn.Conv2d` that writes back."""


class WriteBackConv3d(WriteBack, nn.Conv3d):
    """A narrow `nn.Conv3d` that writes back."""


class WriteBackBatchNorm1d(WriteBack, nn.BatchNorm1d):
    """A narrow `nn.BatchNorm1d` that writes back."""


class WriteBackBatchNorm2d(WriteBack, nn.BatchNorm2d):
    """A narrow `nn.BatchNorm2d` that writes back."""


class WriteBackBatchNorm3d(WriteBack, nn.BatchNorm3d):
    """A narrow `nn.BatchNorm3d` that writes back."""


class WriteBackInstanceNorm1d(WriteBack, nn.InstanceNorm1d):
    """A narrow `nn.InstanceNorm1d` that writes back."""


class WriteBackInstanceNorm2d(WriteBack, nn.InstanceNorm2d):
    """A narrow `nn.InstanceNorm2d` that writes back."""


class WriteBackInstanceNorm3d(WriteBack, nn.InstanceNorm3d):
    """A narrow `nn.InstanceNorm3d` that writes back."""


class Scale(nn.Module):
    """Multiplies channels along `dim` by fixed numbers, the buffer `gain`: what is left of a hand-placed gate.

    Example:
        >>> Scale(torch.tensor([0.5, 2.0]), dim=1)(torch.ones(1, 2))
        tensor([[0.5000, 2.0000]])
    """

    gain: Tensor

    def __init__(self, gain: Tensor, dim: int) -> None:
        super().__init__()
        self.register_buffer("gain", gain)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the numbers, in x's own dtype."""
        shape = [1] * x.dim()
        shape[self.dim] = len(self.gain)
        return x * self.gain.to(x.dtype).view(shape)

    def extra_repr(self) -> str:
        """How many channels, and along which axis."""
        return f"{len(self.gain)}, dim={self.dim}"


class Zeros(nn.Module):
    """Returns fresh zeros of the shape that another layer would return: what is left of a branch that fell silent.

    Never its input, which code that adds in place would double. `windows` has, for each axis of positions, the map
    from a size to the size that the layer makes of it; `width` 0 means as many channels as there come in.
    """

    zeros: Tensor

    def __init__(self, width: int, channel_dim: int, windows: tuple[Window, ...] = ()) -> None:
        super().__init__()
        self.channel_dim, self.windows = channel_dim, windows
        # A tensor and no number, so that it is cut with the stream that it is added to.
        self.register_buffer("zeros", torch.zeros(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zeros, in x's dtype and on its device."""
        if not len(self.zeros):
            return torch.zeros_like(x)
        shape = list(x.shape)
        for window, dim in zip(reversed(self.windows), reversed(range(x.dim())), strict=False):
            shape[dim] = window.size(shape[dim])
        shape[self.channel_dim] = 1
        channels = [1] * x.dim()
        channels[self.channel_dim] = -1
        return x.new_zeros(shape) + self.zeros.to(x.dtype).view(channels)

    def extra_repr(self) -> str:
        """How many channels of zeros."""
        return f"{len(self.zeros) or 'as many'} channels"


@dataclass(frozen=True)
class Window:
    """How a convolution changes the number of positions along one axis."""

    kernel: int
    stride: int
    before_and_after: int
    dilation: int
    transposed: bool
    extra: int

    def size(self, positions: int) -> int:
        """How many positions come out."""
        reach = self.dilation * (self.kernel - 1) + 1
        if self.transposed:
            return (positions - 1) * self.stride - self.before_and_after + reach + self.extra
        return (positions + self.before_and_after - reach) // self.stride + 1


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: WriteBackLinear,
    nn.Conv1d: WriteBackConv1d,
    nn.Conv2d: WriteBackConv2d,
    nn.Conv3d: WriteBackConv3d,
    nn.BatchNorm1d: WriteBackBatchNorm1d,
    nn.BatchNorm2d: WriteBackBatchNorm2d,
    nn.BatchNorm3d: WriteBackBatchNorm3d,
    nn.InstanceNorm1d: WriteBackInstanceNorm1d,
    nn.InstanceNorm2d: WriteBackInstanceNorm2d,
    nn.InstanceNorm3d: WriteBackInstanceNorm3d,
}


_KEEP_SHAPE = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.GroupNorm, nn.LayerNorm, nn.PReLU,
)  # fmt: skip
_MAPS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


def can_be_empty(module: nn.Module) -> bool:
    """Whether `Zeros` can stand in for the module: a layer of torch's, or one that runs it as it is, with no hooks."""
    base = next((kind for kind in (*_KEEP_SHAPE, *_MAPS) if isinstance(module, kind)), None)
    if base is None or type(module).forward is not base.forward or next(module.children(), None) is not None:
        return False
    return not module._forward_hooks and not module._forward_pre_hooks


def outputs_of(module: nn.Module) -> int:
    """How many channels a linear map writes; 0 for a layer that keeps the shape of what it is given."""
    if isinstance(module, nn.Linear):
        return module.out_features
    return module.out_channels if isinstance(module, nn.modules.conv._ConvNd) else 0


def empty_(model: nn.Module, path: str, width: int) -> None:
    """Puts `Zeros` with that many channels (0: as many as come in) in the place of a layer."""
    layer = model.get_submodule(path)
    rank = len(layer.kernel_size) if isinstance(layer, nn.modules.conv._ConvNd) else 0
    dim = -1 - rank if isinstance(layer, _MAPS) else 1
    zeros = Zeros(width, dim, _windows(layer) if isinstance(layer, nn.modules.conv._ConvNd) else ())
    like = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), zeros.zeros)
    model.set_submodule(path, zeros.to(like.device, like.dtype).train(layer.training))


def _windows(layer: nn.modules.conv._ConvNd) -> tuple[Window, ...]:
    axes = range(len(layer.kernel_size))
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if isinstance(layer.padding, str):
        same = layer.padding == "same"
        padding = tuple(dilation[axis] * (kernel[axis] - 1) if same else 0 for axis in axes)
    else:
        padding = tuple(2 * amount for amount in layer.padding)
    return tuple(
        Window(kernel[a], stride[a], padding[a], dilation[a], layer.transposed, layer.output_padding[a]) for a in axes
    )


def can_write_back(module: nn.Module) -> bool:
    """Whether the module is, or derives from, a layer that can become a `WriteBack` layer."""
    return isinstance(module, tuple(_CLASSES)) and not isinstance(module, WriteBack)


def write_back_class(layer: type[nn.Module]) -> type[nn.Module]:
    """The `WriteBack` class for a layer class; made once, on the spot, for classes of the user's own."""
    if layer not in _CLASSES:
        _CLASSES[layer] = type(f"WriteBack{layer.__name__}", (WriteBack, layer), {"__doc__": WriteBack.__doc__})
    return _CLASSES[layer]


def write_back_(module: nn.Module, places: Tensor, width: int, channel_dim: int) -> None:
    """Turns a layer into the `WriteBack` layer of its class; its tensors have been narrowed before."""
    module.__class__ = write_back_class(type(module))
    assert isinstance(module, WriteBack)
    module.write_into_(places, width, channel_dim)


class Gather(_Layer):
    """Mixed into a layer class: picks some of the `wide` channels it is given, and computes with those only."""

    picked: Tensor
    wide: int

    def forward(self, x: Tensor) -> Tensor:
        """The layer's own output for the picked channels."""
        result: Tensor = super().forward(x.index_select(self.gathered_dim, self.picked))
        return result

    @property
    def gathered_dim(self) -> int:
        """The axis of channels: the second one for BatchNorm, the last for a linear map, else the one before space."""
        if isinstance(self, nn.modules.batchnorm._BatchNorm):
            return 1
        return -1 if isinstance(self, nn.Linear) else 1 - cast(nn.modules.conv._ConvNd, self).weight.dim()

    def pick_(self, picked: Tensor, wide: int) -> None:
        """Sets which channels are read."""
        self.register_buffer("picked", picked, persistent=False)
        self.wide = wide

    def extra_repr(self) -> str:
        """The layer's own description, and from how many channels it picks."""
        return f"{super().extra_repr()}, picked from {self.wide} channels"


class GatherLinear(Gather, nn.Linear):
    """A narrow `nn.Linear` that picks its inputs."""


class GatherConv1d(Gather, nn.Conv1d):
    """A narrow `nn.Conv1d` that picks its inputs."""


class GatherConv2d(Gather, nn.Conv2d):
    """A narrow `nn.Conv2d` that picks its inputs."""


class GatherConv3d(Gather, nn.Conv3d):
    """A narrow `nn.Conv3d` that picks its inputs."""


class GatherBatchNorm1d(Gather, nn.BatchNorm1d):
    """A narrow `nn.BatchNorm1d` that picks its inputs."""


class GatherBatchNorm2d(Gather, nn.BatchNorm2d):
    """A narrow `nn.BatchNorm2d` that picks its inputs."""


class GatherBatchNorm3d(Gather, nn.BatchNorm3d):
    """A narrow `nn.BatchNorm3d` that picks its inputs."""


_GATHERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: GatherLinear,
    nn.Conv1d: GatherConv1d,
    nn.Conv2d: GatherConv2d,
    nn.Conv3d: GatherConv3d,
    nn.BatchNorm1d: GatherBatchNorm1d,
    nn.BatchNorm2d: GatherBatchNorm2d,
    nn.BatchNorm3d: GatherBatchNorm3d,
}


def can_gather(module: nn.Module) -> bool:
    """Whether the module is, or derives from, a layer that can become a `Gather` layer."""
    return isinstance(module, tuple(_GATHERS)) and not isinstance(module, Gather)


def gather_class(layer: type[nn.Module]) -> type[nn.Module]:
    """The `Gather` class for a layer class; made once, on the spot, for classes of the user's own."""
    if layer not in _GATHERS:
        _GATHERS[layer] = type(f"Gather{layer.__name__}", (Gather, layer), {"__doc__": Gather.__doc__})
    return _GATHERS[layer]


def gather_(module: nn.Module, picked: Tensor, wide: int) -> None:
    """Turns a layer into the `Gather` layer of its class; its tensors have been narrowed before."""
    module.__class__ = gather_class(type(module))
    assert isinstance(module, Gather)
    module.pick_(picked, wide)
