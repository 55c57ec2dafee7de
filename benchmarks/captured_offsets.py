"""Do offsets move in a captured CUDA graph as they move in a plain training loop?

A small gated convolutional network is trained twice from the same start on the same batches: plainly, and with the
whole step (forward, penalty, backward, optimizer step with the offsets' update) captured and replayed. A cold start
freezes the offsets for the first steps, so the graph is captured twice. The strength changes sign and size from step to
step, so that offsets depend on their moments, not only on the number of steps. Offsets and weights of both runs are
compared, and the differences go to a JSON record.

    PYTHONPATH=src python -m benchmarks.captured_offsets     # with --device cpu nothing is captured
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

import headgate as hg
from headgate_lab.files import why_not_writable
from headgate_lab.records import device_name, write_record

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "checks" / "captured_offsets.json"


@dataclass(frozen=True)
class Config:
    """What is trained, and how far two runs may lie apart to count as the same."""

    cold_steps: int = 12
    warm_steps: int = 36
    warmup: int = 3
    batch_size: int = 64
    strengths: tuple[float, ...] = (0.5, 0.1, 1.0, -0.3, 0.6)
    offset_lr: float = 0.01
    offset_tolerance: float = 1e-6
    weight_tolerance: float = 1e-4


class Training:
    """A gated network, its optimizer, and one training step that reads its batch from fixed tensors."""

    def __init__(self, optimizer: str, config: Config, device: torch.device, seed: int) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.model = network().to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model, config, device)
        self.batches = [self._batch(step, device) for step in range(config.cold_steps + config.warm_steps)]
        self.x, self.y, self.strength = (tensor.clone() for tensor in self.batches[0])

    def load(self, step: int) -> None:
        """Puts the batch of that step where `step` reads it."""
        for fixed, fresh in zip((self.x, self.y, self.strength), self.batches[step], strict=True):
            fixed.copy_(fresh)

    def step(self) -> None:
        """One whole training step, without reading anything back to the host."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(self.model(self.x), self.y) + self.strength * hg.penalty(self.model)
        loss.backward()
        self.optimizer.step()

    def offsets(self) -> Tensor:
        """All offsets, in one vector on the host."""
        return torch.stack([gate.offset.detach().cpu() for gate in hg.gates(self.model).values()])

    def weights(self) -> Tensor:
        """All other parameters and the normalisation statistics, in one vector on the host."""
        state = {name: value for name, value in self.model.state_dict().items() if not name.endswith(".offset")}
        return torch.cat([value.detach().cpu().double().flatten() for value in state.values()])

    def _batch(self, step: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Images whose class can be learned (noise on one of ten patterns), their classes, and the step's strength."""
        patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        y = torch.randint(10, (self.config.batch_size,))
        x = patterns[y] + torch.randn(self.config.batch_size, 3, 16, 16)
        strength = torch.tensor(self.config.strengths[step % len(self.config.strengths)])
        return x.to(device), y.to(device), strength.to(device)


def network() -> nn.Sequential:
    """Three convolutions with a gate each: relative and plain masks, with and without a floor."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        hg.Gate(16, scale="relative", floor=2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        hg.Gate(32, scale="relative", floor=4, order="random:0"),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        hg.Gate(32),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def fused_sgd(model: nn.Module, config: Config, device: torch.device) -> Optimizer:
    """SGD whose rate is a tensor, as capture needs it."""
    rate = torch.tensor(0.05, device=device)
    groups = hg.param_groups(model, lr=rate, weight_decay=5e-4, offset_lr=config.offset_lr)
    return SGD(groups, momentum=0.9, fused=True)


def capturable_adam(model: nn.Module, config: Config, device: torch.device) -> Optimizer:
    """Adam that keeps its step count on the device; a CPU has no such variant."""
    groups = hg.param_groups(model, lr=2e-3, offset_lr=config.offset_lr)
    return Adam(groups, capturable=device.type == "cuda")


OPTIMIZERS: dict[str, Callable[[nn.Module, Config, torch.device], Optimizer]] = {
    "SGD fused": fused_sgd,
    "Adam capturable": capturable_adam,
}


def train_plainly(training: Training) -> None:
    """All steps, one after the other, as a user writes them."""
    for step in range(len(training.batches)):
        hg.freeze_(training.model, step < training.config.cold_steps)
        training.load(step)
        training.step()


def train_captured(training: Training) -> None:
    """The same steps; of each phase the first few are warm-up, the rest replays of one captured step."""
    config, step = training.config, 0
    for frozen, steps in ((True, config.cold_steps), (False, config.warm_steps)):
        hg.freeze_(training.model, frozen)
        run = training.step
        for count in range(steps):
            if count == config.warmup:
                run = captured(training.step, training.x.device)
            training.load(step)
            if count < config.warmup:
                beside_the_main_stream(run, training.x.device)
            else:
                run()
            step += 1


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph's replay; on a CPU the step itself. Capturing does not execute it."""
    if device.type != "cuda":
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def beside_the_main_stream(step: Callable[[], None], device: torch.device) -> None:
    """Runs a warm-up step on a stream of its own, as torch asks before a capture."""
    if device.type != "cuda":
        step()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)


def compare(optimizer: str, config: Config, device: torch.device, seed: int) -> dict[str, Any]:
    """Trains twice and measures how far the two runs lie apart, and how far the offsets went."""
    plain, replayed = (Training(optimizer, config, device, seed) for _ in range(2))
    start = plain.offsets()
    train_plainly(plain)
    train_captured(replayed)
    offset_difference = (plain.offsets() - replayed.offsets()).abs().max().item()
    weight_difference = (plain.weights() - replayed.weights()).abs().max().item()
    least_travel = (start - replayed.offsets()).abs().min().item()
    return {
        "offsets_plain": plain.offsets().tolist(),
        "offsets_captured": replayed.offsets().tolist(),
        "offset_difference": offset_difference,
        "weight_difference": weight_difference,
        "least_travel": least_travel,
        # Offsets that had not moved would agree as well.
        "agree": offset_difference <= config.offset_tolerance
        and weight_difference <= config.weight_tolerance
        and least_travel >= 10 * config.offset_lr,
    }


def check(config: Config, device: torch.device, seed: int) -> dict[str, Any]:
    """All optimizers compared."""
    # The same kernels in both runs, in full precision: what is left is the effect of capturing.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return {name: compare(name, config, device, seed) for name in OPTIMIZERS}


def headline(metrics: dict[str, dict[str, Any]], config: Config, where: str, really: bool) -> str:
    """The result in one plain sentence."""
    largest = max(metric["offset_difference"] for metric in metrics.values())
    steps = config.cold_steps + config.warm_steps
    how = "with the whole step captured in a CUDA graph" if really else "by the check's own loop (nothing to capture)"
    verdict = "end where" if all(metric["agree"] for metric in metrics.values()) else "do NOT end where"
    return (
        f"On {where}, offsets trained {how} {verdict} a plain loop brings them (largest difference {largest:.1e} after "
        f"{steps} steps; {', '.join(metrics)})."
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the check, writes the record, and returns 0 if all runs agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="the commit to record; git's by default")
    parser.add_argument("--out", type=Path, default=RECORD, help=f"where the record goes ({RECORD.relative_to(ROOT)})")
    given = parser.parse_args(arguments)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if obstacle := why_not_writable(given.out):
        parser.error(f"--out {given.out}: {obstacle}")
    start, config, device = time.perf_counter(), Config(), torch.device(given.device)
    metrics = check(config, device, given.seed)
    captured = device.type == "cuda"
    result = headline(metrics, config, device_name(device.type), captured)
    write_record(
        given.out,
        recipe="captured_offsets",
        config=asdict(config),
        metrics={"captured": captured, **metrics},
        headline=result,
        duration_s=time.perf_counter() - start,
        device=device.type,
        commit=given.commit,
        seed=given.seed,
    )
    print(result)
    return 0 if all(metric["agree"] for metric in metrics.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
