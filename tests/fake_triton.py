"""As much of Triton as `headgate.kernels` uses, on CPU tensors: kernels run as plain Python, one tile after another.

What is tested with it is their index arithmetic. That they compute the same when compiled for a GPU is what
`benchmarks/fused_masks.py` records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


@dataclass
class Pointer:
    """The memory of a tensor, and places in it."""

    memory: Tensor
    at: Tensor | int = 0

    def __add__(self, more: Tensor | int) -> Pointer:
        return Pointer(self.memory, self.at + more)

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def flat(self) -> Tensor:
        """All numbers as they lie in memory; nothing beyond them can be reached."""
        return self.memory.as_strided((self.memory.numel(),), (1,))


def load(pointer: Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
    mask = torch.ones_like(pointer.at, dtype=torch.bool) if mask is None else mask.expand(pointer.at.shape)
    found = torch.full(pointer.at.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.flat()[pointer.at[mask]]
    return found


def store(pointer: Pointer, value: Tensor, mask: Tensor) -> None:
    pointer.flat()[pointer.at[mask]] = value[mask].to(pointer.memory.dtype)


class Launcher:
    """`kernel[grid](…)`, as with Triton."""

    def __init__(self, kernel: Callable[..., None], language: ModuleType) -> None:
        self.kernel, self.language = kernel, language

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            given = [Pointer(arg) if isinstance(arg, Tensor) else arg for arg in args]
            for tile in itertools.product(*map(range, grid)):
                vars(self.language)["program_id"] = tile.__getitem__
                self.kernel(*given)

        return launch


def modules() -> dict[str, ModuleType]:
    """What to put into `sys.modules`."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton).update(jit=lambda kernel: Launcher(kernel, language), language=language)
    names = {"arange": torch.arange, "load": load, "store": store, "sum": torch.sum, "constexpr": object}
    vars(language).update(names, int64=torch.int64, float32=torch.float32)
    return {"triton": triton, "triton.language": language}
