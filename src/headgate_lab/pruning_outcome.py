"""What came of the demo: the networks side by side, and the small one on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from torch import nn

import headgate as hg
from headgate_lab.data.digits import Digits
from headgate_lab.models.digits import DigitsNet
from headgate_lab.pruning import (
    PruningConfig,
    Watch,
    accuracy,
    largest_difference,
    make,
    narrower,
    train_gated,
    train_plain,
)

LATENCY_BATCH = 64


@dataclass(frozen=True)
class Row:
    """One network: what it reaches and what it costs, and the width of every layer."""

    name: str
    accuracy: float
    params: int
    macs: int
    latency_ms: float
    latency_spread_ms: float
    file_bytes: int
    widths: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """The full network trained without gates, the compacted one, and the narrower control.

    `difference` is the largest one between the outputs of the gated and the compacted network on the test images,
    relative to the largest output; `images` is how many there are, `batch` how many each latency is for.
    """

    full: Row
    small: Row
    control: Row
    difference: float
    images: int
    batch: int = LATENCY_BATCH

    @property
    def rows(self) -> tuple[Row, Row, Row]:
        """In the order of the table."""
        return self.full, self.small, self.control


def run(config: PruningConfig, data: Digits, path: Path, watch: Watch) -> Outcome:
    """Trains with gates, compacts, saves to `path`, loads it again, and trains the two controls."""
    gated = train_gated(config, data, watch)
    made = hg.compact(gated, data.test_images[:2])
    hg.save(made, path)
    # What is measured is what was saved.
    small = hg.load(path, lambda: make(config))
    assert isinstance(small, DigitsNet)
    width = narrower(config, small)
    full = train_plain(config, data, watch, run="full, without gates", width=config.width)
    control = train_plain(
        config, data, watch, run=f"narrower ({width} channels instead of {config.width})", width=width
    )
    return Outcome(
        measured("full", full, data, _file_bytes(full)),
        measured("compacted", small, data, path.stat().st_size),
        measured(f"narrower ({width})", control, data, _file_bytes(control)),
        largest_difference(gated, small, data),
        len(data.test_images),
    )


def measured(name: str, model: DigitsNet, data: Digits, file_bytes: int) -> Row:
    """A network's row in the table."""
    cost = hg.cost(model, data.test_images[:LATENCY_BATCH], latency=True, repeats=50)
    single = hg.cost(model, data.test_images[:1])
    assert cost.latency is not None
    assert single.macs is not None
    return Row(
        name,
        accuracy(model, data),
        cost.params,
        single.macs,
        cost.latency.median_ms,
        cost.latency.spread_ms,
        file_bytes,
        layer_widths(model),
    )


def layer_widths(model: nn.Module) -> dict[str, int]:
    """What every convolution and linear layer still computes, by name; 0 for one that is gone with its block.

    Example:
        >>> layer_widths(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        {'0': 8, '2': 2}
    """
    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
    return {name: layer.weight.shape[0] for name, layer in layers}


def _file_bytes(model: nn.Module) -> int:
    return len(safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()}))
