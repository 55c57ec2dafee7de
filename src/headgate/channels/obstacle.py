"""Why channels stay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """Why something must stay: the module path, the operation, and the reason in words."""

    path: str
    operation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'root'}: {self.operation}: {self.reason}"
