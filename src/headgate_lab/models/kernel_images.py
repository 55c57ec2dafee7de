"""Which images and layers the lab's Triton kernels take: what `norm`, `convolution` and `bottleneck` share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook

F = TypeVar("F", bound=Callable[..., Any])

# Numbers that 32 bits can count.
COUNTABLE = 2**31


def are_for_kernels(x: Tensor) -> bool:
    """Whether these are half precision images on a GPU, channels last, of numbers that 32 bits can count."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and type(x) is Tensor
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() < COUNTABLE
        and has_triton()
    )


def does_nothing_else(layer: nn.Module) -> bool:
    """Whether a call of the layer is what its class does, with nobody watching: so that kernels may take its place."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return "forward" not in vars(layer) and not any(hooks) and not _has_any_global_hook()


def without_second_derivative(backward: F) -> F:
    """For the backward of a function whose gradients are constants: raises where they are to have a graph."""
    constant = once_differentiable(backward)

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: the lab's kernels have no second derivative; train on a CPU for it")
        return constant(ctx, *gradients)

    return checked  # type: ignore[return-value]


@cache
def has_triton() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("triton") is not None


def power_of_two(number: int) -> int:
    """The smallest that is not below the number."""
    return 1 << (number - 1).bit_length()
