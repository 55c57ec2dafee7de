"""What a file of a small model says besides the weights: a JSON object in the metadata, and a checksum of everything.

Its entries are the format's `version`, the `recipe`, `ties` (other names of saved tensors), the `training` flag of the
model with the modules that are `unlike` it, and the dtypes of floating `buffers` that are no part of a state dict.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from headgate.errors import RecipeError
from headgate.surgery.recipe import Recipe
from headgate.surgery.recipe_json import fields, integer, mapping, recipe_from_json, recipe_to_json, strings

VERSION = 1
# The entries of the file's metadata.
NOTE, CHECKSUM = "headgate", "headgate_sha256"

_FLOATS = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


@dataclass(frozen=True)
class Note:
    """What is needed to build the model again, besides its weights and its class."""

    recipe: Recipe
    ties: dict[str, str]
    training: bool
    unlike: tuple[str, ...]
    buffers: dict[str, torch.dtype]


def note_to_text(note: Note) -> str:
    """The note as JSON."""
    data = {
        "version": VERSION,
        "recipe": recipe_to_json(note.recipe),
        "ties": note.ties,
        "training": note.training,
        "unlike": list(note.unlike),
        "buffers": {name: str(dtype) for name, dtype in note.buffers.items()},
    }
    return json.dumps(data, separators=(",", ":"))


def parsed(text: str) -> dict[str, Any]:
    """The note's JSON, not looked at any further than its version."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"its recipe is no JSON: {error}") from None
    version = integer(mapping(data, "note").get("version"), "version")
    if version > VERSION:
        raise RecipeError(f"it has format {version}, and this Headgate reads up to {VERSION}; a newer one wrote it")
    if version < 1:
        raise RecipeError(f"there is no format {version}")
    return mapping(data, "note")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def note_from_json(data: dict[str, Any]) -> Note:
    """The note again.

    Raises:
        RecipeError: the data is no note; the message names the place.
    """
    given = fields(data, ("version", "recipe", "ties", "training", "unlike", "buffers"), "note")
    ties, buffers = mapping(given["ties"], "ties"), mapping(given["buffers"], "buffers")
    strings(list(ties.values()), "ties")
    if type(given["training"]) is not bool:
        raise RecipeError("training should be true or false")
    for name in strings(list(buffers.values()), "buffers"):
        if name not in _FLOATS:
            raise RecipeError(f"buffers: {name[:80]} is no dtype a buffer may have")
    return Note(
        recipe_from_json(given["recipe"]),
        ties,
        given["training"],
        strings(given["unlike"], "unlike"),
        {name: _FLOATS[dtype] for name, dtype in buffers.items()},
    )


def checksum(text: str, weights: dict[str, Tensor]) -> str:
    """SHA-256 over the note's text and every tensor's name, dtype, shape and bytes (on the CPU, contiguous)."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name, tensor in sorted(weights.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.nbytes:
            digest.update((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
    return digest.hexdigest()
