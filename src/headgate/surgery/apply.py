"""Carrying a recipe out: the one place where a model is cut. A recipe is checked in full before a tensor is touched."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headgate.channels.attributes import may_be_size
from headgate.errors import RecipeError
from headgate.gate import Gate
from headgate.layers import (
    Scale,
    can_be_empty,
    can_gather,
    can_lose_heads,
    can_write_back,
    empty_,
    fit_recurrent_,
    gather_,
    lose_heads_,
    outputs_of,
    write_back_,
)
from headgate.surgery.recipe import (
    RECIPE,
    SIZES,
    Cut,
    Empty,
    Ranges,
    Read,
    Recipe,
    Resize,
    Shape,
    Write,
    count,
    indices_of,
    named_tensors,
    recipe_on,
    unlike,
)

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@torch.no_grad()
def apply_recipe_(model: nn.Module, recipe: Recipe) -> None:
    """Cuts the model as the recipe says; it then carries the recipe, joined to the one it carried before.

    Raises:
        RecipeError: the recipe is not for this model or makes no sense; the model is as it was.
    """
    check_recipe(model, recipe)
    earlier = recipe_on(model)
    whole = recipe if earlier is None else earlier.then(recipe)
    _fix_gates_(model, recipe.scales)
    _cut_(model, recipe.cuts)
    modules = _modules(model)
    for size in recipe.sizes:
        setattr(modules[size.path], size.attribute, size.value)
    for path in dict.fromkeys(cut.name.rpartition(".")[0] for cut in recipe.cuts):
        if can_lose_heads(modules[path]):
            lose_heads_(model, modules[path])
    for read in recipe.reads:
        module = modules[read.path]
        gather_(module, indices_of(read.places).to(_first_tensor(module).device), read.width)
    for write in recipe.writes:
        module = modules[write.path]
        places = indices_of(write.places).to(next(module.parameters()).device)
        write_back_(module, places, write.width)
    for empty in recipe.emptied:
        empty_(model, empty.path, empty.width)
    for path in recipe.gone:
        model.set_submodule(path, nn.Identity())
    setattr(model, RECIPE, whole)


def _first_tensor(module: nn.Module) -> Tensor:
    return next(iter((*module.parameters(), *module.buffers())))


def _fix_gates_(model: nn.Module, paths: tuple[str, ...]) -> None:
    """Each gate becomes a scale by its mask as it is now; a gate with several paths becomes one scale."""
    modules, scales = _modules(model), dict[int, Scale]()
    for path in paths:
        gate = modules[path]
        assert isinstance(gate, Gate)
        if id(gate) not in scales:
            scales[id(gate)] = Scale(gate.mask().detach(), gate.dim).train(gate.training)
        model.set_submodule(path, scales[id(gate)])


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(model.named_modules(remove_duplicate=False))


def _cut_(model: nn.Module, cuts: tuple[Cut, ...]) -> None:
    """Slices tensors under every name they have; what was one tensor stays one tensor."""
    tensors, modules = named_tensors(model), _modules(model)
    axes: dict[str, dict[int, Ranges]] = {}
    for cut in cuts:
        axes.setdefault(cut.name, {})[cut.axis] = cut.kept
    done: dict[int, Tensor] = {}
    for name, kept in axes.items():
        old = tensors[name]
        if id(old) not in done:
            new = sliced(old.detach(), {axis: indices_of(ranges) for axis, ranges in kept.items()})
            done[id(old)] = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
        path, _, leaf = name.rpartition(".")
        _set_(modules[path], leaf, done[id(old)])
    for path, module in modules.items():
        if isinstance(module, nn.RNNBase) and any(name.startswith(f"{path}." if path else "") for name in axes):
            fit_recurrent_(module)


def sliced(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """Only some indices of some axes, in the tensor's memory format."""
    new = tensor
    for axis, indices in kept.items():
        new = new.index_select(axis, indices.to(tensor.device))
    last = _CHANNELS_LAST.get(tensor.dim())
    if last is not None and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous():
        new = new.contiguous(memory_format=last)
    return new


def _set_(module: nn.Module, leaf: str, tensor: Tensor) -> None:
    if leaf in module._parameters:
        assert isinstance(tensor, nn.Parameter)
        module._parameters[leaf] = tensor
    elif leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        vars(module)[leaf] = tensor


def check_recipe(model: nn.Module, recipe: Recipe) -> None:
    """Raises a `RecipeError` unless the recipe can be applied to this model in full."""
    difference = unlike(model, dict(recipe.dense))
    if difference is not None:
        raise RecipeError(f"the recipe is for another network than this {type(model).__name__}: {difference}")
    tensors, modules, named = named_tensors(model), _modules(model), dict(recipe.dense)
    for cut in recipe.cuts:
        if cut.name not in named or not 0 <= cut.axis < tensors[cut.name].dim():
            raise RecipeError(f"the recipe cuts axis {cut.axis} of {cut.name!r}, which the model does not have")
        _check_ranges(cut.kept, tensors[cut.name].shape[cut.axis], f"the recipe's cut of {cut.name}")
    _check_ties(recipe, tensors)
    for path in recipe.scales:
        if not path or not isinstance(modules.get(path), Gate):
            raise RecipeError(f"the recipe fixes the gate {path!r}, which the model does not have")
    for size in recipe.sizes:
        _check_size(size, modules)
    left = recipe.cut_shapes()
    for write in recipe.writes:
        _check_write(write, modules, left, tensors)
    for read in recipe.reads:
        _check_read(read, modules, left, tensors)
    for empty in recipe.emptied:
        _check_empty(empty, modules)
    for path in recipe.gone:
        if not path or path not in modules:
            raise RecipeError(f"the recipe removes the block {path!r}, which the model does not have")


def _check_empty(empty: Empty, modules: dict[str, nn.Module]) -> None:
    """A layer that `Zeros` can stand in for, and no more channels than it had."""
    module = modules.get(empty.path)
    if not empty.path or module is None or not can_be_empty(module):
        raise RecipeError(f"the recipe empties {empty.path!r}, which is no layer that it could empty")
    channels = outputs_of(module)
    if not min(channels, 1) <= empty.width <= channels:
        raise RecipeError(f"the recipe lets {empty.path} return {empty.width} channels of zeros; it had {channels}")


def _check_ranges(ranges: Ranges, size: int, what: str) -> None:
    end = 0
    for start, stop in ranges:
        if not end <= start < stop <= size:
            raise RecipeError(f"{what} keeps [{start}, {stop}) of 0 … {size}: not ascending, or outside")
        end = stop
    if not ranges:
        raise RecipeError(f"{what} keeps nothing")


def _check_ties(recipe: Recipe, tensors: dict[str, Tensor]) -> None:
    """Every name of one tensor must be cut alike."""
    cuts: dict[str, dict[int, Ranges]] = {name: {} for name in tensors}
    for cut in recipe.cuts:
        cuts[cut.name][cut.axis] = cut.kept
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        other = first.setdefault(id(tensor), name)
        if cuts[name] != cuts[other]:
            raise RecipeError(f"{other} and {name} are one tensor, but the recipe cuts them differently")


def _check_size(size: Resize, modules: dict[str, nn.Module]) -> None:
    module = modules.get(size.path)
    theirs = module is not None and not type(module).__module__.startswith("torch.nn.")
    allowed = size.attribute in SIZES or may_be_size(size.attribute) or theirs
    if not allowed or hasattr(nn.Module, size.attribute):
        raise RecipeError(f"the recipe sets the attribute {size.attribute!r}, which no recipe may set")
    # Looked up in the instance itself, so that nothing of the model's code runs.
    value = None if module is None else vars(module).get(size.attribute)
    if type(value) is not int:
        raise RecipeError(f"the recipe sets {size.attribute} of {size.path!r}, which the model does not have")
    if not 1 <= size.value <= value:
        raise RecipeError(f"the recipe sets {size.attribute} of {size.path} to {size.value}; it may be 1 … {value}")


def _check_write(
    write: Write, modules: dict[str, nn.Module], left: Mapping[str, Shape], tensors: dict[str, Tensor]
) -> None:
    """The layer's outputs are as many as their places, and a stream is never wider than it was."""
    weight = f"{write.path}.weight" if write.path else "weight"
    if write.path not in modules or not can_write_back(modules[write.path]) or weight not in tensors:
        raise RecipeError(f"the recipe lets {write.path!r} write back, which is no layer that can")
    rows = tensors[weight].shape[0]
    _check_ranges(write.places, write.width, f"the recipe's places of {write.path}")
    if write.width > rows:
        raise RecipeError(f"the recipe lets {write.path} write into {write.width} channels; it had {rows} outputs")
    outputs = left[weight][0]
    if count(write.places) != outputs:
        raise RecipeError(f"the recipe writes {outputs} outputs of {write.path} into {count(write.places)} places")


def _check_read(
    read: Read, modules: dict[str, nn.Module], shapes: Mapping[str, Shape], tensors: dict[str, Tensor]
) -> None:
    """The layer's inputs are as many as it picks, and a stream is never wider than it was."""
    stem = f"{read.path}." if read.path else ""
    carrier = next((name for leaf in ("weight", "running_mean") if (name := f"{stem}{leaf}") in shapes), None)
    if read.path not in modules or not can_gather(modules[read.path]) or carrier is None:
        raise RecipeError(f"the recipe lets {read.path!r} pick its inputs, which is no layer that can")
    axis = min(1, tensors[carrier].dim() - 1)
    inputs, left = tensors[carrier].shape[axis], shapes[carrier][axis]
    _check_ranges(read.places, read.width, f"the recipe's places of {read.path}")
    if read.width > inputs or count(read.places) != left:
        raise RecipeError(
            f"the recipe lets {read.path} pick {count(read.places)} of {read.width} channels; it had {inputs} inputs, "
            f"of which the cuts leave {left}"
        )
