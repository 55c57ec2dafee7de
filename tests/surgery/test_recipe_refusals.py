"""Recipes that do not fit, as objects and as JSON: refused in words before anything is touched."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headgate.errors import RecipeError
from headgate.surgery.apply import apply_recipe_
from headgate.surgery.recipe import (
    Cut,
    Empty,
    Read,
    Recipe,
    Resize,
    Write,
    fingerprint,
    named_tensors,
    recipe_on,
)
from headgate.surgery.recipe_json import recipe_from_json, recipe_to_json
from tests.small_nets import Residual, Tied, compacted, small_residual


def recipe(model: nn.Module) -> Recipe:
    found = recipe_on(model)
    assert found is not None
    return found


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


class TestRefusal:
    """A recipe that does not fit is refused before anything is touched."""

    BAD = (
        ({"cuts": (Cut("0.weight", 0, ((0, 5),)),)}, "outside"),
        ({"cuts": (Cut("0.weight", 0, ((2, 3), (0, 1))),)}, "ascending"),
        ({"cuts": (Cut("0.weight", 0, ((2, 2),)),)}, "ascending"),
        ({"cuts": (Cut("0.weight", 0, ((-1, 2),)),)}, "outside"),
        ({"cuts": (Cut("0.weight", 0, ()),)}, "keeps nothing"),
        ({"cuts": (Cut("0.weight", 2, ((0, 1),)),)}, "cuts axis 2"),
        ({"cuts": (Cut("9.weight", 0, ((0, 1),)),)}, "9.weight"),
        ({"cuts": (Cut("__class__", 0, ((0, 1),)),)}, "__class__"),
        ({"sizes": (Resize("0", "__class__", 3),)}, "no recipe may set"),
        ({"sizes": (Resize("0", "training", 1),)}, "no recipe may set"),
        ({"sizes": (Resize("0", "out_features", 5),)}, "may be 1 … 4"),
        ({"sizes": (Resize("0", "out_features", 0),)}, "may be 1 … 4"),
        ({"sizes": (Resize("0", "in_channels", 1),)}, "does not have"),
        ({"sizes": (Resize("0.__class__", "in_features", 1),)}, "does not have"),
        ({"writes": (Write("1", ((0, 4),), 4),)}, "no layer that can"),
        ({"writes": (Write("0.__init__", ((0, 4),), 4),)}, "no layer that can"),
        ({"writes": (Write("0", ((0, 4),), 2**40),)}, "it had 4 outputs"),
        ({"writes": (Write("0", ((0, 3),), 4),)}, "writes 4 outputs of 0 into 3 places"),
        ({"writes": (Write("0", ((0, 5),), 4),)}, "outside"),
        ({"reads": (Read("1", ((0, 4),), 4),)}, "no layer that can"),
        ({"reads": (Read("9", ((0, 4),), 4),)}, "no layer that can"),
        ({"reads": (Read("0.__init__", ((0, 3),), 3),)}, "no layer that can"),
        ({"reads": (Read("", ((0, 3),), 3),)}, "no layer that can"),
        ({"reads": (Read("0", ((0, 3),), 2**40),)}, "pick 3 of 1099511627776 channels; it had 3 inputs"),
        ({"reads": (Read("0", ((0, 2),), 3),)}, "pick 2 of 3 channels; it had 3 inputs, of which the cuts leave 3"),
        ({"reads": (Read("0", ((0, 4),), 3),)}, "outside"),
        ({"reads": (Read("0", (), 3),)}, "keeps nothing"),
        ({"reads": (Read("0", ((2, 3), (0, 2)), 3),)}, "ascending"),
        ({"gone": ("",)}, "removes the block"),
        ({"gone": ("5",)}, "removes the block"),
        ({"gone": ("0.__dict__",)}, "removes the block"),
        ({"scales": ("",)}, "fixes the gate"),
        ({"scales": ("0",)}, "fixes the gate"),
        ({"scales": ("0.__init__",)}, "fixes the gate"),
        ({"emptied": (Empty("", 1),)}, "no layer that it could empty"),
        ({"emptied": (Empty("1", 0),)}, "no layer that it could empty"),
        ({"emptied": (Empty("0.__init__", 1),)}, "no layer that it could empty"),
        ({"emptied": (Empty("0", 5),)}, "it had 4"),
        ({"emptied": (Empty("0", 0),)}, "it had 4"),
    )

    @pytest.mark.parametrize(("change", "words"), BAD)
    def test_it_raises_and_leaves_the_model(self, change: dict, words: str):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        before, text = shapes(model), repr(model)
        fine = Recipe(fingerprint(model), (Cut("2.weight", 0, ((0, 1),)),))
        bad = replace(fine, **{key: getattr(fine, key) + value for key, value in change.items()})
        with pytest.raises(RecipeError, match=words):
            apply_recipe_(model, bad)
        assert shapes(model) == before and repr(model) == text and recipe_on(model) is None

    def test_ties_must_be_cut_alike(self):
        model = Tied()
        with pytest.raises(RecipeError, match=r"first\.weight and second\.weight are one tensor"):
            apply_recipe_(model, Recipe(fingerprint(model), (Cut("first.weight", 0, ((0, 2),)),)))

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (lambda: Residual(width=10), r"stem\.weight has shape \[10, 2, 3, 3\] instead of \[8, 2, 3, 3\]"),
            (lambda: nn.Linear(2, 2), r"stem\.weight of shape .* is missing"),
            (lambda: nn.Sequential(Residual()), r"stem\.weight of shape .* is missing"),
        ],
    )
    def test_another_network_is_named_by_its_first_difference(self, other, words: str):
        with pytest.raises(RecipeError, match=words):
            apply_recipe_(other(), recipe(small_residual()))

    def test_one_tensor_too_many_is_another_network(self):
        model = Residual()
        model.extra = nn.Parameter(torch.ones(1))
        with pytest.raises(RecipeError, match="extra of shape"):
            apply_recipe_(model, recipe(small_residual()))


class TestJson:
    @pytest.mark.parametrize("make", [small_residual, lambda: compacted(Tied(), torch.randn(2, 4))])
    def test_it_survives(self, make):
        found = recipe(make())
        assert recipe_from_json(json.loads(json.dumps(recipe_to_json(found)))) == found

    VALUES = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )

    @given(VALUES, st.data())
    def test_anything_else_is_refused_in_words(self, value: object, data: st.DataObject):
        """Random JSON in place of a whole recipe, and in place of any one of its parts."""
        whole = recipe_to_json(Recipe((("a", (4, 4)),), (Cut("a", 0, ((0, 2),)),), (Resize("", "groups", 1),),
                                      (Write("a", ((0, 1),), 2),), ("b",), (Read("a", ((0, 1),), 2),)))  # fmt: skip
        path = data.draw(st.sampled_from(["whole", *whole]))
        candidate = value if path == "whole" else {**whole, path: value}
        try:
            accepted = recipe_from_json(candidate)
        except RecipeError as error:
            assert len(str(error)) < 500
        else:
            assert recipe_to_json(accepted) == candidate

    @pytest.mark.parametrize("place", ["places", "width", "code"])
    def test_a_reader_is_its_places_and_a_width(self, place: str):
        whole = recipe_to_json(Recipe((("a", (4, 4)),), reads=(Read("a", ((0, 1),), 2),)))
        assert whole["reads"] == {"a": {"places": [0, 1], "width": 2}}
        for wrong in ({**whole["reads"]["a"], place: "x"}, {place: 1}):
            with pytest.raises(RecipeError):
                recipe_from_json({**whole, "reads": {"a": wrong}})

    @pytest.mark.parametrize("number", [True, -1, 1.0, pytest.param(10**5000, id="huge"), "1", None, float("nan")])
    def test_only_plain_numbers_are_sizes(self, number: object):
        whole = recipe_to_json(Recipe((("a", (4, 4)),)))
        with pytest.raises(RecipeError):
            recipe_from_json({**whole, "dense": {"a": [4, number]}})
        with pytest.raises(RecipeError):
            recipe_from_json({**whole, "sizes": {"a": {"groups": number}}})
