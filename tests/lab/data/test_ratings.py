"""Ratings from triples and from files; what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.data.places import DataError
from headgate_lab.data.ratings import from_triples, read_csv


def written(folder: Path, text: str) -> Path:
    path = folder / "ratings.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "head", ["", "who,what,stars\n", "\ufeffuser,item,rating,time\n", "UserId,movieId,Rating (1-5)\r\n"]
)
def test_a_csv_with_or_without_a_head(head: str, tmp_path: Path) -> None:
    rated = read_csv(written(tmp_path, head + 'ann,"tea, green",5\n\nbob,milk,2.5,ignored\nann,milk, 1 \n'))
    assert rated.user_names == ("ann", "bob") and rated.item_names == ("tea, green", "milk")
    ratings = rated.ratings
    assert ratings.users.tolist() == [0, 1, 0] and ratings.items.tolist() == [0, 1, 1]
    assert ratings.values.tolist() == [5.0, 2.5, 1.0]
    assert (ratings.user_count, ratings.item_count, len(ratings)) == (2, 2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,x,1\nb,y,much\n", r"ratings.csv, line 2: the rating is 'much', which is no number"),
        (
            "u,i,r\na,x,1\n\nb,y\n",
            r"ratings.csv, line 4: user, item and rating are needed, with commas between, but there is \['b', 'y'\]",
        ),
        ("a,x,1\n,y,2\n", r"ratings.csv, line 2: the user is empty"),
        ("a,x,1\nb, ,2\n", r"ratings.csv, line 2: the item is empty"),
        ("a,x,1\nb,x,nan\n", r"line 2: the rating is 'nan'"),
        ("a,x,1\nb,x,inf\n", r"line 2: the rating is 'inf'"),
        ("a,x,1\nb,x,2\na,x,3\n", r"ratings.csv, line 3: a has rated x already, in line 1; keep one"),
        ("a,x,1\nb,x,1e39\n", r"line 2: the rating is '1e39', which is no number within ±1e\+12"),
        # A first line is a head only if its third cell can be the name of a column.
        ("a,x,\nb,x,2\n", r"line 1: the rating is ''"),
        ('a,x,"4,5"\nb,x,2\n', r"line 1: the rating is '4,5'"),
        ("a,x,nan\nb,x,2\n", r"line 1: the rating is 'nan'"),
        ("a,x,-inf\nb,x,2\n", r"line 1: the rating is '-inf'"),
        ("user,rating,item\na,1,7\n", r"line 1: 'item' is not where it should be; user, item, rating come first"),
        ("time,userId,itemId,rating\n5,1,7,3\n", r"line 1: 'userid' is not where it should be"),
        ("user;item;rating\na;x;1\n", r"line 1: user, item and rating are needed, with commas between, but there is"),
        ("user,item,rating\n", "there are no ratings"),
        ("", "there are no ratings"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_csv(written(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.csv cannot be read"):
        read_csv(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"a,b,\xff\xfe\n")
    with pytest.raises(DataError, match=r"bytes.csv cannot be read"):
        read_csv(tmp_path / "bytes.csv")


def test_triples() -> None:
    rated = from_triples([(7, "tea", 5), (8, "tea", 2)])
    assert rated.user_names == ("7", "8") and rated.ratings.values.tolist() == [5.0, 2.0]
    for wrong, message in (
        ([("a", "x", 1), ("a", "x")], "triple 2: user, item and rating are needed, but there is \\('a', 'x'\\)"),
        ([("a", "x", 1), 3], "triple 2: user, item and rating are needed, but there is 3"),
        ([("a", "x", None)], "triple 1: the rating is 'None'"),
        ([(None, "x", 1)], "triple 1: the user is empty"),
        ([("a", float("nan"), 1)], "triple 1: the item is empty"),
        ([("a", "x", 1), ("a", "x", 1)], "triple 2: a has rated x already, in triple 1"),
    ):
        with pytest.raises(DataError, match=message):
            from_triples(wrong)


def test_a_part_is_among_the_same_users() -> None:
    ratings = from_triples([("a", "x", 1), ("b", "y", 2), ("c", "x", 3)]).ratings
    part = ratings.part(ratings.values > 1)
    assert part.users.tolist() == [1, 2] and (part.user_count, part.item_count) == (3, 2)
