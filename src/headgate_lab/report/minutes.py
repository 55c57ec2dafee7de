"""The time of a run by kind of stage, from its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The kinds of stages, by the metric that tells their minutes, and the names that their seconds are recorded under.
KINDS = {
    "minutes_training": ("train",),
    "minutes_pruning": ("search", "to train", "to prune", "prune", "to finetune"),
    "minutes_finetuning": ("finetune",),
}


def minutes(record: Mapping[str, Any]) -> dict[str, float]:
    """The minutes of one network: those of a stage, shared among all networks that were side by side in it."""
    seconds: Mapping[str, float] = record["seconds"]
    networks: Mapping[str, int] = record.get("networks", {})
    together: int = record["together"]

    def each(stage: str) -> float:
        return seconds.get(stage, 0.0) / networks.get(stage.removeprefix("to "), together) / 60

    return {kind: sum(map(each, stages)) for kind, stages in KINDS.items()}
