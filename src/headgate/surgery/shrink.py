"""Cutting units out of a model: every parameter, buffer and size attribute that carries them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headgate.channels.plan import Branch, Plan
from headgate.channels.readers import Reader
from headgate.errors import ArgumentError
from headgate.layers import can_lose_heads, heads_left, outputs_of
from headgate.surgery.apply import apply_recipe_
from headgate.surgery.keep import (
    Keep,
    channels_read,
    chosen,
    emptied_modules,
    gathering,
    kept_masks,
    rows_left,
    silent_blocks,
    writing,
)
from headgate.surgery.recipe import Cut, Empty, Read, Recipe, Resize, Write, fingerprint, named_tensors, ranges_of


def shrink(model: nn.Module, plan: Plan, keep: Mapping[str, Tensor]) -> nn.Module:
    """A smaller copy of `model`, of the same class: units whose entry in `keep` is False are gone.

    `keep` maps the name of a group, branch or reader to a bool vector over its units; what is missing is kept whole.
    What the removed units contributed is lost: mask them first (or let `compact` do both).

    Raises:
        ArgumentError: an unknown name, a vector of the wrong length, one that leaves nothing, or another model's plan.
    """
    _check_plan(model, plan)
    if not isinstance(keep, Mapping):
        raise ArgumentError(f"shrink: keep must map names of sites to bool vectors, and is {type(keep).__name__}")
    decision = chosen(plan, keep)
    small = copy.deepcopy(model)
    shrink_(small, plan, decision)
    return small


def _check_plan(model: nn.Module, plan: Plan) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"shrink: a model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(plan, Plan):
        raise ArgumentError(
            f"shrink: plan must be what find_groups(model, example) returned, and is {type(plan).__name__}"
        )
    tensors = named_tensors(model)
    for (name, axis), units in plan.axes.items():
        if name not in tensors or tensors[name].shape[axis : axis + 1] != (len(units),):
            raise ArgumentError(
                f"shrink: the plan was made for another model: it has {len(units)} channels along axis {axis} of "
                f"{name}, and {type(model).__name__} has not; find_groups(model, example) makes a plan for this one"
            )


def shrink_(model: nn.Module, plan: Plan, keep: Keep) -> None:
    """Cuts in place; the model then carries the recipe. The caller owns it and throws it away if this raises."""
    before = {path: _channel_sizes(module) for path, module in model.named_modules()}
    cuts = _cuts(model, plan, keep)
    writes = tuple(write for branch in writing(plan, keep) if (write := _write(plan, branch, keep)) is not None)
    reads = tuple(read for reader in gathering(plan, keep) if (read := _read(plan, reader, keep)) is not None)
    apply_recipe_(model, Recipe(fingerprint(model, (cut.name for cut in cuts)), cuts, writes=writes, reads=reads))
    sizes = []
    for path, module in model.named_modules():
        units = plan.widths.get(path)
        width = None if units is None else int(plan.left(units, keep.units).sum())
        new = _new_sizes(module, before[path], width)
        sizes += [Resize(path, name, value) for name, value in new.items() if value < getattr(module, name)]
    for attribute, units in plan.counts.items():
        if not bool((left := plan.left(units, keep.units)).all()):
            sizes.append(Resize(attribute.path, attribute.name, int(left.sum())))
    blocks = tuple(silent_blocks(plan, keep))
    apply_recipe_(model, Recipe(fingerprint(model), sizes=tuple(sizes)))
    emptied = sorted(emptied_modules(plan, keep))
    empties = tuple(Empty(path, outputs_of(model.get_submodule(path))) for path in emptied)
    apply_recipe_(model, Recipe(fingerprint(model), gone=blocks, emptied=empties))


def _cuts(model: nn.Module, plan: Plan, keep: Keep) -> tuple[Cut, ...]:
    """What is kept of every axis that loses something, under every name of its tensor."""
    tensors = named_tensors(model)
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return tuple(
        Cut(alias, axis, ranges_of(mask.nonzero().squeeze(1)))
        for (name, axis), mask in kept_masks(plan, keep).items()
        if not bool(mask.all())
        for alias in names[id(tensors[name])]
    )


def _write(plan: Plan, branch: Branch, keep: Keep) -> Write | None:
    """How the last layer of a branch writes its outputs into their places in the stream, if it was narrowed."""
    if branch.name not in keep.branches:
        return None
    stream, written = rows_left(plan, branch, keep)
    if torch.equal(stream, written):
        return None
    return Write(branch.path, ranges_of(written[stream].nonzero().squeeze(1)), int(stream.sum()))


def _read(plan: Plan, reader: Reader, keep: Keep) -> Read | None:
    """Which channels of what is left of its stream the entry of a branch picks, if not all."""
    stream, read = channels_read(plan, reader, keep)
    if torch.equal(stream, read):
        return None
    return Read(reader.path, ranges_of(read[stream].nonzero().squeeze(1)), int(stream.sum()))


def _channel_sizes(module: nn.Module) -> tuple[int, int]:
    """Outputs and inputs per convolution group, or channels per norm group: what stays when whole groups go."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.out_channels // module.groups, module.in_channels // module.groups
    if isinstance(module, nn.GroupNorm):
        return module.num_channels // module.num_groups, 0
    return 0, 0


def _new_sizes(module: nn.Module, before: tuple[int, int], width: int | None) -> dict[str, int]:
    """What torch's own size attributes must be for the tensors as they are now."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return _convolution_sizes(module, before)
    if isinstance(module, nn.Linear):
        return {"out_features": module.weight.shape[0], "in_features": module.weight.shape[1]}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        vector = next((t for t in (module.weight, module.running_mean) if t is not None), None)
        features = width if vector is None else len(vector)
        return {} if features is None else {"num_features": features}
    if isinstance(module, nn.GroupNorm):
        channels = len(module.weight) if module.affine else width if width is not None else module.num_channels
        return {"num_channels": channels, "num_groups": channels // before[0]}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": len(module.weight)}
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return {"embedding_dim": module.weight.shape[1]}
    if can_lose_heads(module):
        assert isinstance(module, nn.MultiheadAttention)
        return {"num_heads": heads_left(module)}
    if isinstance(module, nn.RNNCellBase):
        return {"input_size": module.weight_ih.shape[1], "hidden_size": module.weight_hh.shape[1]}
    if isinstance(module, nn.Bilinear):
        return dict(zip(("out_features", "in1_features", "in2_features"), module.weight.shape, strict=True))
    return {}


def _convolution_sizes(module: nn.modules.conv._ConvNd, before: tuple[int, int]) -> dict[str, int]:
    first, second = module.weight.shape[:2]
    groups = first // (before[1] if module.transposed else before[0]) if module.groups > 1 else 1
    second *= groups
    outputs, inputs = (second, first) if module.transposed else (first, second)
    return {"groups": groups, "out_channels": outputs, "in_channels": inputs}
