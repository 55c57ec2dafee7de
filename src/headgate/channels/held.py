"""Attention of which only heads can go, or only places of heads: what there is to say of the other ones.

A channel of queries, keys or values is a head and a place. If one of the two must stay the channel goes with the other,
so that no axis of a tensor is left whole, and nobody would hear why all heads keep their width, or all heads are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headgate.channels.factors import ONE_SHRINKS, Factors
from headgate.channels.obstacle import Obstacle

HEADS, PLACES = "heads", "places of heads"

_ADVICE = {
    "output": "; if these are attention weights, head by head: without them among the outputs heads could go",
    "mean": "; if these are attention weights, averaged over heads: without them heads could go",
}

_HEADS_LAST = "; these are heads, which come last here: with view(…, heads, width) their places could go too"


@dataclass(frozen=True)
class Held:
    """`size` heads, or places of heads, that stay, whether or not the axes that carry them shrink; and why."""

    what: str
    axes: frozenset[tuple[str, int]]
    size: int
    obstacles: tuple[Obstacle, ...]


@dataclass(frozen=True)
class Found:
    """By label: what plain ties connect, what all entries connect, and which of the latter stay, with reasons."""

    tied: Tensor
    roots: Tensor
    fixed: Tensor
    obstacles: Mapping[int, Sequence[Obstacle]]


def held_back(
    factors: Factors,
    heads: Mapping[str, Sequence[Tensor]],
    of: Found,
    starts: Mapping[tuple[str, int], tuple[int, int]],
) -> tuple[Held, ...]:
    """Heads and places that stay while the others of the two go; heads also where something could be done about it.

    `heads` are labels along axes that two activations share when they are multiplied, by the path of the module that
    does it; `starts` gives, for each axis of a tensor, its first label and how many there are.
    """
    if not factors.splits or not heads:
        return ()
    noted = torch.cat([labels for own in heads.values() for labels in own])
    is_head = _among(noted, of.roots)
    # What goes with heads need not be heads itself: the last axis is, if plain ties say so.
    is_plain_head = _among(noted, of.tied)
    found: dict[tuple[str, int, tuple[Obstacle, ...]], frozenset[tuple[str, int]]] = {}
    labels, parts = factors.together()
    for *leading, last in factors.splits.values():
        heads_last = bool(is_plain_head[of.tied[last]].any())
        places = leading[-1] if heads_last else last
        own = [last] if heads_last else [axis for axis in leading if bool(is_head[of.roots[axis]].any())]
        for what, axis, other in [(HEADS, axis, places) for axis in own] + [(PLACES, places, places) for _ in own[:1]]:
            stays = axis[of.fixed[of.roots[axis]]]
            carried = labels[_among(stays, of.roots)[of.roots[parts]].any(1)]
            why, plain = _advised(stays, other, of, heads), _reasons(stays, of)
            if what == PLACES and heads_last:
                why = tuple(replace(one, reason=one.reason + _HEADS_LAST * (one.reason == ONE_SHRINKS)) for one in why)
            if why and ({*why} != {*plain} or bool((~of.fixed[of.roots[carried]]).any())):
                key = (what, len(stays), why)
                found[key] = found.get(key, frozenset()) | _carrying(carried, labels, parts, of.tied, starts)
    return tuple(Held(what, axes, size, why) for (what, size, why), axes in found.items())


def _among(labels: Tensor, roots: Tensor) -> Tensor:
    """Of every root whether one of these labels has it."""
    marked = torch.zeros(len(roots), dtype=torch.bool)
    marked[roots[labels]] = True
    marked[0] = False
    return marked


def _reasons(labels: Tensor, of: Found) -> tuple[Obstacle, ...]:
    """The obstacles of these labels, each once."""
    roots = dict.fromkeys(of.roots[labels].tolist())
    return tuple(dict.fromkeys(obstacle for root in roots for obstacle in of.obstacles.get(root, ())))


def _advised(labels: Tensor, other: Tensor, of: Found, paths: Iterable[str]) -> tuple[Obstacle, ...]:
    """The same, those within an attention first, with what to do about such that other labels do not have."""
    shared = _reasons(other, of)

    def is_within(why: Obstacle) -> bool:
        return any(why.path == path or why.path.startswith(f"{path}.") for path in paths)

    def advised(why: Obstacle) -> Obstacle:
        advice = _ADVICE.get(why.operation, "") if is_within(why) and why not in shared else ""
        return replace(why, reason=why.reason + advice)

    return tuple(map(advised, sorted(_reasons(labels, of), key=lambda why: not is_within(why))))


def _carrying(
    carried: Tensor, labels: Tensor, parts: Tensor, tied: Tensor, starts: Mapping[tuple[str, int], tuple[int, int]]
) -> frozenset[tuple[str, int]]:
    """The axes of tensors with these labels, or with what these are factors of: one projection of all three, say."""
    marked = torch.zeros(len(tied), dtype=torch.bool)
    while not bool(marked[tied[carried]].all()):
        marked[tied[carried]] = True
        marked[0] = False
        carried = labels[marked[tied[parts]].any(1)]
    return frozenset(axis for axis, (start, size) in starts.items() if bool(marked[tied[start : start + size]].any()))
