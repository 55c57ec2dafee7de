"""What comes of `examples/character_model.py`, over some seeds.

    PYTHONPATH=src python -m benchmarks.character_model --seeds 3

Writes a record to results/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from examples.character_model import Text, compare
from headgate_lab.records import write_record


def summary(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Of every network and number: the mean over seeds, and of losses all of them."""
    return {
        name: {what: round(statistics.fmean(run[name][what] for run in runs), 4) for what in runs[0][name]}
        | {"validation_losses": [round(run[name]["validation_loss"], 4) for run in runs]}
        for name in runs[0]
    }


def main() -> None:
    """Trains and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=0.4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    found = summary([compare(Text(), args.params, args.steps, seed) for seed in range(args.seeds)])
    whole, small, narrow = (found[name] for name in ("whole", "by a budget", "narrower"))
    write_record(
        args.out / "character_model.json",
        recipe="character_model",
        config={key: getattr(args, key) for key in ("params", "steps", "seeds", "threads")},
        metrics=found,
        headline=f"a language model of characters at {small['params'] / whole['params']:.0%} of its parameters loses "
        f"{small['validation_loss']:.3f} nats a character, the whole one {whole['validation_loss']:.3f}, one built "
        f"narrower {narrow['validation_loss']:.3f} (means of {args.seeds} seeds); it reads "
        f"{small['characters_per_second'] / whole['characters_per_second']:.1f} times as fast",
        duration_s=time.perf_counter() - start,
        device="cpu",
        commit=args.commit,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
