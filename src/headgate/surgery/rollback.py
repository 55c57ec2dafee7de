"""All or nothing: what a function did to the modules of a model is undone when it fails."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def undone_on_failure(model: nn.Module) -> Iterator[None]:
    """Gives every module its class, parameters, buffers, children, hooks and attributes back if the body raises.

    The very same objects in the same order; an interruption from the keyboard counts too. Values of tensors are not
    looked at.
    """
    before = [(module, type(module), _contents(module)) for module in model.modules()]
    try:
        yield
    except BaseException:
        for module, kind, contents in before:
            module.__class__ = kind
            _put_back_(vars(module), contents)
        raise


def _contents(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Every attribute, and what is in it where it is one of torch's own tables (parameters, children, hooks)."""
    return {
        name: (value, copy.copy(value) if name.startswith("_") and isinstance(value, (dict, set)) else None)
        for name, value in vars(module).items()
    }


def _put_back_(attributes: dict[str, Any], contents: dict[str, tuple[Any, Any]]) -> None:
    attributes.clear()
    for name, (value, items) in contents.items():
        if items is not None:
            value.clear()
            value.update(items)
        attributes[name] = value
