"""Culprits are found with few trials, whoever they are; what is written alike is settled at once."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headgate.surgery.culprits import alike_in, culprits

NAMES = [f"layers.{i}.{part}" for i in range(8) for part in ("attention", "up")]


class Trials:
    """Fails where one of the bad ones is cut; counts."""

    def __init__(self, bad: set[str]) -> None:
        self.bad, self.count = bad, 0

    def __call__(self, names: list[str]) -> str | None:
        self.count += 1
        assert len(set(names)) == len(names)
        return "cannot" if self.bad & set(names) else None


def by_part(name: str) -> Hashable:
    return name.rpartition(".")[2]


@given(st.sets(st.sampled_from(NAMES)))
def test_exactly_the_culprits_are_found_one_by_one(bad: set[str]) -> None:
    assert culprits(NAMES, Trials(bad)) == dict.fromkeys(bad, "cannot")


@given(st.sets(st.sampled_from(NAMES)))
def test_what_is_written_alike_goes_together_only_if_its_ends_fail(bad: set[str]) -> None:
    found = culprits(NAMES, Trials(bad), by_part)
    for part in ("attention", "up"):
        alike = [name for name in NAMES if by_part(name) == part]
        ends = {alike[0], alike[-1]} <= bad
        assert {name for name in alike if name in found} == ({*alike} if ends else bad & {*alike})


def test_all_that_is_written_alike_takes_few_trials() -> None:
    bad = {name for name in NAMES if "attention" in name}
    one_by_one, at_once = Trials(bad), Trials(bad)
    assert culprits(NAMES, one_by_one) == culprits(NAMES, at_once, by_part)
    assert at_once.count == 5 and one_by_one.count > 20


def test_alike_is_the_same_layer_of_blocks_of_one_class() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.mlp = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    class Other(Block):
        pass

    model = nn.Sequential(Block(), Block(), Other(), nn.Linear(2, 2))
    kind = alike_in(model)
    assert kind("0.up") == kind("1.up") != kind("2.up")
    assert kind("0.mlp.0") == kind("1.mlp.0") != kind("0.mlp.2:write")
    assert kind("3") != kind("0.up")
