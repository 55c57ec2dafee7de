"""Gated networks for these tests, each analysed once, and the plain formula their training is held against."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

import headgate as hg
from headgate import inputs
from headgate.bank import Bank, bank_of
from headgate.masked_weight import MaskedWeight
from tests.small_nets import Residual, Tied, image, trained


class Flat(nn.Module):
    """From a convolution through `flatten` into a linear map: its mask is gathered, four columns to a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.hidden = nn.Linear(6 * 4, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.conv(x).relu(), 2)
        return self.out(self.hidden(x.flatten(1)).tanh())


class Skipping(nn.Module):
    """A part that may be left out, one that computes in full precision, and one whose weights are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.Tanh())
        self.extra = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.Tanh())
        self.frozen = nn.Conv2d(6, 6, 3, padding=1).requires_grad_(False)
        self.head = nn.Linear(6, 3)
        self.skip, self.fails, self.full_precision = False, False, False

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.stem(x).relu())
        if self.fails:
            raise ValueError("the user's own")
        if not self.skip:
            x = self.extra(x)
        x = self.frozen(x).relu().mean((2, 3))
        if self.full_precision:
            with torch.autocast("cpu", enabled=False):
                return self.head(x.float())
        return self.head(x)


class Chain(nn.Sequential):
    """The smallest there is, as a root that calls its children."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def rows(batch: int = 4) -> Tensor:
    return torch.randn(batch, 4)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "residual": (Residual, image),
    "flat": (Flat, image),
    "tied": (Tied, rows),
    "skipping": (Skipping, image),
    "chain": (Chain, rows),
}


@cache
def _pair(name: str, large: int) -> tuple[nn.Module, nn.Module]:
    """Which weights are large, `inputs.LARGE`, is decided when gates are inserted."""
    assert large == inputs.LARGE
    torch.manual_seed(1)
    build, example = NETS[name]
    dense = trained(build())
    for parameter in dense.parameters():
        parameter.data *= 0.3 if parameter.dim() > 1 else 1.0  # no overflow in half precision
    gated = copy.deepcopy(dense)
    hg.insert_gates_(gated, example(), floor=2)
    return dense, gated


def pair(name: str, moved: bool = True, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module, Tensor]:
    """A dense network, the same with gates (their offsets `moved` apart, some units closed), and an input."""
    dense, gated = copy.deepcopy(_pair(name, inputs.LARGE))
    if moved:
        move_(gated)
    return dense.to(dtype), gated.to(dtype), NETS[name][1]().to(dtype)


@torch.no_grad()
def move_(gated: nn.Module) -> None:
    flat = inserted(gated).offset
    flat.copy_(torch.linspace(-2.6, 0.4, len(flat)))


def inserted(gated: nn.Module) -> Bank:
    bank = bank_of(gated)
    assert bank is not None
    return bank


def masked_parameters(gated: nn.Module) -> dict[str, Tensor]:
    """The dense network's parameters by name: each weight times the masks that `gate.mask()` gives, nothing clever."""
    bank, found = inserted(gated), dict[str, Tensor]()
    views = list(bank.views().values())
    for name, parameter in gated.named_parameters(remove_duplicate=False):
        if not name.startswith("headgate_") and ".parametrizations" not in f".{name}":
            found[name] = parameter
    for path, module in gated.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for leaf, masks in module.parametrizations.items():
            mask, weight = masks[0], masks.original
            assert isinstance(mask, MaskedWeight)
            for side in mask.sides:
                values = torch.cat([*(views[gate].mask() for gate in side.gates), torch.ones(1)])
                shape = [1] * weight.dim()
                shape[side.axis] = -1
                weight = weight * values[(side.index - 1) // 2].to(weight.dtype).view(shape)
            found[f"{path}.{leaf}" if path else leaf] = weight
    return found


def plain_forward(dense: nn.Module, gated: nn.Module, x: Tensor) -> Tensor:
    """The gated network's outputs by the plain formula, differentiable in the gated network's parameters."""
    return functional_call(dense, masked_parameters(gated), (x,))


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def expected_gradients(dense: nn.Module, gated: nn.Module, loss: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    """Those of the plain formula, on a copy."""
    twin = copy.deepcopy(gated)
    twin.zero_grad()
    loss(plain_forward(copy.deepcopy(dense).train(dense.training), twin, x)).backward()
    return gradients(twin)


def apart(left: dict[str, Tensor | None], right: dict[str, Tensor | None]) -> float:
    """The largest difference relative to the largest entry; infinite where one has a gradient and the other none."""
    assert left.keys() == right.keys()
    worst = 0.0
    for name, a in left.items():
        b = right[name]
        if a is None or b is None:
            # No gradient is as good as one of zeros: the plain formula connects what was not used to nothing.
            other = a if b is None else b
            worst = max(worst, 0.0 if other is None else float(other.abs().max()))
        else:
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)))
    return worst


def square(output: Tensor) -> Tensor:
    return output.float().square().mean() if output.dtype in (torch.half, torch.bfloat16) else output.square().mean()


def train(
    model: nn.Module, xs: list[Tensor], optimizer: torch.optim.Optimizer | None = None, strength: float = 0.5
) -> torch.optim.Optimizer:
    """One step per input, pushed by the penalty."""
    optimizer = optimizer or sgd(model)
    for x in xs:
        optimizer.zero_grad()
        (square(model(x)) + strength * hg.penalty(model)).backward()
        optimizer.step()
    return optimizer


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(hg.param_groups(model, lr=lr, offset_lr=0.05), momentum=0.9)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal_states(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
