"""What of a table's settings is told in a remark instead of a column: what follows from other columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from headgate_lab.report.rows import Row

# Values, as words, of some fields of a setting.
Key: TypeAlias = tuple[str, ...]
# What takes more letters reads better as a column.
LONGEST = 60


def words(name: str) -> str:
    """A field's or metric's name, to read."""
    return name.replace("_", " ")


def value_of(setting: Mapping[str, Any], name: str) -> str:
    """A field's value, to read: nothing where it has none."""
    value = setting.get(name)
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def following(rows: Sequence[Row], shown: Sequence[str]) -> dict[str, str]:
    """Fields that the paper's lines do not have and that follow from those that are words, with what they are then.

    Lines of the paper that are measured tell nothing of such fields.
    The value that most have stands first, the others with the words that they belong to: `20, but 16 (slimming)`.
    """
    printed = {name for row in rows if row.place is not None for name in row.setting}
    kinds = [name for name in shown if all(isinstance(value, str | None) for value in _values(rows, name))]
    settings = [row.setting for row in rows if row.n]
    found = {}
    for name in shown:
        if name in printed or name in kinds:
            continue
        by_key = _by_fewest(settings, name, kinds)
        if by_key is not None and len(told := _told(by_key)) <= LONGEST:
            found[name] = told
    return found


def _values(rows: Iterable[Row], name: str) -> list[Any]:
    return [row.setting.get(name) for row in rows]


def _by_fewest(settings: Sequence[Mapping[str, Any]], name: str, kinds: Sequence[str]) -> dict[Key, str] | None:
    """The field's value by as few of the words as it follows from; None where it does not."""
    found = _by(settings, name, kinds)
    for kind in kinds if found is not None else ():
        fewer = [one for one in kinds if one != kind]
        if (without := _by(settings, name, fewer)) is not None:
            found, kinds = without, fewer
    return found


def _by(settings: Sequence[Mapping[str, Any]], name: str, kinds: Sequence[str]) -> dict[Key, str] | None:
    found: dict[Key, str] = {}
    for setting in settings:
        value = value_of(setting, name)
        if found.setdefault(tuple(value_of(setting, kind) for kind in kinds), value) != value:
            return None
    return found


def _told(by_key: Mapping[Key, str]) -> str:
    """What most have needs no words, unless some have nothing, of whom nothing is said."""
    keys: dict[str, list[str]] = {}
    for key, value in by_key.items():
        keys.setdefault(value, []).append(" ".join(filter(None, key)))
    usual, belonging = max(keys.items(), key=lambda item: len(item[1]))
    if len(keys) == 1:
        return usual
    others = ", ".join(f"{value} ({', '.join(whose)})" for value, whose in keys.items() if value)
    if "" in keys or len(belonging) == 1:
        return others
    del keys[usual]
    others = ", ".join(f"{value} ({', '.join(whose)})" for value, whose in keys.items())
    return f"{usual}, but {others}"
