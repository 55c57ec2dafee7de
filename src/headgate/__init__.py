"""Headgate trains a PyTorch network once and hands back a smaller one.

A gate learns one number, its offset, that decides how many units of a layer stay open; see `Gate`.
"""

from headgate.bank import InsertedGate
from headgate.channels.groups import Branch, Group, Plan, find_groups
from headgate.errors import (
    ArgumentError,
    CompactionError,
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
from headgate.surgery.compact import compact, remove_gates_
from headgate.surgery.insert import insert_gates_
from headgate.surgery.shrink import shrink

__all__ = [
    "ArgumentError",
    "Branch",
    "CompactionError",
    "Gate",
    "GateError",
    "GateStatus",
    "Group",
    "HeadgateError",
    "HeadgateWarning",
    "InsertedGate",
    "OptimizerError",
    "Plan",
    "ShapeError",
    "Status",
    "bake_",
    "compact",
    "find_groups",
    "freeze_",
    "gates",
    "insert_gates_",
    "kept",
    "offset_group",
    "param_groups",
    "penalty",
    "remove_gates_",
    "shrink",
    "status",
]
__version__ = "0.1.0"
