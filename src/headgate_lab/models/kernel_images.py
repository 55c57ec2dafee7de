"""Which images the lab's Triton kernels take, and how these are divided: what `norm` and `convolution` share."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor


def are_for_kernels(x: Tensor) -> bool:
    """Whether these are half precision images on a GPU, channels last, of numbers that 32 bits can count."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and type(x) is Tensor
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() < 2**31
        and has_triton()
    )


@cache
def has_triton() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("triton") is not None


def power_of_two(number: int) -> int:
    """The smallest that is not below the number."""
    return 1 << (number - 1).bit_length()
