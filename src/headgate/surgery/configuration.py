"""The configuration a model was built from: the sizes in it, and what its class builds with other ones.

A configuration is an object on the model, by a name that ends in `config` or `cfg`, that the model's class takes as its
only argument, as `LlamaForCausalLM(config)` does. Others may lie within it. Nothing is known of where it comes from.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgate.channels.attributes import may_be_size
from headgate.surgery.recipe import Shape, fingerprint

_ENDINGS = ("config", "cfg")


@dataclass(frozen=True, order=True)
class Number:
    """The attribute `name` of the configuration, or of the one that lies within it at `path`."""

    path: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join((*self.path, self.name))


@dataclass(frozen=True)
class Configuration:
    """A configuration and the class of models that is built from it."""

    kind: type[nn.Module]
    root: Any

    def sizes(self) -> dict[Number, int]:
        """All whole numbers from 1 up that are named like a size."""
        return {
            Number(path, name): value
            for path, holder in _holders(self.root)
            for name, value in vars(holder).items()
            if type(value) is int and value > 0 and may_be_size(name)
        }

    def unset(self) -> list[Number]:
        """Names like those of a size that have no value: None, or asked for by the class and not there."""
        spied = copy.deepcopy(self.root)
        asked = {path: _spy_on_(holder) for path, holder in _holders(spied)}
        Configuration(self.kind, spied).shapes({})
        found = {Number(path, name) for path, names in asked.items() for name in names}
        for path, holder in _holders(self.root):
            found |= {Number(path, name) for name, value in vars(holder).items() if value is None}
        return sorted(number for number in found if may_be_size(number.name))

    def changed(self, numbers: Mapping[Number, int]) -> Any:
        """A copy with other numbers."""
        new = copy.deepcopy(self.root)
        holders = dict(_holders(new))
        for number, value in numbers.items():
            setattr(holders[number.path], number.name, value)
        return new

    def shapes(self, numbers: Mapping[Number, int]) -> dict[str, Shape] | None:
        """Names and shapes of what the class builds with other numbers, without memory; None if it builds nothing."""
        try:
            with torch.device("meta"):
                return dict(fingerprint(self.built(numbers)))
        except Exception:
            return None

    def built(self, numbers: Mapping[Number, int]) -> nn.Module:
        """What the class builds with other numbers; the global generator is left alone."""
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            return self.kind(self.changed(numbers))

    def survives(self, numbers: Mapping[Number, int]) -> bool:
        """Whether a configuration that can be written as a dict, and read from one, still has them then."""
        new = self.changed(numbers)
        if not (hasattr(new, "to_dict") and hasattr(type(new), "from_dict")):
            return True
        try:
            holders = dict(_holders(type(new).from_dict(new.to_dict())))
            return all(getattr(holders[n.path], n.name) == value for n, value in numbers.items())
        except Exception:
            return False


def configuration_of(model: nn.Module) -> Configuration | None:
    """The configuration that the model's class builds a network with the same tensors from, of whatever sizes."""
    names = set(dict(fingerprint(model)))
    for name, value in vars(model).items():
        if _is_config(name, value):
            found = Configuration(type(model), value)
            shapes = found.shapes({})
            if shapes is not None and names & shapes.keys():
                return found
    return None


def set_numbers_(model: nn.Module, configuration: Configuration, numbers: Mapping[Number, int]) -> None:
    """Gives the model a configuration of its own with these numbers, wherever in it the old one or a part of it is."""
    new = configuration.changed(numbers)
    renewed = dict(_holders(new))
    places = {id(holder): renewed[path] for path, holder in _holders(configuration.root)}
    for module in model.modules():
        for name, value in vars(module).items():
            if id(value) in places:
                vars(module)[name] = places[id(value)]


def _is_config(name: str, value: Any) -> bool:
    plain = not isinstance(value, (nn.Module, Tensor, type)) and not callable(value)
    return plain and name.lower().endswith(_ENDINGS) and hasattr(value, "__dict__")


def _holders(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, config
    for name, value in list(vars(config).items()):
        if len(path) < 3 and _is_config(name, value):
            yield from _holders(value, (*path, name))


def _spy_on_(holder: Any) -> set[str]:
    """From now on the set is told which attributes are asked for that the object does not have."""
    kind, asked = type(holder), set[str]()

    def missing(self: Any, name: str) -> Any:
        asked.add(name)
        if hasattr(kind, "__getattr__"):
            return kind.__getattr__(self, name)
        raise AttributeError(name)

    # Some objects keep their class; what those are asked for is not known then.
    with suppress(TypeError):
        holder.__class__ = type(kind.__name__, (kind,), {"__getattr__": missing})
    return asked
