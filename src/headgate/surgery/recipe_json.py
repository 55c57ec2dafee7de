"""Recipes as JSON data, and back. What is read may be damaged or hostile, so every piece is checked for its type.

Whether the numbers make sense is for `check_recipe` to say, which knows the model; nothing is sized after them here.
"""

from __future__ import annotations

from typing import Any

from headgate.errors import RecipeError
from headgate.surgery.recipe import Cut, Empty, Ranges, Read, Recipe, Resize, Write

_LARGEST = 2**62


def recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    """The recipe as nested dicts and lists; ranges are flat lists `[start, stop, start, stop, …]`."""
    cuts: dict[str, dict[str, list[int]]] = {}
    for cut in recipe.cuts:
        cuts.setdefault(cut.name, {})[str(cut.axis)] = _flat(cut.kept)
    sizes: dict[str, dict[str, int]] = {}
    for size in recipe.sizes:
        sizes.setdefault(size.path, {})[size.attribute] = size.value
    return {
        "dense": {name: list(shape) for name, shape in recipe.dense},
        "cuts": cuts,
        "sizes": sizes,
        "writes": {write.path: {"places": _flat(write.places), "width": write.width} for write in recipe.writes},
        "gone": list(recipe.gone),
        "reads": {read.path: {"places": _flat(read.places), "width": read.width} for read in recipe.reads},
        "scales": list(recipe.scales),
        "emptied": {empty.path: empty.width for empty in recipe.emptied},
    }


def recipe_from_json(data: Any) -> Recipe:
    """The recipe again.

    Raises:
        RecipeError: the data is not a recipe; the message names the place.
    """
    given = fields(data, ("dense", "cuts", "sizes", "writes", "gone", "reads", "scales", "emptied"), "recipe")
    return Recipe(
        tuple((name, tuple(_integers(shape, name))) for name, shape in mapping(given["dense"], "dense").items()),
        tuple(
            Cut(name, _axis(axis, name), _ranges(kept, name))
            for name, axes in mapping(given["cuts"], "cuts").items()
            for axis, kept in _filled(axes, f"cuts of {name}").items()
        ),
        tuple(
            Resize(path, attribute, integer(value, f"{path}.{attribute}"))
            for path, attributes in mapping(given["sizes"], "sizes").items()
            for attribute, value in _filled(attributes, f"sizes of {path}").items()
        ),
        tuple(_write(path, data) for path, data in mapping(given["writes"], "writes").items()),
        strings(given["gone"], "gone"),
        tuple(_read(path, data) for path, data in mapping(given["reads"], "reads").items()),
        strings(given["scales"], "scales"),
        tuple(Empty(path, integer(width, path)) for path, width in mapping(given["emptied"], "emptied").items()),
    )


def _write(path: str, data: Any) -> Write:
    given = fields(data, ("places", "width"), f"writes of {path}")
    return Write(path, _ranges(given["places"], path), integer(given["width"], path))


def _read(path: str, data: Any) -> Read:
    given = fields(data, ("places", "width"), f"reads of {path}")
    return Read(path, _ranges(given["places"], path), integer(given["width"], path))


def fields(data: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """A mapping with exactly these keys."""
    given = mapping(data, where)
    if set(given) != set(names):
        wrong = sorted(set(given) ^ set(names))[0]
        raise RecipeError(f"{_short(where)} is not what it should be: {_short(wrong)} is missing or unknown")
    return given


def mapping(data: Any, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(data, dict):
        raise RecipeError(f"{_short(where)} should be a mapping, not {_short(data)}")
    return data


def _filled(data: Any, where: str) -> dict[str, Any]:
    """A JSON object that says something: an empty one is not what we write."""
    if not (given := mapping(data, where)):
        raise RecipeError(f"{_short(where)} is empty")
    return given


def integer(data: Any, where: str) -> int:
    """A whole number from 0 up; true and false are none."""
    if type(data) is not int or not 0 <= data <= _LARGEST:
        raise RecipeError(f"{_short(where)} has {_short(data)} where a number from 0 up belongs")
    return data


def strings(data: Any, where: str) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(data, list) or not all(isinstance(item, str) for item in data):
        raise RecipeError(f"{_short(where)} should be a list of names, not {_short(data)}")
    return tuple(data)


def _integers(data: Any, where: str) -> list[int]:
    if not isinstance(data, list):
        raise RecipeError(f"{_short(where)} has {_short(data)} where a list of numbers belongs")
    return [integer(item, where) for item in data]


def _axis(text: str, where: str) -> int:
    if text not in ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"):
        raise RecipeError(f"{_short(where)} is cut along {_short(text)}, which is no axis")
    return int(text)


def _ranges(data: Any, where: str) -> Ranges:
    numbers = _integers(data, where)
    if len(numbers) % 2:
        raise RecipeError(f"{_short(where)} has a range without an end")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _flat(ranges: Ranges) -> list[int]:
    return [number for pair in ranges for number in pair]


def _short(data: Any) -> str:
    """The beginning of what was found: enough to recognise it, however large it is."""
    text = str(data) if isinstance(data, (str, int)) and not _huge(data) else type(data).__name__
    return text if len(text) <= 80 else text[:77] + "…"


def _huge(data: str | int) -> bool:
    return isinstance(data, int) and abs(data) > _LARGEST
