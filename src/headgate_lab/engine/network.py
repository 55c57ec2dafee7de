"""One network in training: its model, optimizer, batches and sums, and the step that a CUDA graph captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import headgate as hg
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.precision import computing_on
from headgate_lab.engine.stand_in import StandIn, stand_in
from headgate_lab.engine.task import CLASSIFY, Task
from headgate_lab.methods.contract import Method

EVALUATED_AT_ONCE = 2_000
# How the names of the gates' tensors begin in a state dict.
OF_GATES = "headgate_"
# Where networks of odd widths have a stand-in: where it pays (`benchmarks/stand_ins.py`).
STAND_INS_ON: tuple[str, ...] = ("cuda",)


@dataclass(frozen=True)
class Optimization:
    """How weights move. `rate` gives the factor on the learning rate for an epoch, counted from 0, of so many."""

    kind: Literal["sgd", "adam", "adamw"]
    lr: float
    weight_decay: float
    rate: Callable[[int, int], float]
    gradient_noise: float = 0.0


@dataclass(frozen=True)
class AtRest:
    """The gates that a network had when it was made small: their part of its state, and the fraction they kept."""

    gates: dict[str, Tensor]
    kept: float


class Network:
    """One job: everything its training changes is here and in `state_dict`.

    `step` reads nothing back to the host, so that the same function runs plainly on a CPU, plainly on a GPU, and
    captured.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        batches: Batches,
        how: Optimization,
        epochs: int,
        seed: int,
        task: Task = CLASSIFY,
    ) -> None:
        self.model, self.method, self.batches, self.how, self.epochs = model, method, batches, how, epochs
        self.task = task
        self.device = batches.place.device
        self.stand_in = self._stand_in()
        self.optimizer = _optimizer(how, method.groups(self.trained), self.device)
        self.companion = method.companion(model, epochs * batches.steps)
        self.at_rest: AtRest | None = None
        self.loss, self.share = torch.zeros((2,), device=self.device).unbind(0)
        self.noise = torch.Generator(self.device).manual_seed(seed + 1)
        self.done = 0

    @property
    def trained(self) -> nn.Module:
        """What takes the steps: the model, or its stand-in. Between epochs the model has learned the same."""
        return self.model if self.stand_in is None else self.stand_in.model

    def begin_epoch(self) -> bool:
        """Prepares the next epoch; whether the step has become another one, so that it must be captured anew."""
        settled = self.companion is not None and self.companion.settled and not self.diverged
        shrinks = settled and self._goes_on_small_()
        self.batches.shuffle_()
        self.loss.zero_()
        self.share.zero_()
        _set_rate_(self.optimizer, self.how.lr * self.how.rate(self.done, self.epochs))
        changed = self.method.on_epoch(self.trained, self.done)
        self.trained.train()
        self.done += 1
        return changed or shrinks

    def step(self) -> None:
        """One training step on the next batch."""
        images, labels = self.batches.next()
        self.optimizer.zero_grad()
        with computing_on(self.device):
            outputs = self.trained(images)
        seen = (outputs.float(), images, labels)
        loss = self.task.loss(*seen).mean()
        penalty = self.method.penalty(self.trained) if self.companion is None else self.companion.penalty()
        (loss if penalty is None else loss + penalty).backward()
        if self.how.gradient_noise:
            self._add_noise_()
        self.optimizer.step()
        self.loss.add_(loss.detach())
        with torch.no_grad():
            self.share.add_(self.task.share(*seen).sum())

    def after_step(self) -> bool:
        """What follows a step and is not captured with it; whether the step has become another one."""
        return self.companion is not None and self.companion.step()

    def metrics(self) -> dict[str, float]:
        """What the epoch came to, and the fraction of gated units that stay; reads from the device."""
        if self.stand_in is not None:
            self.stand_in.take_()
        steps, seen = self.batches.steps, self.batches.steps * self.batches.size
        found = {"loss": self.loss.item() / steps, f"train_{self.task.measure}": 100 * self.share.item() / seen}
        kept = self.kept()
        told = {} if self.companion is None else self.companion.metrics()
        return found | told | ({} if kept is None else {"kept": kept})

    @property
    def diverged(self) -> bool:
        """Whether some of what is learned is no finite number: nothing can be said of it then. Reads from the device.

        Such a network goes on beside the others, which it must not stop.
        """
        finite = [parameter.isfinite().all() for parameter in self.model.parameters()]
        return not torch.stack(finite).all()

    def kept(self) -> float | None:
        """The fraction of gated units that stay; None where there are no gates, or no numbers."""
        if self.at_rest is not None:
            return self.at_rest.kept
        if self.diverged:
            return None
        keep = list(self.method.keep(self.model).values())
        return torch.cat(keep).float().mean().item() if keep else None

    def state_dict(self) -> dict[str, Any]:
        """Between epochs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()
            if self.stand_in is None
            else self.stand_in.small_state(self.optimizer),
            "batches": self.batches.state_dict(),
            "at_rest": None if self.at_rest is None else self.at_rest.gates,
            "companion": None if self.companion is None else self.companion.state_dict(),
            "noise": self.noise.get_state(),
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        if state["at_rest"] is not None:
            self.model.load_state_dict(state["at_rest"], strict=False)
            self._go_on_small_()
        self.model.load_state_dict(state["model"])
        optimizer = state["optimizer"]
        if self.stand_in is not None:
            self.stand_in.put_()
            optimizer = self.stand_in.own_state(self.optimizer, optimizer)
        self.optimizer.load_state_dict(optimizer)
        if self.companion is not None:
            self.companion.load_state_dict(state["companion"])
        self.batches.load_state_dict(state["batches"])
        self.noise.set_state(state["noise"].cpu())
        self.done = state["done"]

    def _goes_on_small_(self) -> bool:
        """Whether the network could be exchanged for the small one; at the end it is told why one could not."""
        try:
            self._go_on_small_()
        except hg.CompactionError:
            return False
        return True

    def _go_on_small_(self) -> None:
        """Exchanges the network for the small one; the companion's work is done."""
        data, kept = self.batches.data, self.kept()
        assert kept is not None
        gates = {name: value for name, value in self.model.state_dict().items() if name.startswith(OF_GATES)}
        small = self.method.small(self.model, data.normalised(data.images[:2], torch.float32))
        hg.transfer_(self.optimizer, self.model, small)
        self.model, self.companion, self.at_rest = small, None, AtRest(gates, kept)
        self.stand_in = self._stand_in()
        if self.stand_in is not None:
            self.stand_in.move_(self.optimizer)

    def _stand_in(self) -> StandIn | None:
        """For a network of odd widths; noise on gradients would not leave silent channels silent."""
        if self.device.type not in STAND_INS_ON or self.how.gradient_noise:
            return None
        data, dtype = self.batches.data, next(self.model.parameters()).dtype
        return stand_in(self.model, data.normalised(data.images[:2], dtype))

    @torch.no_grad()
    def _add_noise_(self) -> None:
        """Gaussian noise on every gradient, its deviation a fraction of the gradient's root mean square."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                size = parameter.grad.square().mean().sqrt() * self.how.gradient_noise
                noise = torch.empty_like(parameter.grad).normal_(generator=self.noise)
                parameter.grad.add_(noise * size)


class Score(NamedTuple):
    """The mean loss of images, and the percentage that is done of what was to be done with them."""

    loss: float
    percent: float


def accuracy(model: nn.Module, data: Resident) -> float:
    """Percent of the images that the model, in evaluation mode and its own precision, classifies rightly."""
    return score(model, data).percent


@torch.no_grad()
def score(model: nn.Module, data: Resident, task: Task = CLASSIFY) -> Score:
    """What the model, in evaluation mode and its own precision, makes of the images."""
    model.eval()
    share, loss = torch.zeros((2,), dtype=torch.float64, device=data.images.device).unbind(0)
    for images, labels in _pieces(data):
        seen = (model(images), images, labels)
        share += task.share(*seen).sum()
        loss += task.loss(*seen).sum()
    return Score(loss.item() / len(data.images), 100 * share.item() / len(data.images))


def _pieces(data: Resident) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(data.images), EVALUATED_AT_ONCE):
        images = data.images[start : start + EVALUATED_AT_ONCE]
        yield data.normalised(images, torch.float32), data.labels[start : start + EVALUATED_AT_ONCE]


def _optimizer(how: Optimization, groups: list[dict[str, Any]], device: torch.device) -> Optimizer:
    captured = device.type == "cuda"
    rate: Any = torch.tensor(how.lr, device=device) if captured else how.lr
    if how.kind != "sgd":
        adam = torch.optim.Adam if how.kind == "adam" else torch.optim.AdamW
        return adam(groups, lr=rate, weight_decay=how.weight_decay, fused=captured, capturable=captured)
    return torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=how.weight_decay, fused=captured)


def _set_rate_(optimizer: Optimizer, rate: float) -> None:
    """In place where the rate is a tensor: a captured step reads it from there."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        elif "offset_lr" not in group:
            group["lr"] = rate
