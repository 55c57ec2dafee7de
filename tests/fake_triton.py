"""As much of Triton as our kernels use, on CPU tensors: they run as plain Python, one tile after another.

What is tested with it is their index arithmetic. That they compute the same when compiled for a GPU is what
`benchmarks/fused_masks.py`, `fused_norms.py`, `few_channels.py` and `fused_bottleneck.py` there record.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headgate_lab.models import bottleneck, convolution, norm
from headgate_lab.models.preresnet import Bottleneck


@dataclass
class Pointer:
    """The memory of a tensor, and places in it."""

    memory: Tensor
    at: Tensor | int = 0

    def __add__(self, more: Tensor | int) -> Pointer:
        return Pointer(self.memory, self.at + more)

    def __sub__(self, less: Tensor | int) -> Pointer:
        return self + -less

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def flat(self) -> Tensor:
        """All numbers as they lie in memory; nothing beyond them can be reached."""
        return self.memory.as_strided((self.memory.numel(),), (1,))


def load(pointer: Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
    at = torch.as_tensor(pointer.at)
    mask = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
    found = torch.full(at.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.flat()[at[mask]]
    return found


def store(pointer: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    at = torch.as_tensor(pointer.at)
    mask = torch.ones_like(at, dtype=torch.bool) if mask is None else mask
    pointer.flat()[at[mask]] = value[mask].to(pointer.memory.dtype)


class PropagateNan(Enum):
    """What a maximum makes of what is no number: what a GPU does, the other one; or itself."""

    NONE = 0
    ALL = 1


def maximum(value: Tensor, least: float, propagate_nan: PropagateNan = PropagateNan.NONE) -> Tensor:
    return value.clamp_min(least) if propagate_nan is PropagateNan.ALL else value.fmax(torch.tensor(least))


def trans(value: Tensor) -> Tensor:
    return value.T


def dot(left: Tensor, right: Tensor, total: Tensor | None = None) -> Tensor:
    product = left.float() @ right.float()
    return product if total is None else total + product


class Launcher:
    """`kernel[grid](…)`, as with Triton."""

    def __init__(self, kernel: Callable[..., None], language: ModuleType) -> None:
        self.kernel, self.language = kernel, language

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int = 4, num_stages: int = 3) -> None:
            given = [Pointer(arg) if isinstance(arg, Tensor) else arg for arg in args]
            for tile in itertools.product(*map(range, grid)):
                vars(self.language)["program_id"] = tile.__getitem__
                self.kernel(*given)

        return launch


def kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of kernels, imported anew so that they run here; whoever imports it after that gets another."""
    with monkeypatch.context() as importing:  # torch must not take the imitation for Triton
        for module, imitation in modules().items():
            importing.setitem(sys.modules, module, imitation)
        importing.delitem(sys.modules, name, raising=False)
        imitated = importlib.import_module(name)
    sys.modules.pop(name, None)
    return imitated


def used_by(module: ModuleType, asks: str, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Images that `module` asks about by the name `asks` go through its kernels, which run here; those that did.

    Not while the network is traced, as on a GPU.
    """
    imitated = kernels(f"{module.__name__}_kernels", monkeypatch)
    taken: list[Tensor] = []

    def all_are(x: Tensor) -> bool:
        if plain := type(x) is Tensor:
            taken.append(x)
        return plain

    monkeypatch.setattr(module, "_kernels", lambda: imitated)
    monkeypatch.setattr(module, asks, all_are)
    return taken


def for_preresnets(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All kernels that PreResNets go through run here; the images that did."""
    for module in (bottleneck, convolution):
        imitated = kernels(f"{module.__name__}_kernels", monkeypatch)
        monkeypatch.setattr(module, "_kernels", lambda imitated=imitated: imitated)
    return used_by(norm, "are_for_kernels", monkeypatch)


def blocks_computed(monkeypatch: pytest.MonkeyPatch) -> list[Bottleneck]:
    """The bottlenecks that go through kernels from now on."""
    blocks: list[Bottleneck] = []
    original = bottleneck.computed

    def noted(block: Bottleneck, x: Tensor) -> Tensor:
        blocks.append(block)
        return original(block, x)

    monkeypatch.setattr(bottleneck, "computed", noted)
    return blocks


def modules() -> dict[str, ModuleType]:
    """What to put into `sys.modules`."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton).update(jit=lambda kernel: Launcher(kernel, language), language=language)
    names = {"load": load, "store": store, "maximum": maximum, "dot": dot, "trans": trans, "constexpr": object}
    names["PropagateNan"] = PropagateNan
    same = {name: getattr(torch, name) for name in ("arange", "sum", "zeros", "where", "sqrt", "int64", "float32")}
    vars(language).update(names, **same)
    return {"triton": triton, "triton.language": language}
