"""Headgate trains a PyTorch network once and hands back a smaller one.

A gate learns one number, its offset, that decides how many units of a layer stay open; see `Gate`.
"""

from headgate.errors import (
    ArgumentError,
    GateError,
    HeadgateError,
    HeadgateWarning,
    OptimizerError,
    ShapeError,
)
from headgate.gate import Gate
from headgate.gated import GateStatus, Status, bake_, freeze_, gates, kept, status
from headgate.objective import penalty
from headgate.offsets import offset_group, param_groups

__all__ = [
    "ArgumentError",
    "Gate",
    "GateError",
    "GateStatus",
    "HeadgateError",
    "HeadgateWarning",
    "OptimizerError",
    "ShapeError",
    "Status",
    "bake_",
    "freeze_",
    "gates",
    "kept",
    "offset_group",
    "param_groups",
    "penalty",
    "status",
]
__version__ = "0.1.0"
