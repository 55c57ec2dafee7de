"""Batches as loaders yield them: inputs and targets, brought to where the model is, each known by its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headgate.channels.example import Example
from headgate.channels.running import said_by
from headgate.errors import ArgumentError


@dataclass(frozen=True)
class Batch:
    """What a model is called with, and what it should return. Batches are counted from 1."""

    number: int
    inputs: Example
    targets: Any
    paired: bool

    @property
    def name(self) -> str:
        """How errors begin that are about this batch."""
        return f"order_by: batch {self.number}"

    @property
    def examples(self) -> int:
        """The first axis of the first tensor."""
        leaves = tree_flatten((self.inputs.args, self.inputs.kwargs))[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if not tensors or not len(tensors[0]):
            raise ArgumentError(f"{self.name} holds no examples, along the first axis of its first tensor")
        return len(tensors[0])

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a graph is made for: everything but the numbers in tensors."""
        leaves, spec = tree_flatten((self.inputs.args, self.inputs.kwargs))
        return (spec, *(((*x.shape, x.dtype) if isinstance(x, Tensor) else repr(x)) for x in leaves))


def batches_on(device: torch.device, batches: Iterable[Any]) -> Iterator[Batch]:
    """Every batch on the device, as inputs and targets."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        there = leaf.to(device)
        # What was made under torch.inference_mode has no part in gradients; a copy may.
        return there.clone() if there.is_inference() else there

    for number, batch in enumerate(batches, start=1):
        paired = isinstance(batch, (tuple, list))
        if paired and len(batch) != 2:
            raise ArgumentError(
                f"order_by: batch {number}: a batch of {len(batch)} things is neither inputs nor a pair (inputs, "
                "targets); several inputs go into a tuple within a pair, ((first, second), targets), where targets may "
                "be None"
            )
        try:
            inputs, targets = tree_map(moved, tuple(batch) if paired else (batch, None))
        except Exception as error:
            raise ArgumentError(
                f"order_by: batch {number} cannot be brought to {device}, where the model is ({said_by(error)})"
            ) from error
        yield Batch(number, Example.of(inputs), targets, paired)


def in_words(targets: Any) -> str:
    """What targets are, not what is in them."""
    if isinstance(targets, Tensor):
        return f"a tensor of shape {tuple(targets.shape)}"
    if targets is None:
        return "None"
    kind = f"a {type(targets).__name__}"
    return f"{kind} of length {len(targets)}" if isinstance(targets, Sized) else kind
