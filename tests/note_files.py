"""Reading and forging files of small models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from headgate.note import CHECKSUM, NOTE, checksum


def file_contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()[NOTE]), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def forge(path: Path, note: Any, weights: dict[str, Tensor]) -> None:
    """Writes a file with any note at all, as a note's author would: with the right checksum."""
    text = note if isinstance(note, str) else json.dumps(note)
    save_file(weights, path, {NOTE: text, CHECKSUM: checksum(text, weights)})
