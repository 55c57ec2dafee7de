"""The worked examples do what they say, in a few steps."""

from __future__ import annotations

import math

import pytest

from examples import character_model
from examples.character_model import CharacterModel, Text, compare, narrower, parameters


@pytest.fixture(scope="module")
def text() -> Text:
    return Text()


def test_a_character_model_is_made_small_on_the_way(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(character_model, "BATCH", 2)
    monkeypatch.setattr(text, "validation", text.validation[:2000])
    found = compare(text, params=0.4, steps=100, seed=0)
    full = parameters(CharacterModel(text.characters))
    assert found["whole"]["params"] == full
    assert 0.39 * full < found["by a budget"]["params"] <= 0.4 * full
    assert 0.98 < found["narrower"]["params"] / found["by a budget"]["params"] <= 1
    for of in found.values():
        # Better than guessing, and a speed.
        assert of["validation_loss"] < math.log(text.characters) and of["characters_per_second"] > 0


def test_no_narrower_network_is_that_small(text: Text) -> None:
    with pytest.raises(ValueError, match="only 100 parameters"):
        narrower(text, 100)
