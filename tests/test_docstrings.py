"""Every example in the library's docstrings runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import torch
from torch import nn

import headgate

# The kernels are imported on demand, where there is Triton; they have no examples.
MODULES = [
    "headgate",
    *(info.name for info in pkgutil.walk_packages(headgate.__path__, "headgate.") if info.name != "headgate.kernels"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str):
    module = importlib.import_module(name)
    words = {**vars(headgate), **vars(module), "torch": torch, "nn": nn}
    result = doctest.testmod(module, extraglobs=words, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} print something else"


def test_there_are_examples_to_run():
    """An empty search would pass silently."""
    finder = doctest.DocTestFinder()
    found = [test.name for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert "headgate.gate.Gate" in found and "headgate.objective.penalty" in found
