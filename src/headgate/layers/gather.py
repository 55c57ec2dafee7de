"""A layer with fewer inputs that picks them from a wider stream."""

from __future__ import annotations

from torch import Tensor, nn

from headgate.layers.mixed import Classes, Mixed, channel_axis, mixed_class


class Gather(Mixed):
    """Mixed into a layer class: picks some of the `wide` channels it is given, and computes with those only."""

    picked: Tensor
    wide: int

    def forward(self, x: Tensor) -> Tensor:
        """The layer's own output for the picked channels."""
        result: Tensor = super().forward(chosen(x, channel_axis(self), self.picked))
        return result

    def pick_(self, picked: Tensor, wide: int) -> None:
        """Sets which channels are read."""
        self.register_buffer("picked", picked, persistent=False)
        self.wide = wide

    def extra_repr(self) -> str:
        """The layer's own description, and from how many channels it picks."""
        return f"{super().extra_repr()}, picked from {self.wide} channels"


def chosen(x: Tensor, dim: int, picked: Tensor) -> Tensor:
    """Some channels of `x`; on a CPU they lie in memory as its channels do.

    Where these lie side by side, `index_select` would write them apart, and what follows would lay them out once more.
    Other devices keep it: no GPU has been asked yet which is faster there.
    """
    together = x.device.type == "cpu" and x.stride(dim) == 1 and dim % x.dim() != x.dim() - 1
    return x.movedim(dim, -1)[..., picked].movedim(-1, dim) if together else x.index_select(dim, picked)


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


_CLASSES: Classes = {
    nn.Linear: GatherLinear,
    nn.Conv1d: GatherConv1d,
    nn.Conv2d: GatherConv2d,
    nn.Conv3d: GatherConv3d,
    nn.BatchNorm1d: GatherBatchNorm1d,
    nn.BatchNorm2d: GatherBatchNorm2d,
    nn.BatchNorm3d: GatherBatchNorm3d,
}
_LAYERS = tuple(_CLASSES)
Gather.classes = _CLASSES


def can_gather(module: nn.Module) -> bool:
    """Whether the module is, or derives from, a layer that can become a `Gather` layer."""
    return isinstance(module, _LAYERS) and not isinstance(module, Gather)


def gather_(module: nn.Module, picked: Tensor, wide: int) -> None:
    """Turns a layer into the `Gather` layer of its class; its tensors have been narrowed before."""
    module.__class__ = mixed_class(Gather, type(module))
    assert isinstance(module, Gather)
    module.pick_(picked, wide)
