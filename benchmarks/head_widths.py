"""What it costs in time that values are not as wide as queries: a small transformer that lost half its attention.

    PYTHONPATH=src python -m benchmarks.head_widths --threads 1

One record, `head_widths`: four blocks of width 256 with eight heads of 32, cut in several ways that leave equally many
parameters: half of the heads; half of the places of all heads; unequally many places, twelve of queries and keys and
twenty of values. torch's fast attention kernels want queries, keys and values of one width, and others take its plain
code. Causal attention over 256 tokens, a batch of four, float32; forward passes without gradients, and training steps
without an optimizer; contestants in turns.
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from benchmarks.timing import in_turns, median_ms, options, ratios
from headgate_lab.records import write_record

WIDTH, HEADS, PLACES, DEPTH, BATCH, LENGTH = 256, 8, 32, 4, 4, 256

# For each contestant: heads, places of queries and keys, places of values.
CUTS = {
    "dense": (HEADS, PLACES, PLACES),
    "half of the heads": (HEADS // 2, PLACES, PLACES),
    "half of the places": (HEADS, PLACES // 2, PLACES // 2),
    "unequal places": (HEADS, 12, 20),
}


class Block(nn.Module):
    """Attention with a scale of its own and a feed-forward layer, each behind a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, PLACES**-0.5
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEADS * PLACES) for _ in range(3))
        self.out = nn.Linear(HEADS * PLACES, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, time, width), before and after."""
        read = self.norm1(x)
        parts = (self.q(read), self.k(read), self.v(read))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        written: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + written


def cut(plan: hg.Plan, model: nn.Module, left: tuple[int, int, int]) -> nn.Module:
    """The model with so many heads, places of queries and keys, and places of values, the first of each."""
    heads, queries, values = left
    counts = {"q": (HEADS, heads), "k": (PLACES, queries), "v": (PLACES, values)}
    sites = {f"{layer}.{leaf}": count for layer in range(DEPTH) for leaf, count in counts.items()}
    return hg.shrink(model, plan, {name: torch.arange(size) < kept for name, (size, kept) in sites.items()})


def trained(model: nn.Module, x: Tensor) -> None:
    """Gradients of all parameters."""
    model.zero_grad()
    model(x).square().mean().backward()


def main() -> None:
    """Measures all contestants and writes the record."""
    args = options(__doc__, rounds=31).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    start, x = time.perf_counter(), torch.randn(BATCH, LENGTH, WIDTH)
    dense = nn.Sequential(*(Block() for _ in range(DEPTH)))
    plan = hg.find_groups(dense, torch.randn(2, 8, WIDTH))
    models = {name: cut(plan, dense, left) for name, left in CUTS.items()}
    with torch.inference_mode():
        forward = in_turns({name: partial(model, x) for name, model in models.items()}, args.rounds, 1)
    steps = in_turns({name: partial(trained, model, x) for name, model in models.items()}, args.rounds, 1)
    rows: list[dict[str, Any]] = [
        {
            "model": name,
            "left": CUTS[name],
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "forward_ms": median_ms(forward[name]),
            "step_ms": median_ms(steps[name]),
            "forward_ratio": round(statistics.median(ratios(forward[name], forward["half of the places"])), 3),
            "step_ratio": round(statistics.median(ratios(steps[name], steps["half of the places"])), 3),
        }
        for name, model in models.items()
    ]
    unequal = rows[-1]
    write_record(
        args.out / "head_widths.json",
        recipe="head_widths",
        config={"batch": BATCH, "length": LENGTH, "rounds": args.rounds, "threads": args.threads, "dtype": "float32"},
        metrics={"rows": rows},
        headline=f"values wider than queries take {unequal['forward_ratio']:.2f} times as long forward, and "
        f"{unequal['step_ratio']:.2f} times in a training step, as equal widths with as many parameters",
        duration_s=time.perf_counter() - start,
        commit=args.commit,
    )
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
