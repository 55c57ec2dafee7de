"""Small models on disk: one safetensors file with the weights and, in its metadata, the recipe as JSON. No pickle."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headgate.errors import ArgumentError, FileError, GateError, RecipeError
from headgate.gated import gates, unwrap
from headgate.note import CHECKSUM, NOTE, Note, checksum, note_from_json, note_to_text, parsed
from headgate.surgery.apply import apply_recipe_, check_recipe
from headgate.surgery.recipe import RECIPE, Recipe, named_tensors, recipe_on, unlike


def save(small: nn.Module, path: str | os.PathLike[str]) -> None:
    """Writes a model that `compact` or `shrink` made to one safetensors file, whole or not at all.

    The file holds the weights and what was removed, not code: `load` builds the network with the user's own class.

    Args:
        small: the smaller model; wrapped in DDP or torch.compile is fine.
        path: where to write; a file that is there is replaced in one step.

    Raises:
        ArgumentError: `small` is no module, or `path` no path.
        GateError: the model still has gates.
        RecipeError: it carries no recipe, or has been changed since, so that no recipe describes it.
        FileError: the file cannot be written.
    """
    root = unwrap(small, "save")
    if gates(root):
        raise GateError(f"save: {type(root).__name__} still has gates; save what compact(model) returns")
    recipe = _recipe_of(root)
    weights, ties = _weights(root)
    others = tuple(name for name, module in root.named_modules() if module.training != root.training)
    buffers = {name: buffer.dtype for name, buffer in _passing_buffers(root).items()}
    text = note_to_text(Note(recipe, ties, root.training, others, buffers))
    with whole_file(a_path("save", path)) as part:
        save_file(weights, part, {"format": "pt", NOTE: text, CHECKSUM: checksum(text, weights)})


def load(path: str | os.PathLike[str], factory: Callable[[], nn.Module]) -> nn.Module:
    """The small model from a file that `save` wrote: calls `factory` for the full-size network and cuts it to size.

    Values, dtypes and train flags are the saved ones; device, memory format and requires_grad are the factory's.
    Buffers that are not part of a state dict are the factory's too, cut alike.

    Args:
        path: a file that `save` wrote. Nothing in it is executed, whatever it holds.
        factory: builds the network as it was before gates were inserted; its weights do not matter. Gates that the
            network itself places by hand stay in it: they become what they became in the small model.

    Raises:
        ArgumentError: `path` is no path, or `factory` does not build a module.
        FileError: the file is not there or cannot be read.
        RecipeError: it is damaged, not from `save`, from a newer Headgate, or for another network than the factory's.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ArgumentError(
            f"load: factory={type(factory).__name__} must be a class or function without arguments that builds the "
            "full network, such as Net or lambda: Net(width=64)"
        )
    note, weights = _read(a_path("load", path))
    model = factory()
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"load: the factory must return a module, got {type(model).__name__}")
    if any(not note.recipe.fixes(name) for name in gates(model)):
        raise GateError(f"load: the factory's {type(model).__name__} has gates; it must build the plain network")
    try:
        _check_saved_for(model, note, weights)
    except RecipeError as error:
        raise RecipeError(f"load: {path} does not fit what the factory builds: {error}") from None
    apply_recipe_(model, note.recipe)
    _fill_(model, note, weights)
    return model


def a_path(operation: str, path: Any) -> Path:
    """The path of a file, from all that Python takes as one.

    Raises:
        ArgumentError: it is none.
    """
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise ArgumentError(f"{operation}: path={path!r} is no path of a file") from None


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to; at the end it takes its place in one step, or vanishes if something raised."""
    target = Path(path)
    part = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(target)
    except (OSError, SafetensorError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot write {target}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _recipe_of(root: nn.Module) -> Recipe:
    recipe, name = recipe_on(root), type(root).__name__
    if recipe is not None:
        return recipe
    stale = getattr(root, RECIPE, None)
    if isinstance(stale, Recipe):
        raise RecipeError(f"save: {name} was changed after it was made smaller: {unlike(root, stale.outcome())}")
    raise RecipeError(
        f"save: {name} carries no recipe, since neither compact nor shrink made it; a full-size network is saved with "
        f"safetensors.torch.save_model"
    )


def _weights(root: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of the state dict once, in memory of its own, and the other names of tied ones."""
    weights: dict[str, Tensor] = {}
    first, ties = _tied(root)
    for name, tensor in first.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise RecipeError(f"save: {name} is {tensor.layout} on {tensor.device}; only plain tensors can be saved")
        plain = tensor.detach().to("cpu", copy=False).contiguous()
        alone = plain.untyped_storage().nbytes() == plain.nbytes
        weights[name] = plain if alone else plain.clone()
    return weights, ties


def _tied(root: nn.Module, recipe: Recipe | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict's tensors under the alphabetically first of their names, and which one each other name means."""
    state, known = root.state_dict(keep_vars=True), named_tensors(root)
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name in sorted(name for name in state if recipe is None or recipe.leaves(name)):
        if name not in known or state[name] is not known[name]:
            raise RecipeError(f"{name} in the state dict is no parameter or buffer of that name; it cannot be saved")
        same = first.setdefault(id(state[name]), name)
        if same != name:
            ties[name] = same
    return {name: state[name] for name in first.values()}, ties


def _passing_buffers(root: nn.Module) -> dict[str, Tensor]:
    """Floating buffers that are not part of the state dict."""
    lasting = root.state_dict(keep_vars=True)
    return {name: b for name, b in root.named_buffers() if b.is_floating_point() and name not in lasting}


def _read(path: Path) -> tuple[Note, dict[str, Tensor]]:
    """Everything in a file, checked for damage; nothing of it is used yet."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if NOTE not in metadata:
                raise RecipeError("it holds no recipe, so headgate.save did not write it")
            data = parsed(metadata[NOTE])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if metadata.get(CHECKSUM) != checksum(metadata[NOTE], weights):
            raise RecipeError("its checksum is wrong: the file is damaged")
        return note_from_json(data), weights
    except RecipeError as error:
        raise RecipeError(f"load: cannot use {path}: {error}") from None
    except OSError as error:
        raise FileError(f"load: cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        # Whatever the reader makes of a damaged or hostile file.
        raise RecipeError(f"load: {path} is damaged or no safetensors file: {error}") from error


def _check_saved_for(model: nn.Module, note: Note, weights: dict[str, Tensor]) -> None:
    """Raises unless the recipe fits the model, and the weights fit what it will be then."""
    check_recipe(model, note.recipe)
    present, ties = _tied(model, note.recipe)
    for name in sorted({*ties, *note.ties}):
        if ties.get(name) != note.ties.get(name):
            raise RecipeError(f"{name} is tied to {note.ties.get(name)} in the file, to {ties.get(name)} in the model")
    for name in sorted({*present, *weights}):
        if name not in present or name not in weights:
            raise RecipeError(f"{name} is only in the {'model' if name in present else 'file'}")
    shapes = note.recipe.outcome()
    for name, tensor in present.items():
        _check_tensor(name, tensor, weights[name], shapes[name])
    unknown = set(note.unlike) - {name for name, _ in model.named_modules()}
    if unknown:
        raise RecipeError(f"the file has a train flag for {min(unknown)!r}, which the model does not have")


def _check_tensor(name: str, present: Tensor, saved: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(saved.shape) != shape:
        raise RecipeError(f"{name} has shape {list(saved.shape)} in the file, but {list(shape)} by its recipe")
    if saved.dtype != present.dtype and not (saved.is_floating_point() and present.is_floating_point()):
        raise RecipeError(f"{name} is {saved.dtype} in the file, {present.dtype} in the model")
    if present.is_meta:
        raise RecipeError(f"{name} is on the meta device; build the model on a real one")


def _fill_(model: nn.Module, note: Note, weights: dict[str, Tensor]) -> None:
    """Saved dtypes, values and train flags."""
    state = model.state_dict(keep_vars=True)
    dtypes = {name: tensor.dtype for name, tensor in weights.items()} | note.buffers
    for name, tensor in (state | _passing_buffers(model)).items():
        tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype))
    model.load_state_dict(weights | {alias: weights[name] for alias, name in note.ties.items()})
    for path, module in model.named_modules():
        module.training = note.training != (path in note.unlike)
