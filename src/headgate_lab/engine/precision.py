"""In which numbers networks compute while they learn. What they are worth is always measured in their own precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

# What is taken on devices where nothing else is asked for; float32 where none is named.
USUAL = {"cuda": torch.bfloat16}
CHOICES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

_chosen: ContextVar[torch.dtype | None] = ContextVar("chosen", default=None)


@contextmanager
def learning_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Networks that learn inside compute in these numbers; None: in those usual on their device."""
    before = _chosen.set(dtype)
    try:
        yield
    finally:
        _chosen.reset(before)


def precision_on(device: torch.device) -> torch.dtype:
    """What forward passes compute in on this device, and what images are kept in for them."""
    return _chosen.get() or USUAL.get(device.type, torch.float32)


def computing_on(device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass. Without autocast's cache: it would outlive a captured step."""
    half = precision_on(device) == torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False)
