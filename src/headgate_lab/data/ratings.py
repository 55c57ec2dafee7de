"""Ratings: who rated what how, as tensors; from lists of triples or from a CSV file of yours."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headgate_lab.data.places import DataError

Triple = tuple[str, str, float]
# Larger ratings cannot be squared and summed up in float32.
LARGEST = 1e12
# What heads call the three columns.
HEADS = ({"user", "userid", "user_id"}, {"item", "itemid", "item_id"}, {"rating"})


@dataclass(frozen=True)
class Ratings:
    """One rating an entry.

    Attributes:
        users: whose it is, whole numbers below `user_count`.
        items: of what, whole numbers below `item_count`.
        values: the ratings themselves, float32.
        user_count: of all users, those without a rating included.
        item_count: likewise.
    """

    users: Tensor
    items: Tensor
    values: Tensor
    user_count: int
    item_count: int

    def __len__(self) -> int:
        return len(self.values)

    def part(self, chosen: Tensor) -> Ratings:
        """Those at these places, among the same users and items."""
        return Ratings(
            self.users[chosen], self.items[chosen], self.values[chosen], self.user_count, self.item_count
        )  # fmt: skip


@dataclass(frozen=True)
class NamedRatings:
    """Ratings whose users and items have names: number n is called `user_names[n]`."""

    ratings: Ratings
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]


def from_triples(triples: Iterable[tuple[object, object, float]]) -> NamedRatings:
    """Users and items get numbers in the order in which they first come; names are the text of what was given.

    Example:
        >>> rated = from_triples([("ann", "tea", 5), ("bob", "tea", 2), ("ann", "milk", 1)])
        >>> rated.user_names, rated.ratings.items.tolist(), rated.ratings.values.tolist()
        (('ann', 'bob'), [0, 0, 1], [5.0, 2.0, 1.0])

    Raises:
        DataError: one is not a triple, has no rating within ±1e12, or rates again what was rated; its number, from 1,
            is named.
    """
    return _numbered((f"triple {number}", triple) for number, triple in enumerate(triples, start=1))


def read_csv(path: str | Path) -> NamedRatings:
    """The first three columns of a CSV file: user, item, rating. A first line whose third cell is a word is a head.

    Raises:
        DataError: the file cannot be read, or a line is none of these; the line is named.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _numbered(_lines(path, file))
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read: {error}") from error


def _lines(path: str | Path, file: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """What to call a line, and its first three cells; empty lines and the head are passed over."""
    reader, first = csv.reader(file), True
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where, cells = f"{path}, line {reader.line_num}", [cell.strip() for cell in cells]
            is_head, first = first and _is_head(where, cells), False
            if len(cells) < 3:
                raise DataError(f"{where}: user, item and rating are needed, with commas between, but there is {cells}")
            if not is_head:
                yield where, cells[:3]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error


def _numbered(named: Iterable[tuple[str, object]]) -> NamedRatings:
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    seen: dict[tuple[int, int], str] = {}
    values = []
    for where, given in named:
        user, item, value = _checked(where, given)
        pair = users.setdefault(user, len(users)), items.setdefault(item, len(items))
        if (before := seen.setdefault(pair, where)) != where:
            raise DataError(f"{where}: {user} has rated {item} already, in {before.rpartition(', ')[2]}; keep one")
        values.append(value)
    if not values:
        raise DataError("there are no ratings")
    pairs = torch.tensor(list(seen), dtype=torch.long)
    ratings = Ratings(pairs[:, 0], pairs[:, 1], torch.tensor(values), len(users), len(items))
    return NamedRatings(ratings, tuple(users), tuple(items))


def _is_head(where: str, cells: list[str]) -> bool:
    """Whether a first line names the columns: its third cell is a word, not a number that is wrong."""
    for cell, names in zip(map(str.lower, cells), HEADS, strict=False):
        if cell not in names and (elsewhere := names.intersection(map(str.lower, cells))):
            raise DataError(f"{where}: {elsewhere.pop()!r} is not where it should be; user, item, rating come first")
    return len(cells) >= 3 and any(letter.isalpha() for letter in cells[2]) and not _is_float(cells[2])


def _checked(where: str, given: object) -> Triple:
    if not isinstance(given, list | tuple) or len(given) < 3:
        raise DataError(f"{where}: user, item and rating are needed, but there is {given!r}")
    for name, part in zip(("user", "item"), given, strict=False):
        if part is None or part == "" or part != part:  # a NaN is how tables say that there is nothing
            raise DataError(f"{where}: the {name} is empty")
    if (number := _as_number(str(given[2]))) is None:
        raise DataError(f"{where}: the rating is {str(given[2])!r}, which is no number within ±{LARGEST:g}")
    return str(given[0]), str(given[1]), number


def _as_number(text: str) -> float | None:
    return float(text) if _is_float(text) and abs(float(text)) <= LARGEST else None


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
