"""The outline of a compacted network as plain data: channels that every layer has left, and blocks that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """A layer by its path, and the channels that it wrote before and writes now: none if it is gone.

    `stream` names the residual stream that it writes into.
    """

    path: str
    before: int
    after: int
    stream: str | None = None


@dataclass(frozen=True)
class Outline:
    """Layers in the order of the model, and residual streams: their name, and channels before and now."""

    layers: tuple[Layer, ...]
    streams: tuple[tuple[str, int, int], ...] = ()

    @property
    def gone(self) -> tuple[str, ...]:
        """The largest modules of which no layer is left, and single layers beside others that are left."""
        paths = {part for layer in self.layers for part in _above(layer.path)}
        empty = {path for path in paths if not any(layer.after for layer in self.layers if _within(layer.path, path))}
        return tuple(path for path in _in_order(self.layers, empty) if not empty & {*_above(path)[:-1]})

    def as_json(self) -> dict[str, Any]:
        """As lists, for a record."""
        layers = [[layer.path, layer.before, layer.after, layer.stream] for layer in self.layers]
        return {"layers": layers, "streams": [list(stream) for stream in self.streams]}

    @classmethod
    def from_json(cls, layers: Sequence[Sequence[Any]], streams: Sequence[Sequence[Any]]) -> Outline:
        """Back from lists."""
        return cls(tuple(Layer(*layer) for layer in layers), tuple((name, a, b) for name, a, b in streams))

    def __str__(self) -> str:
        """Every layer in a line, under what is gone."""
        wide = max((len(layer.path) for layer in self.layers), default=0)
        lines = [f"{layer.path:<{wide}}  {layer.after:>6} of {layer.before}" for layer in self.layers]
        told = [f"stream of {name}: {after} of {before}" for name, before, after in self.streams]
        return "\n".join([*lines, *told, f"gone: {', '.join(self.gone) or 'nothing'}"])


def _above(path: str) -> list[str]:
    """The path and all that it lies in, the outermost first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _in_order(layers: Sequence[Layer], paths: set[str]) -> list[str]:
    """The paths in the order of the first layer in each, outer ones first."""
    found = (path for layer in layers for path in _above(layer.path) if path in paths)
    return list(dict.fromkeys(found))
