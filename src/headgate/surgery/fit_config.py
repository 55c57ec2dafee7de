"""A smaller model's configuration: the numbers with which its class builds this very model, where there are such."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any

import torch
from torch import nn

from headgate.channels.example import Example
from headgate.errors import ConfigError
from headgate.gated import gates, unwrap
from headgate.surgery.configuration import Configuration, configuration_of, set_numbers_
from headgate.surgery.evaluation import TOLERANCES
from headgate.surgery.recipe import Shape, fingerprint
from headgate.surgery.repairs import Choice, Repair, Shapes, differing, repairs
from headgate.surgery.trial import TOLERANCE, difference, in_double, randomised, run_in_double

# Repairs that are put together, and sets of them that are tried; beyond that a configuration is taken as it is.
_MOST_REPAIRS, _MOST_TRIED = 5, 200


def fit_config_(small: nn.Module, example: Any) -> None:
    """Sets the sizes in a smaller model's configuration, so that its class builds a model of this size from it.

    `compact` does so by itself where it can. For a model of Hugging Face's transformers, `save_pretrained` and
    `from_pretrained` then bring it back. The numbers are found by trying: with them the model's class, called with the
    configuration alone, must build the same tensors and, filled with random values, compute the same on the example.
    The model gets a configuration of its own; the one it was built with is left as it is.

    Args:
        small: a model that became smaller, without gates, with an attribute such as `config` that it was built from.
        example: what to call it with: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Raises:
        ConfigError: the model still has gates or has no such configuration, or no numbers in it express this model,
            with the reason: layers that differ, say, where one number stands for all. It is as it was.
    """
    root = unwrap(small, "fit_config_")
    if gates(root):
        raise ConfigError(f"fit_config_: {type(root).__name__} still has gates; give it what compact(model) returns")
    configuration = configuration_of(root)
    if configuration is None:
        raise ConfigError(
            f"fit_config_: {type(root).__name__} has no attribute, such as `config`, from which alone its class builds "
            "such a network"
        )
    follow_(root, configuration, Example.of(example))


def follow_(model: nn.Module, configuration: Configuration, example: Example) -> None:
    """Sets the numbers, or raises a `ConfigError` that says what the configuration cannot express."""
    base, target = configuration.shapes({}), dict(fingerprint(model))
    assert base is not None
    if base == target:
        return
    if (why := _other_tensors(model, base, target) or _uneven(base, target)) is not None:
        raise _inexpressible(model, why)
    found = _fitting(model, configuration, base, target, example)
    if found is None:
        raise _inexpressible(model, _stuck(configuration, base, target))
    set_numbers_(model, configuration, found)


def _inexpressible(model: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        f"the configuration of {type(model).__name__} cannot express this network: {why}; headgate.save writes it to a "
        "file from which headgate.load brings it back"
    )


def _other_tensors(model: nn.Module, base: Shapes, target: Shapes) -> str | None:
    """In words, which layer is another than the class would build."""
    for path, module in model.named_modules():
        if type(module).__module__.startswith("headgate.layers"):
            return f"{path} is a {type(module).__name__}"
    name = min({*base} ^ {*target}, default=None)
    return None if name is None else f"{name} is {'gone' if name in base else 'new'}"


def _stuck(configuration: Configuration, base: Shapes, target: Shapes) -> str:
    """In words, an axis that no number gives the right size; where there is none, what is built computes otherwise."""
    wrong, already = differing(base, target), _explicit(configuration, base)
    mended = frozenset().union(*(one.mended for one in repairs(configuration, already, base, target)))
    name = min(wrong - mended or wrong)[0]
    why = f"no numbers in it give {name} the shape {list(target[name])} instead of {list(base[name])}"
    return why if wrong - mended else f"{why} and a network that computes the same"


def _uneven(base: Shapes, target: Shapes) -> str | None:
    """In words, which layers of a kind were equal and now differ, where one number stands for all of them."""
    first: dict[tuple[str, Shape], str] = {}
    for name, shape in base.items():
        # Within a module of a numbered one; modules of one nn.Sequential may play different parts.
        kind = re.sub(r"\.\d+(?=\.[^.]+\.)", ".*", name)
        like = first.setdefault((kind, shape), name)
        if target[like] != target[name]:
            return f"layers of one kind differ, {like} {list(target[like])} and {name} {list(target[name])}"
    return None


def _fitting(
    model: nn.Module, configuration: Configuration, base: Shapes, target: Shapes, example: Example
) -> Choice | None:
    """Numbers that work; where those that are set will not do, also those that so far followed from others."""
    for explicit in (False, True):
        already = _explicit(configuration, base) if explicit else {}
        for choice in _choices(configuration, already, base, target):
            if configuration.survives(choice) and _computes_the_same(model, configuration, choice, example):
                return choice
    return None


def _choices(configuration: Configuration, already: Choice, base: Shapes, target: Shapes) -> Iterator[Choice]:
    """Sets of numbers, few first, with which the class builds the right shapes."""
    wrong, known = differing(base, target), repairs(configuration, already, base, target)
    sets = (some for count in range(1, _MOST_REPAIRS + 1) for some in combinations(known, count))
    covering = (some for some in sets if frozenset().union(*(one.mended for one in some)) == wrong)
    for some in islice((some for some in covering if _apart(some)), _MOST_TRIED):
        choice = {**already, **{number: new for one in some for number, new in one.choice.items()}}
        if configuration.shapes(choice) == target:
            yield _needed(configuration, already, choice, target)


def _apart(some: Sequence[Repair]) -> bool:
    """Whether each number is in one of them only."""
    return len({number for one in some for number in one.choice}) == sum(len(one.choice) for one in some)


def _needed(configuration: Configuration, already: Choice, choice: Choice, target: Shapes) -> Choice:
    """Without numbers that may as well follow from the others."""
    for number in already:
        fewer = {one: value for one, value in choice.items() if one != number}
        if configuration.shapes(fewer) == target:
            choice = fewer
    return choice


def _explicit(configuration: Configuration, base: Shapes) -> Choice:
    """Numbers that have no value, as `head_dim` has none where it is the width over the heads, with what they mean."""
    sizes = set(configuration.sizes().values())
    likely = {size for shape in base.values() for size in shape} | {a // b for a in sizes for b in sizes if a % b == 0}
    found: Choice = {}
    for number in configuration.unset():
        # One that does not matter has any value.
        if configuration.shapes({**found, number: 3}) == configuration.shapes({**found, number: 5}) == base:
            continue
        means = (value for value in sorted(likely) if configuration.shapes({**found, number: value}) == base)
        if (value := next(means, None)) is not None:
            found[number] = value
    return found


@torch.no_grad()
def _computes_the_same(model: nn.Module, configuration: Configuration, choice: Choice, example: Example) -> bool:
    """Whether the class builds what computes the same, filled with random values: fresh ones hide differences."""
    try:
        device = next(model.parameters()).device
        drawn, fresh = randomised(model, seed=0), configuration.built(choice).double().to(device).eval()
        lasting = drawn.state_dict(keep_vars=True)
        for name, buffer in model.named_buffers():
            if name not in lasting:
                made = fresh.get_buffer(name)
                if not torch.allclose(buffer.double(), made.double(), rtol=TOLERANCES.get(buffer.dtype, 0.0)):
                    return False
                drawn.get_buffer(name).copy_(made)
        fresh.load_state_dict(lasting, assign=True)
        given = in_double(example)
        return difference(run_in_double(drawn, given), run_in_double(fresh, given), TOLERANCE) is None
    except Exception:
        return False
