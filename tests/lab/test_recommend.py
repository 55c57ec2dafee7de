"""A user's own ratings to a recommender that predicts, is small, and can be saved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.recommender import error_of, invented, main, split
from headgate_lab.data.places import DataError
from headgate_lab.data.ratings import NamedRatings, from_triples
from headgate_lab.recommend import FLOOR, Recommender, train_recommender
from headgate_lab.recommender_file import KEY


@pytest.fixture(scope="module")
def halves() -> tuple[NamedRatings, NamedRatings]:
    return split(invented(80, 60), seed=0)


@pytest.fixture(scope="module")
def trained(halves: tuple[NamedRatings, NamedRatings]) -> Recommender:
    return train_recommender(halves[0], epochs=40, most=20)


def test_it_learns_and_gets_small(trained: Recommender, halves: tuple[NamedRatings, NamedRatings]) -> None:
    ours, mean = error_of(trained, halves[1])
    assert ours < 0.9 * mean
    assert FLOOR <= trained.dimension < 100
    assert trained.network.head.output.in_features == trained.dimension


def test_the_same_seed_ends_the_same(halves: tuple[NamedRatings, NamedRatings]) -> None:
    told: list[tuple[int, float, int]] = []
    before = torch.get_rng_state()
    one = train_recommender(halves[0], epochs=6, watch=lambda *now: told.append(now))
    other = train_recommender(halves[0], epochs=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert [epoch for epoch, _, _ in told] == [1, 2, 3, 4, 5, 6] and told[5][1] < told[0][1]
    assert all(torch.equal(a, b) for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True))


def test_any_strength_leaves_a_network(halves: tuple[NamedRatings, NamedRatings]) -> None:
    recommender = train_recommender(halves[0], epochs=2, strength=1e4)
    assert recommender.dimension == FLOOR
    assert train_recommender(halves[0], epochs=1, strength=0.0).dimension == 128


def test_what_was_saved_predicts_the_same(trained: Recommender, tmp_path: Path) -> None:
    trained.save(tmp_path / "recommender.safetensors")
    loaded = Recommender.load(tmp_path / "recommender.safetensors")
    pairs = ["user 1", "user 2", "nobody"], ["item 3", "nothing", "item 4"]
    assert torch.equal(loaded.predict(*pairs), trained.predict(*pairs))
    assert loaded.rated.user_names == trained.rated.user_names and loaded.dimension == trained.dimension


def test_predictions(trained: Recommender) -> None:
    found = trained.predict(["user 1", "nobody", "nobody"], ["item 3", "item 3", "nothing"])
    assert found.shape == (3,) and bool(((found >= 1) & (found <= 5)).all())
    assert trained.predict([], []).shape == (0,)
    # One by one or together is the same.
    assert trained.predict(["user 1"], ["item 3"])[0] == pytest.approx(float(found[0]), abs=1e-5)
    with pytest.raises(ValueError, match="2 users, but 1 items"):
        trained.predict(["a", "b"], ["x"])
    with pytest.raises(ValueError, match="'user 1' and 'item 3' must be lists"):
        trained.predict("user 1", "item 3")


def test_a_csv_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\n" + "".join(f"{u},{i},{1 + (u * i) % 3}\n" for u in range(8) for i in range(7)))
    recommender = train_recommender(path, epochs=1)
    assert recommender.levels.tolist() == [1.0, 2.0, 3.0]
    assert recommender.predict([3], [4]).shape == (1,)
    some = torch.arange(8)
    torch.nn.init.constant_(recommender.network.head.output.bias, 2.0)  # predictions within the range
    known = recommender.predict(some.tolist(), [4] * 8)
    assert torch.equal(recommender.predict(some, torch.full((8,), 4)), known)
    assert not torch.equal(recommender.predict(["nobody"] * 8, [4] * 8), known)
    recommender.save(tmp_path / "a.safetensors")
    assert Recommender.load(tmp_path / "a.safetensors").predict([3], [4]) == recommender.predict([3], [4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"strength": -1.0}, "strength=-1"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"strength": float("inf")}, "strength=inf"),
        ({"strength": "1"}, "strength='1'"),
        ({"strength": 1e30}, r"strength=1e\+30 must be a number, 0 or more, and at most 1e\+12"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"epochs": "3"}, "epochs='3'"),
        ({"most": 0}, "most=0"),
        ({"most": 2.5}, "most=2.5"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"seed": 2**60}, "seed=1152921504606846976 must lie within"),
    ],
)
def test_numbers_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_recommender([("a", "x", 1), ("b", "x", 2)], **wrong)


def test_the_scale_of_ratings_does_not_matter(halves: tuple[NamedRatings, NamedRatings]) -> None:
    ratings = halves[0].ratings
    large = NamedRatings(replace(ratings, values=1000 * ratings.values - 7), halves[0].user_names, halves[0].item_names)
    told: list[float] = []
    one, other = (
        train_recommender(rated, epochs=3, watch=lambda _, loss, __: told.append(loss)) for rated in (halves[0], large)
    )
    assert told[3:] == pytest.approx([1e6 * loss for loss in told[:3]], rel=1e-3)
    pairs = [f"user {number}" for number in range(40)], [f"item {number}" for number in range(40)]
    torch.testing.assert_close(other.predict(*pairs), 1000 * one.predict(*pairs) - 7, rtol=1e-2, atol=1)


def test_a_short_training_predicts_no_worse_than_the_mean() -> None:
    """Not the lowest rating, at which a network begins that has to learn the mean first."""
    train, held = split(invented(20, 15), seed=0)
    ours, mean = error_of(train_recommender(train, epochs=2), held)
    assert ours < 1.1 * mean


def test_ratings_that_teach_nothing() -> None:
    with pytest.raises(DataError, match="all 2 ratings are 3"):
        train_recommender(from_triples([("a", "x", 3), ("b", "x", 3)]))
    one = from_triples([("a", "x", 3)])
    with pytest.raises(DataError, match="there are no ratings"):
        train_recommender(split(one, seed=0)[0])


def test_the_example_refuses_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["recommender.py", "--save", str(tmp_path / "nowhere" / "a.safetensors")])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr()
    assert "nowhere does not exist" in told.err and not told.out


@pytest.mark.parametrize("damage", ["missing", "short", "text", "foreign", "users", "network"])
def test_damaged_files_are_refused(damage: str, trained: Recommender, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    trained.save(path)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage in ("short", "text"):
        path.write_bytes(whole[:-100] if damage == "short" else b"hello")
    else:
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            told = file.metadata()
        tensors = load_file(path)
        if damage == "users":
            tensors["users"] = tensors["users"] + 1000
        if damage == "network":
            del tensors["network.layers.1.mix"]
        save_file(tensors, path, None if damage == "foreign" else told)
    with pytest.raises(DataError, match=r"a.safetensors is damaged or no saved recommender"):
        Recommender.load(path)


def told_otherwise(key: str, value: Any) -> Any:
    return lambda tensors, told: told.update({key: value})


def tensor_otherwise(key: str, change: Any) -> Any:
    return lambda tensors, told: tensors.update({key: change(tensors[key])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor_otherwise("levels", lambda levels: levels[:-1]), "not among its levels"),
        (tensor_otherwise("levels", lambda levels: levels.flip(0)), "not among its levels"),
        (tensor_otherwise("levels", lambda levels: torch.cat([levels, levels[-1:] + 1])), "for 5 different .* are 6"),
        (tensor_otherwise("levels", lambda levels: levels.double()), "not among its levels"),
        (tensor_otherwise("levels", lambda levels: levels.unsqueeze(1)), "not among its levels"),
        (tensor_otherwise("values", lambda values: values - 0.5), "not among its levels"),
        (tensor_otherwise("values", lambda values: values * torch.nan), "not among its levels"),
        (tensor_otherwise("users", lambda users: users.float()), "do not fit together"),
        (tensor_otherwise("users", lambda users: users[:1].expand(len(users))), "more than one rating of a pair"),
        (tensor_otherwise("network.head.output.weight", lambda weight: weight * torch.nan), "not finite"),
        (
            tensor_otherwise("network.head.hidden.weight", lambda weight: weight[:0]),
            "head.hidden.weight has no numbers",
        ),
        (told_otherwise("users", "abc"), "no list of different texts"),
        (told_otherwise("items", ["x", "x"]), "no list of different texts"),
        (told_otherwise("most", 0), "number of neighbours is 0"),
        (told_otherwise("most", "many"), "number of neighbours is 'many'"),
    ],
)
def test_files_that_say_what_cannot_be(change: Any, message: str, trained: Recommender, tmp_path: Path) -> None:
    """Nothing that loads fails, or predicts nonsense, only when it is asked."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    trained.save(path)
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()[KEY])
    tensors = load_file(path)
    change(tensors, told)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {KEY: json.dumps(told)})
    with pytest.raises(DataError, match=rf"a.safetensors is .*{message}"):
        Recommender.load(path)
