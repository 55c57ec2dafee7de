"""Copies of one small module trained as one batched run.

Parameters are stacked along a first axis and every operation is batched over it by vmap, so that hundreds of small
networks cost about as much as one large one, and no number of one meets another's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import headgate as hg
from headgate_lab.engine.captured import captured_where_possible
from headgate_lab.engine.stacked_adam import adam_, bounded_

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Rates:
    """How copies are trained: numbers of their own, one for each copy, and a schedule that they share.

    Attributes:
        lr: Adam's learning rate.
        weight_decay: on every parameter, offsets included where Adam moves them.
        strength: weight of the penalty in the loss.
        steps: of the whole training.
        offset_lr: the most an offset moves in one step of headgate's bounded update; 0 leaves offsets to Adam, as the
            paper does.
        search: the fraction of the steps in which offsets move. After it they rest and the rate of the weights falls
            to 0 in a line: an offset that still moves keeps the error from getting small.
    """

    lr: Sequence[float]
    weight_decay: Sequence[float]
    strength: Sequence[float]
    steps: int
    offset_lr: float = 0.0
    search: float = 1.0


class Stack:
    """Copies in training.

    Args:
        copies: modules of one class and shape whose forward returns two scalars, the loss and the penalty; what
            follows them is only measured. At most the numbers in their parameters and buffers differ.
        rates: see there.
        inputs: gives the inputs of the next step, with the copies along their first axis; called for every step, and
            must not read a value back to the host.
        device: where the stack lives.
        changes: tensors that `inputs` changes, such as its position in the data.
        shared: all copies read the same inputs, which then have no axis of copies.
    """

    def __init__(
        self,
        copies: Sequence[nn.Module],
        rates: Rates,
        inputs: Callable[[], Inputs],
        device: torch.device,
        changes: Sequence[Tensor] = (),
        *,
        shared: bool = False,
    ) -> None:
        forbid_tf32()
        self.rates, self.inputs, self.shared = rates, inputs, shared
        self.template = copy.deepcopy(copies[0]).to("meta")
        self.bounds = _bounds(copies, device) if rates.offset_lr else {}
        parameters, buffers = stack_module_state(list(copies))
        self.parameters = {name: value.detach().to(device).requires_grad_() for name, value in parameters.items()}
        self.buffers = {name: value.detach().to(device) for name, value in buffers.items()}
        self.moments = {
            name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in self.parameters.items()
        }
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.total = torch.zeros(len(copies), device=device)
        self.active = torch.ones(len(copies), device=device)
        self.lr, self.weight_decay, self.strength = (
            torch.tensor(list(vector), device=device) for vector in (rates.lr, rates.weight_decay, rates.strength)
        )
        self.changes = list(changes)
        self._replay: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.total)

    def run(self, steps: int) -> Tensor:
        """Trains on and returns the mean loss of each copy over these steps, still on the device."""
        self.total.zero_()
        if self._replay is None:
            self._replay = captured_where_possible(self._step, [*self._state().values(), self.total, *self.changes])
        for _ in range(steps):
            self._replay()
        return self.total / steps

    def measure(self, *inputs: Tensor, shared: bool = False) -> tuple[Tensor, ...]:
        """What the forward of each copy returns, without training; see `outputs`."""
        measured: tuple[Tensor, ...] = self.outputs(self.template, *inputs, shared=shared)
        return measured

    @torch.no_grad()
    def outputs(self, module: nn.Module, *inputs: Tensor, shared: bool = False) -> Any:
        """What a module that has the copies' parameters, under the same names, returns for each of them.

        Results have the copies along their first axis, and so have the inputs, unless they are `shared` by all copies.
        """
        return self._forward(module, inputs, shared)

    def rest_(self, resting: Tensor) -> None:
        """From now on these copies, a bool each, stay as they are."""
        self.active.mul_(~resting)

    def copy(self, number: int) -> nn.Module:
        """One copy, as a module of its own."""
        module = copy.deepcopy(self.template).to_empty(device=self.total.device)
        stacked = {**self.parameters, **self.buffers}
        module.load_state_dict({name: value[number].detach() for name, value in stacked.items()}, strict=False)
        return module

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes."""
        return {name: value.detach().clone() for name, value in self._state().items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the stack where `state_dict` was taken."""
        for name, value in self._state().items():
            value.copy_(state[name])

    def _state(self) -> dict[str, Tensor]:
        state = {f"value {name}": value.data for name, value in self.parameters.items()}
        for name, (first, second) in self.moments.items():
            state |= {f"first {name}": first, f"second {name}": second}
        return {**state, "count": self.count, "active": self.active}

    def _forward(self, module: nn.Module, inputs: Inputs, shared: bool) -> Any:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *inputs: Tensor) -> Any:
            return functional_call(module, (parameters, buffers), inputs)

        axes = (0, 0, *(None if shared else 0 for _ in inputs))
        return torch.vmap(one, in_dims=axes)(self.parameters, self.buffers, *inputs)

    def _step(self) -> None:
        loss, penalty, *_ = self._forward(self.template, self.inputs(), self.shared)
        # Each copy's loss depends on its own parameters only: the gradient of the sum is each one's gradient.
        objective = (loss + self.strength * penalty).sum()
        gradients = torch.autograd.grad(objective, list(self.parameters.values()))
        self.total.add_(loss.detach())
        searching, fraction = self._schedule()
        self.count.add_(1)
        rate = self.lr * fraction * self.active
        for (name, values), gradient in zip(self.parameters.items(), gradients, strict=True):
            moments = self.moments[name]
            if name in self.bounds:
                lowest, highest = self.bounds[name]
                offset_rate = self.rates.offset_lr * searching * self.active
                bounded_(values.data, gradient, moments, self.count, rate=offset_rate, lowest=lowest, highest=highest)
            else:
                adam_(values.data, gradient, moments, self.count, rate=rate, decay=self.weight_decay)

    def _schedule(self) -> tuple[Tensor, Tensor]:
        """Whether offsets move in the next step, and the weights' rate as a fraction, as numbers on the device."""
        one = torch.ones_like(self.count)
        if self.rates.search >= 1:
            return one, one
        steps, search = self.rates.steps, self.rates.search
        searching = (self.count < search * steps).to(one.dtype)
        return searching, torch.maximum(searching, (steps - self.count) / ((1 - search) * steps)).clamp(max=1)


def forbid_tf32() -> None:
    """Full float32 products: the experiments look for exact dimensions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _bounds(copies: Sequence[nn.Module], device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """The range of each offset, by the offset's name, one number a copy."""
    found = {}
    for name in hg.gates(copies[0]):
        gates = [hg.gates(module)[name] for module in copies]
        lowest, highest = (torch.stack([getattr(gate, end) for gate in gates]) for end in ("lowest", "start"))
        found[f"{name}.offset"] = lowest.detach().to(device), highest.detach().to(device)
    return found
