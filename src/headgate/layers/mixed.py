"""Classes of layers that are one of torch's, or of the user's, with something of ours before or behind it."""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

if TYPE_CHECKING:
    _Layer = nn.Module
else:
    _Layer = object

# By a layer's class, the class that is mixed with it.
Classes = dict[type[nn.Module], type[nn.Module]]

_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Mixed(_Layer):
    """What is mixed into layers' classes: `classes` knows those that there are, and gets those made on the spot."""

    classes: ClassVar[Classes]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As of any module, but that a class made on the spot, which has no place to be found at, is made again."""
        reduced: Any = super().__reduce_ex__(protocol)
        made, given, *rest = reduced
        mixins, layer = _parts(type(self))
        if made is not copyreg.__newobj__ or not mixins:  # type: ignore[attr-defined]
            return made, given, *rest
        return _blank, (layer, *mixins), *rest


def mixed_class(mixin: type[Mixed], layer: type[nn.Module]) -> type[nn.Module]:
    """The class for a layer's class; made once, on the spot, for classes of the user's own."""
    if layer not in mixin.classes:
        name = f"{mixin.__name__}{layer.__name__}"
        mixin.classes[layer] = type(name, (mixin, layer), {"__doc__": mixin.__doc__})
    return mixin.classes[layer]


def _parts(kind: type[nn.Module]) -> tuple[list[type[Mixed]], type[nn.Module]]:
    """What has been mixed into a layer's class, the first one first, and that class."""
    mixins: list[type[Mixed]] = []
    while issubclass(kind, Mixed) and len(kind.__bases__) == 2:
        mixin, kind = kind.__bases__
        mixins.insert(0, mixin)
    return mixins, kind


def _blank(kind: type[nn.Module], *mixins: type[Mixed]) -> nn.Module:
    """A module without its state, which pickle fills in."""
    for mixin in mixins:
        kind = mixed_class(mixin, kind)
    return kind.__new__(kind)


def channel_axis(layer: nn.Module) -> int:
    """The axis of a layer's channels, whatever axes there are before them or, of a BatchNorm, behind.

    Of what it is given and of what it returns: the second one of a BatchNorm, the last of a linear map, else, of
    convolutions and InstanceNorms, the one before space.
    """
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return 1
    if isinstance(layer, nn.modules.conv._ConvNd):
        return -1 - len(layer.kernel_size)
    for rank, norm in enumerate(_INSTANCE_NORMS, 1):
        if isinstance(layer, norm):
            return -1 - rank
    return -1
