"""A network of odd widths, trained as one whose widths suit a GPU: silent channels fill them up.

Tensor cores take channels by eights; for convolutions of other widths cuDNN copies images to padded ones or takes other
kernels. The stand-in has the widths rounded up. Where a layer writes into some places of a stream it writes into all,
zeros where it did not; where a norm picks some channels of a stream it reads all, and has zeros for the others.

It is the same training. All that is learned for a silent channel is zero: the weights that write it, scale and shift of
its norms, the weights that read it. So it is zero itself, no gradient reaches what reads it, none comes back through a
scale of zero or through the ReLU behind a shift of zero. Decay and momentum keep zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.optim import Optimizer

from headgate.layers import GatherBatchNorm2d
from headgate_lab.models.rows import RowsConv2d

MULTIPLE = 8
# Where an axis of the small network's tensor lies in that of the stand-in.
Index: TypeAlias = tuple[slice | Tensor, ...]
# How closely both must agree before any training, relative to the largest output. A GPU rounds to 10 bits in some
# kernels, and takes others for other widths; where widths do not fit each other, far more is wrong.
TOLERANCE = 1e-2


class StandIn:
    """`model` is trained in the place of `small`; what either has learned can be given to the other."""

    def __init__(self, small: nn.Module, model: nn.Module, places: Mapping[str, Index]) -> None:
        self.small, self.model, self._places = small, model, places
        self.put_()

    @torch.no_grad()
    def put_(self) -> None:
        """The stand-in gets what the small network has learned."""
        for place, mine, its in self._pairs():
            mine.copy_(widened(its, mine, place))

    @torch.no_grad()
    def take_(self) -> None:
        """The small network gets what the stand-in has learned."""
        for place, mine, its in self._pairs():
            its.copy_(mine[place])

    def move_(self, optimizer: Optimizer) -> None:
        """The optimizer, which moved the small network, moves the stand-in, with all that it remembers."""
        known = {its: (place, mine) for place, mine, its in self._pairs()}
        for group in optimizer.param_groups:
            group["params"] = [
                known[parameter][1] if parameter in known else parameter for parameter in group["params"]
            ]
        for parameter in [parameter for parameter in optimizer.state if parameter in known]:
            place, mine = known[parameter]
            optimizer.state[mine] = _each(optimizer.state.pop(parameter), parameter, _widen(mine, place))

    def small_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of the stand-in's optimizer, as the small network's would be."""
        return self._by_parameter(optimizer, optimizer.state_dict(), lambda mine, place: (mine, _trim(place)))

    def own_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """What `small_state` returned, for the stand-in's optimizer."""
        return self._by_parameter(optimizer, state, lambda mine, place: (mine[place], _widen(mine, place)))

    def _by_parameter(
        self,
        optimizer: Optimizer,
        state: dict[str, Any],
        how: Callable[[Tensor, Index], tuple[Tensor, Callable[[Tensor], Tensor]]],
    ) -> dict[str, Any]:
        """A state dict of the optimizer with the tensors of every parameter changed."""
        places = {mine: place for place, mine, _ in self._pairs()}
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        changed = {
            number: _each(kept, *how(order[number], places[order[number]])) if order[number] in places else kept
            for number, kept in state["state"].items()
        }
        return {**state, "state": changed}

    def _pairs(self) -> Iterator[tuple[Index, Tensor, Tensor]]:
        mine, its = _tensors(self.model), _tensors(self.small)
        for name, place in self._places.items():
            yield place, mine[name], its[name]


def stand_in(small: nn.Module, example: Tensor) -> StandIn | None:
    """One for this network; None where there is nothing to fill up, or something that this module does not know.

    Args:
        small: convolutions and linear layers whose outputs, but the last ones, go through ReLU behind BatchNorm, and
            nothing else with parameters.
        example: images, on which both must agree.
    """
    convolutions = [layer for layer in small.modules() if isinstance(layer, nn.Conv2d)]
    linears = [layer for layer in small.modules() if isinstance(layer, nn.Linear)]
    layers: dict[str, nn.Module] = {}
    places: dict[str, Index] = {}
    picked: Picked | None = None
    for path, layer in small.named_modules():
        if not any(True for _ in layer.parameters(recurse=False)):
            continue
        filled = _filled(layer, picked, reads_images=layer in convolutions[:1], is_last=layer in linears[-1:])
        if filled is None:
            return None
        picked = _picked(layer)  # what comes next reads that
        layers[path], found = filled
        places |= {f"{path}.{name}": place for name, place in found.items()}
    wide = copy.deepcopy(small)
    for path, new in layers.items():
        _replace_(wide, path, new)
    for layer in wide.modules():
        if isinstance(zeros := getattr(layer, "zeros", None), Tensor):  # what is left of a branch that fell silent
            layer.zeros = zeros.new_zeros(_up(len(zeros)))
    old, new_ones = _tensors(small), _tensors(wide)
    if all(old[name].shape == new_ones[name].shape for name in places):
        return None
    result = StandIn(small, wide, places)
    return result if _agree(small, wide, example) else None


Filled: TypeAlias = tuple[nn.Module, dict[str, Index]]


class Picked(NamedTuple):
    """Some channels of a stream, by their numbers, and how many it has."""

    channels: Tensor
    wide: int


def _picked(layer: nn.Module) -> Picked | None:
    """What a norm picks; None if it reads all."""
    return Picked(layer.picked, layer.wide) if type(layer) is GatherBatchNorm2d else None


def _filled(layer: nn.Module, picked: Picked | None, *, reads_images: bool, is_last: bool) -> Filled | None:
    """The layer with its widths rounded up, nothing in it yet, and where its tensors lie in those of the new one.

    `picked` is what the norm before it picks of a stream.
    """
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.bias is None:
        return _filled_convolution(layer, picked, reads_images)
    if isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats:
        return _filled_norm(layer)
    if type(layer) is nn.Linear:
        inputs, outputs = layer.in_features, layer.out_features
        new = skip_init(nn.Linear, _up(inputs), outputs if is_last else _up(outputs), bias=layer.bias is not None)
        bias: dict[str, Index] = {} if layer.bias is None else {"bias": (slice(outputs),)}
        return new, {"weight": (slice(outputs), slice(inputs)), **bias}
    return None


def _filled_norm(layer: nn.BatchNorm2d) -> Filled | None:
    picked = _picked(layer)
    if type(layer) is not nn.BatchNorm2d and picked is None:
        return None
    width, part = (layer.num_features, slice(layer.num_features)) if picked is None else (picked.wide, picked.channels)
    new = skip_init(nn.BatchNorm2d, _up(width), layer.eps, layer.momentum)
    names = ("weight", "bias", "running_mean", "running_var")
    return new, {**dict.fromkeys(names, (part,)), "num_batches_tracked": ()}


def _filled_convolution(layer: nn.Conv2d, picked: Picked | None, reads_images: bool) -> Filled | None:
    writes_back = hasattr(layer, "places") and hasattr(layer, "width")
    if (type(layer) is not nn.Conv2d and not writes_back) or layer.padding_mode != "zeros":
        return None
    inputs = layer.in_channels if reads_images else _up(layer.in_channels)
    column: slice | Tensor = slice(layer.in_channels)
    if picked is not None:
        inputs, column = _up(picked.wide), picked.channels
    outputs = _up(int(layer.width) if writes_back else layer.out_channels)  # type: ignore[arg-type]
    kind = RowsConv2d if writes_back else nn.Conv2d
    how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    new = skip_init(kind, inputs, outputs, *how, bias=False)
    row: slice | Tensor = slice(layer.out_channels)
    if writes_back:
        row = layer.places  # type: ignore[assignment]
        rows = torch.zeros(outputs, 1, 1, 1)
        rows[row.cpu() if isinstance(row, Tensor) else row] = 1.0
        new.register_buffer("rows", rows, persistent=False)
    if isinstance(row, Tensor) and isinstance(column, Tensor):
        row = row.unsqueeze(1)  # every row with every column
    return new, {"weight": (row, column)}


def _replace_(model: nn.Module, path: str, new: nn.Module) -> None:
    """Puts the new layer where the old one is, on its device and in its memory format."""
    old = model.get_submodule(path)
    new.train(old.training)
    for own, its in zip(new.parameters(recurse=False), old.parameters(recurse=False), strict=True):
        own.requires_grad_(its.requires_grad)
    parent, _, name = path.rpartition(".")
    new.to(next(old.parameters()))
    if isinstance(new, nn.Conv2d):
        new.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    setattr(model.get_submodule(parent), name, new)


@torch.no_grad()
def _agree(small: nn.Module, wide: nn.Module, example: Tensor) -> bool:
    """Whether both compute the same; widths that meet in other ways than these layers' do not fit each other."""
    before = small.training
    try:
        expected, found = small.eval()(example), wide.eval()(example)
    except RuntimeError:
        return False
    finally:
        small.train(before)
        wide.train(before)
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())


def widened(its: Tensor, like: Tensor, place: Index) -> Tensor:
    """The small network's tensor in its place among zeros."""
    wide = torch.zeros_like(like)
    wide[place] = its
    return wide


def _widen(mine: Tensor, place: Index) -> Callable[[Tensor], Tensor]:
    return lambda value: widened(value, mine.detach(), place)


def _trim(place: Index) -> Callable[[Tensor], Tensor]:
    return lambda value: value[place].clone()


def _each(kept: Mapping[str, Any], parameter: Tensor, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What an optimizer remembers of a parameter, changed where it has the parameter's shape."""
    return {
        name: change(value) if isinstance(value, Tensor) and value.shape == parameter.shape else value
        for name, value in kept.items()
    }


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and all that is saved beside them."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _up(width: int) -> int:
    return -(-width // MULTIPLE) * MULTIPLE
