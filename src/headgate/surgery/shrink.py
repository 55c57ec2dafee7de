"""Cutting units out of a model: every parameter, buffer and size attribute that carries them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headgate.channels.groups import STAYS, Branch, Plan
from headgate.channels.trace import aliases
from headgate.layers import write_back_
from headgate.surgery.keep import Keep, chosen, kept_masks, rows_left, silent_blocks


def shrink(model: nn.Module, plan: Plan, keep: Mapping[str, Tensor]) -> nn.Module:
    """A smaller copy of `model`, of the same class: units whose entry in `keep` is False are gone.

    `keep` maps the name of a group or branch to a bool vector over its units; what is missing is kept whole. What the
    removed units contributed is lost: mask them first (or let `compact` do both).

    Raises:
        ArgumentError: an unknown name, a vector of the wrong length, or one that leaves nothing.
    """
    decision = chosen(plan, keep)
    small = copy.deepcopy(model)
    shrink_(small, plan, decision)
    return small


def shrink_(model: nn.Module, plan: Plan, keep: Keep) -> None:
    """Cuts in place. The caller owns the model and throws it away if this raises."""
    sizes = {path: _channel_sizes(module) for path, module in model.named_modules()}
    by_name: dict[str, dict[int, Tensor]] = {}
    for (name, axis), mask in kept_masks(plan, keep).items():
        if not bool(mask.all()):
            by_name.setdefault(name, {})[axis] = mask.nonzero().squeeze(1)
    new: dict[str, Tensor] = {}
    for name, axes in by_name.items():
        old = tensor = _get(model, name)
        for axis, indices in axes.items():
            tensor = tensor.index_select(axis, indices.to(tensor.device))
        new[name] = _like(tensor, old)
    for alias, name in aliases(model).items():
        if name in new:
            _set_(model, alias, new[name])
    for path, module in model.named_modules():
        units = plan.widths.get(path)
        width = None if units is None else int(_left(units, keep.units).sum())
        _resize_attributes_(module, sizes[path], width)
    for branch in plan.branches:
        if branch.name in keep.branches:
            _write_back_(model, plan, branch, keep)
    for path in silent_blocks(plan, keep):
        model.set_submodule(path, nn.Identity())


def _write_back_(model: nn.Module, plan: Plan, branch: Branch, keep: Keep) -> None:
    """Makes the last layer of a narrowed branch write its outputs into their places in the stream."""
    stream, written = rows_left(plan, branch, keep)
    if torch.equal(stream, written):
        return
    module = model.get_submodule(branch.path)
    places = written[stream].nonzero().squeeze(1).to(next(module.parameters()).device)
    write_back_(module, places, int(stream.sum()), branch.dim)


def _left(units: tuple[int, ...], kept: Tensor) -> Tensor:
    numbers = torch.tensor(units)
    return (numbers == STAYS) | kept[numbers.clamp_min(0)]


def _get(model: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    tensor = getattr(model.get_submodule(path), leaf)
    assert isinstance(tensor, Tensor)
    return tensor


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    """The new values as the old tensor was: a parameter if it was one, its memory format, its requires_grad."""
    data = tensor.detach()
    if old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last) and not old.is_contiguous():
        data = data.contiguous(memory_format=torch.channels_last)
    return nn.Parameter(data, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else data


def _set_(model: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(tensor, nn.Parameter):
        module._parameters[leaf] = tensor
    else:
        module._buffers[leaf] = tensor


def _channel_sizes(module: nn.Module) -> tuple[int, int]:
    """Outputs and inputs per convolution group, or channels per norm group: what stays when whole groups go."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.out_channels // module.groups, module.in_channels // module.groups
    if isinstance(module, nn.GroupNorm):
        return module.num_channels // module.num_groups, 0
    return 0, 0


def _resize_attributes_(module: nn.Module, sizes: tuple[int, int], width: int | None) -> None:
    """Brings torch's own size attributes in line with the tensors."""
    if isinstance(module, nn.modules.conv._ConvNd):
        _resize_convolution_(module, sizes)
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        vector = next((t for t in (module.weight, module.running_mean) if t is not None), None)
        module.num_features = module.num_features if vector is None else len(vector)
    elif isinstance(module, nn.GroupNorm):
        channels = len(module.weight) if module.affine else width if width is not None else module.num_channels
        module.num_channels, module.num_groups = channels, channels // sizes[0]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]


def _resize_convolution_(module: nn.modules.conv._ConvNd, sizes: tuple[int, int]) -> None:
    first, second = module.weight.shape[:2]
    if module.groups > 1:
        module.groups = first // (sizes[1] if module.transposed else sizes[0])
    second *= module.groups
    module.out_channels, module.in_channels = (second, first) if module.transposed else (first, second)
