"""A layer with fewer outputs that writes them into their places in a wider stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgate.layers.mixed import Classes, Mixed, channel_axis, mixed_class


class WriteBack(Mixed):
    """Mixed into a layer class: computes a narrow output and writes it into `width` channels."""

    places: Tensor
    width: int

    def forward(self, x: Tensor) -> Tensor:
        """The layer's own output at `places`, zeros elsewhere, in a fresh tensor."""
        narrow: Tensor = super().forward(x)
        return written_back(narrow, self.places, self.width, channel_axis(self), self.first)

    @property
    def first(self) -> int | None:
        """Where the places begin, if they are one block."""
        return self._first

    def write_into_(self, places: Tensor, width: int) -> None:
        """Sets where the outputs go."""
        self.register_buffer("places", places, persistent=False)
        self.width = width
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
        return F.pad(narrow, [0, 0] * (narrow.dim() - 1 - dim % narrow.dim()) + [first, after])
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


_CLASSES: Classes = {
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
_LAYERS = tuple(_CLASSES)
WriteBack.classes = _CLASSES


def can_write_back(module: nn.Module) -> bool:
    """Whether the module is, or derives from, a layer that can become a `WriteBack` layer."""
    return isinstance(module, _LAYERS) and not isinstance(module, WriteBack)


def write_back_(module: nn.Module, places: Tensor, width: int) -> None:
    """Turns a layer into the `WriteBack` layer of its class; its tensors have been narrowed before."""
    module.__class__ = mixed_class(WriteBack, type(module))
    assert isinstance(module, WriteBack)
    module.write_into_(places, width)
