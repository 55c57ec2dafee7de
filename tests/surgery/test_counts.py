"""Numbers that a model's own code keeps: found by what they count, whatever they are called and whatever else fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from headgate.errors import RecipeError
from headgate.surgery.apply import apply_recipe_
from headgate.surgery.recipe import Recipe, Resize, fingerprint
from tests.attention_toys import WIDTH, between, merged
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, randomise_
from tests.toys import tokens

X = tokens().double()
COMMON = ("num_heads", "num_kv_heads", "head_dim")


class Grouped(nn.Module):
    """Grouped queries; heads, heads of keys and values, and the width of a head, under names of choice."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], left_open: bool = False) -> None:
        super().__init__()
        heads, shared, width = sizes
        self.names, self.left_open, self.scale, self.limit = names, left_open, width**-0.5, heads * width
        for name, size in zip(names, sizes, strict=True):
            setattr(self, name, size)
        self.q, self.o = nn.Linear(WIDTH, heads * width), nn.Linear(heads * width, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, shared * width), nn.Linear(WIDTH, shared * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : self.limit]
        heads, shared, width = (getattr(self, name) for name in self.names)
        width = -1 if self.left_open else width
        q = self.q(x).view(*x.shape[:2], heads, width).transpose(1, 2)
        k, v = (part(x).view(*x.shape[:2], shared, width).transpose(1, 2) for part in (self.k, self.v))
        return self.o(merged(F.scaled_dot_product_attention(q, k, v, scale=self.scale, enable_gqa=True)))


CASES: dict[str, tuple[Sequence[str], Sequence[int], bool]] = {
    "as many heads of keys as places": (COMMON, (6, 3, 3), False),
    "the same, widths left open": (COMMON, (6, 3, 3), True),
    "letters": (("h", "g", "d"), (4, 2, 3), False),
    "letters that say nothing, one number for all": (("a", "b", "c"), (4, 4, 4), False),
    "names that say something else": (("dim", "window", "num_heads"), (6, 3, 3), False),
}


@pytest.mark.parametrize("name", CASES)
def test_heads_and_places_go_exactly(name: str) -> None:
    names, (heads, shared, width), left_open = CASES[name]
    model: Any = randomise_(between(Grouped(*CASES[name]))()).double()
    gates = hg.insert_gates_(model, X, floor=1, order="random:3")
    places = {"k": width, "v": width} if left_open else {"k": width}
    found = {key.removeprefix("attention."): gate.n for key, gate in gates.items() if not key.endswith(":write")}
    assert found == {"q": shared, **places}
    with torch.no_grad():
        for site, left in {"q": shared - 1, **dict.fromkeys(places, 1)}.items():
            gates[f"attention.{site}"].offset.fill_(5 * (left - 0.5) / gates[f"attention.{site}"].n - 5)
    small: Any = hg.compact(model)
    assert error(outputs(model, X), outputs(small, X)) < LIMIT
    assert [getattr(small.attention, name) for name in names] == [heads // shared * (shared - 1), shared - 1, 1]


def test_a_number_that_nothing_needs_to_be_smaller_stays() -> None:
    """As many tokens are taken at most as there are channels; shorter examples do not show it."""
    model: Any = randomise_(between(Grouped(("h", "g", "d"), (4, 2, 3)))()).double()
    hg.insert_gates_(model, X, floor=1, where=lambda name, _: not name.endswith(":write"))
    move_offsets_(model, seed=1)
    small: Any = hg.compact(model)
    assert small.attention.limit == 12 > small.attention.q.out_features


def test_numbers_of_any_name_are_saved_and_loaded(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return between(Grouped(("a", "b", "c"), (4, 2, 3)))()

    model = randomise_(build()).double()
    hg.insert_gates_(model, X, floor=1)
    move_offsets_(model, seed=2)
    small = hg.compact(model)
    hg.save(small, tmp_path / "small.safetensors")
    loaded = hg.load(tmp_path / "small.safetensors", build)
    assert all(map(torch.equal, outputs(small, X), outputs(loaded, X)))


@pytest.mark.parametrize(("path", "attribute"), [("attention", "call_super_init"), ("attention.q", "odd")])
def test_recipes_set_no_others(path: str, attribute: str) -> None:
    model = between(Grouped(COMMON, (4, 2, 3)))()
    vars(model.get_submodule(path))[attribute] = 3
    with pytest.raises(RecipeError, match="which no recipe may set"):
        apply_recipe_(model, Recipe(fingerprint(model), sizes=(Resize(path, attribute, 2),)))
