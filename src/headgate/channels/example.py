"""What a model is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Example:
    """What to call the model with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(example: Any) -> Example:
        """A tensor, a tuple or list of positional arguments, or a dict of keyword arguments."""
        if isinstance(example, Example):
            return example
        if isinstance(example, dict):
            return Example((), dict(example))
        return Example(tuple(example) if isinstance(example, (tuple, list)) else (example,), {})

    def fresh(self) -> Example:
        """The same with tensors of its own: a model's code may write into what it is given."""

        def cloned(leaf: Any) -> Any:
            return leaf.clone() if isinstance(leaf, Tensor) else leaf

        return Example(tree_map(cloned, self.args), tree_map(cloned, self.kwargs))

    def following(self, model: nn.Module) -> Example:
        """The same on the device and in the dtype of a model without gates, which may have been moved since."""
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.to(like.device, like.dtype) if leaf.is_floating_point() else leaf.to(like.device)

        return Example(tree_map(moved, self.args), tree_map(moved, self.kwargs))
