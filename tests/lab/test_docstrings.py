"""The examples in the lab's docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headgate_lab

# Only a torch for GPUs brings Triton along.
NEED_TRITON = tuple(f"headgate_lab.models.{name}_kernels" for name in ("bottleneck", "convolution", "norm"))
FOUND = [info.name for info in pkgutil.walk_packages(headgate_lab.__path__, "headgate_lab.")]
MODULES = [name for name in FOUND if name not in NEED_TRITON]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    assert "headgate_lab.data.factors" in MODULES
    assert doctest.testmod(importlib.import_module("headgate_lab.data.factors")).attempted > 0
