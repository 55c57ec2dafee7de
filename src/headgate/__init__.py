"""Headgate trains a PyTorch network once and hands back a smaller one.

A gate learns one number, its offset, that decides how many units of a layer stay open; see `Gate`.
"""

from headgate.bank import InsertedGate
from headgate.channels.plan import Branch, Group, Plan
from headgate.channels.readers import Reader
from headgate.cost import Cost, cost
from headgate.errors import (
    ArgumentError,
    CompactionError,
    ConfigError,
    ExportError,
    FileError,
    GateError,
    HeadgateError,
    HeadgateWarning,
    MissingPackageError,
    OptimizerError,
    RecipeError,
    ShapeError,
    TraceError,
)
from headgate.export import export_onnx
from headgate.files import load, save
from headgate.gate import Gate
from headgate.gated import GateStatus, Status, bake_, freeze_, gates, status
from headgate.objective import penalty
from headgate.offsets import offset_group, param_groups
from headgate.surgery.budget import Budget
from headgate.surgery.compact import compact, remove_gates_
from headgate.surgery.fit_config import fit_config_
from headgate.surgery.insert import insert_gates_
from headgate.surgery.kept import kept
from headgate.surgery.order_by import order_by
from headgate.surgery.planning import find_groups
from headgate.surgery.shrink import shrink
from headgate.surgery.transfer import transfer_

__all__ = [
    "ArgumentError",
    "Branch",
    "Budget",
    "CompactionError",
    "ConfigError",
    "Cost",
    "ExportError",
    "FileError",
    "Gate",
    "GateError",
    "GateStatus",
    "Group",
    "HeadgateError",
    "HeadgateWarning",
    "InsertedGate",
    "MissingPackageError",
    "OptimizerError",
    "Plan",
    "Reader",
    "RecipeError",
    "ShapeError",
    "Status",
    "TraceError",
    "bake_",
    "compact",
    "cost",
    "export_onnx",
    "find_groups",
    "fit_config_",
    "freeze_",
    "gates",
    "insert_gates_",
    "kept",
    "load",
    "offset_group",
    "order_by",
    "param_groups",
    "penalty",
    "remove_gates_",
    "save",
    "shrink",
    "status",
    "transfer_",
]
__version__ = "0.1.0"
