"""Einsum: what stays is told by the letters of the user's own equation; one tensor is followed as two are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, randomise_
from tests.toys import tokens

X = tokens().double()
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class Joined(nn.Module):
    """Three maps of four heads of three, joined by einsum into something that a last map reads."""

    def __init__(self, product: Product, width: int = 12) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 12) for _ in range(3))
        self.out, self.product = nn.Linear(width, 2), product

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = (part(x).unflatten(-1, (4, -1)) for part in (self.a, self.b, self.c))
        return self.out(self.product(a, b, c).flatten(2))


def many(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bihd,bjhd,bjhe->bihe", a, b, c)


def diagonal(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bhwhw->bhw", (a[:, 0, :, :, None, None] * b[:, 0, None, None])).unsqueeze(1)


def summed_alone(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bihk, bjhe -> bih e", a, b)


def summed_with_what_was_normed(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    weights = torch.einsum("bihw,bjhw->bhij", nn.functional.layer_norm(a, (3,)), b).softmax(-1)
    return torch.einsum("bhij,bjhw->bihw", weights, c)


def hidden_by_dots(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bi...->bi", a).unsqueeze(-1) * b.flatten(2)


@pytest.mark.parametrize(
    ("product", "said"),
    [
        (
            many,
            "einsum: is a product of many tensors; written as products of two it can be followed ('bihd,bjhd,bjhe->",
        ),
        (diagonal, "einsum: takes a diagonal ('bhwhw->bhw')"),
        (summed_alone, "sums over channels without a weight that could be masked (k of 'bihk, bjhe -> bih e')"),
        (summed_with_what_was_normed, "reads channels that cannot be removed (w of 'bihw,bjhw->bhij')"),
        (hidden_by_dots, "sums over channels without a weight that could be masked (... of 'bi...->bi')"),
    ],
)
def test_what_stays_is_told_by_letters_of_the_equation(product: Product, said: str) -> None:
    plan = hg.find_groups(Joined(product), X.float())
    reasons = {str(why) for refusal in plan.refusals for why in refusal.obstacles}
    assert any(said in why for why in reasons), reasons


def by_one(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bihd->bih", a).unsqueeze(-1) * torch.einsum("bihd->bhid", b).transpose(1, 2)


def test_one_tensor_is_followed() -> None:
    plan = hg.find_groups(Joined(by_one), X.float())
    assert {group.name: group.size for group in plan.groups} == {"b": 3}
    model = randomise_(Joined(by_one)).double()
    hg.insert_gates_(model, X, floor=1, order="random:1")
    move_offsets_(model, seed=1)
    small = hg.compact(model)
    assert small.b.out_features < 12 and error(outputs(model, X), outputs(small, X)) < LIMIT
