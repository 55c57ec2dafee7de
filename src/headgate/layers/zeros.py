"""What is left of a branch that fell silent, and of the layers that only fed it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
