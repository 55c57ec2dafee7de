"""A number that is read from a device without waiting for the work behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Late:
    """A whole number on its way to the host. Reading it waits for what was queued before it, and for nothing since."""

    def __init__(self, number: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._number = number.detach()
        if number.is_cuda:
            self._number = torch.empty_like(number, device="cpu", pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def __deepcopy__(self, memo: dict[int, Any]) -> Late:
        """One that has arrived: events of a device cannot be copied."""
        return Late(torch.tensor(self.read()))

    def read(self) -> int:
        """The number."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return int(self._number)
