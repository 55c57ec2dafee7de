"""From a gated model to a smaller one that computes the same."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headgate.bank import bank_of
from headgate.channels.example import Example
from headgate.channels.running import not_running
from headgate.errors import ArgumentError, CompactionError, ConfigError, GateError
from headgate.gated import gated_parts, refuse_gated_parts, require_gates, unwrap
from headgate.surgery.claim import is_on_the_way
from headgate.surgery.configuration import configuration_of
from headgate.surgery.constants import CarrierError, Closed, carry_constants_
from headgate.surgery.decided import carrying, decided
from headgate.surgery.evaluation import evaluated, tolerance_of
from headgate.surgery.fit_config import follow_
from headgate.surgery.hand import (
    Narrowing,
    Outputs,
    Unremovable,
    cut_placed_gates_,
    fix_placed_gates_,
    narrowed,
    placed_gates,
)
from headgate.surgery.insert import INSERTION, Insertion, discard_gates_
from headgate.surgery.misuse import warn_of_a_cut_on_the_way
from headgate.surgery.rollback import undone_on_failure
from headgate.surgery.shrink import shrink_
from headgate.surgery.trial import difference, in_double, made_in_double
from headgate.unmask import folded_weights, write_all_


@torch.no_grad()
def compact(
    model: nn.Module, example: Any = None, *, outputs: Outputs = "full", unremovable: Unremovable = "refuse"
) -> nn.Module:
    """A new, smaller model of the same class without gates, whose outputs are those of the gated model.

    What inserted gates closed goes. What hand-placed `Gate` layers closed goes where everything that reads it reads
    zeros; each of them becomes a `headgate.layers.Scale` by the rest of its mask, or an identity where that is ones.
    Where the model keeps the configuration that it was built from, the small one gets its own with the numbers that
    express it, as `fit_config_` sets them; where there are none, that is logged and the configuration stays as it was.

    Args:
        model: a model with gates; wrapped in DDP or torch.compile is fine. It is left as it is.
        example: what to compare on; by default the example the gates were inserted with. Where all gates were placed
            by hand it is needed: nobody knows yet what reads them.
        outputs: what a hand-placed gate closed of the channels that the model returns stays as zeros ("full"), or is
            no longer returned ("narrow").
        unremovable: whether a hand-placed gate that closed something that cannot be removed exactly is refused by
            name ("refuse"), or keeps it as zeros ("scale").

    Raises:
        ArgumentError: an unknown option, or an example that the model does not run on.
        CompactionError: the outputs differ by more than float rounding allows for the dtype.
        GateError: no gates, an offset that is NaN, a gate that closed all of a group, of which one unit must stay, or a
            hand-placed gate that cannot be removed, by name.
        ShapeError: a hand-placed gate does not fit the tensor that it meets, by its path.
        TraceError: torch.export cannot trace a model with hand-placed gates.

    Warns:
        HeadgateWarning: a budget steers the gates and is not met yet.
    """
    _check_options(outputs, unremovable)
    root = unwrap(model, "compact")
    refuse_gated_parts(root, "compact", "compact({}) is its smaller twin, to be put in its place")
    by_hand = bool(placed_gates(root))
    insertion = insertion_of(root, "compact") if bank_of(root) is not None or not by_hand else None
    if insertion is None and example is None:
        raise GateError(
            f"compact: the gates of {type(root).__name__} were placed by hand; give an example input, compact(model, "
            "example), to find out what reads them"
        )
    if (bank := bank_of(root)) is not None and is_on_the_way(bank):
        warn_of_a_cut_on_the_way()
    small = copy.deepcopy(root)
    if insertion is not None:
        units, keep = decided(root, insertion, "compact")
        _fold_inserted_(small)
        _carry_(small, insertion, carrying(root, insertion, units))
        shrink_(small, insertion.plan, keep)
    given = insertion.example.following(small) if insertion and example is None else Example.of(example)
    variants = list(_variations(given))
    # Before anything looks at gates that were placed by hand: they may not fit the tensors that they meet.
    expected = [_expected(root, variant) for variant in variants]
    narrowing = cut_placed_gates_(small, given, outputs, unremovable) if by_hand else ()
    for variant, wanted in zip(variants, expected, strict=True):
        _check_equal(root, small, variant, wanted, narrowing)
    _let_config_follow_(small, given)
    return small


def _let_config_follow_(small: nn.Module, example: Example) -> None:
    """Where the model has a configuration; what that cannot express is told to whoever listens."""
    if (configuration := configuration_of(small)) is not None:
        try:
            follow_(small, configuration, example)
        except ConfigError as error:
            logging.getLogger("headgate").warning("compact: %s", error)


def _fold_inserted_(model: nn.Module) -> None:
    """Moves the masks of inserted gates into the weights; hand-placed gates stay."""
    values = folded_weights(model)
    discard_gates_(model)
    write_all_(values)


def _carry_(small: nn.Module, insertion: Insertion, closed: list[Closed]) -> None:
    """What gates before norms have closed, and left these as constants, is passed on by what stays of it."""
    if closed:
        try:
            carry_constants_(small, insertion.plan, closed, insertion.example.following(small))
        except CarrierError as error:
            raise CompactionError(
                f"compact: constants that gates before a norm left behind cannot be carried by one channel: {error}"
            ) from error


def _check_options(outputs: str, unremovable: str) -> None:
    for name, value, known in (("outputs", outputs, Outputs), ("unremovable", unremovable, Unremovable)):
        if value not in get_args(known):
            raise ArgumentError(f"compact: {name}={value!r} is unknown; use one of {', '.join(get_args(known))}")


@torch.no_grad()
def remove_gates_(model: nn.Module) -> None:
    """Moves the masks into the weights and takes the gates off: the same function, full size, plain modules.

    A hand-placed gate does not know the weights that read it: it becomes a `headgate.layers.Scale` by its mask, or an
    identity where that is all ones.
    """
    root = unwrap(model, "remove_gates_")
    require_gates(root, "remove_gates_")
    gated = gated_parts(root, "remove_gates_").values()
    values = [value for part in gated for value in folded_weights(part)]
    with undone_on_failure(root):
        for part in gated:
            discard_gates_(part)
        fix_placed_gates_(root, "remove_gates_")
        write_all_(values)


def insertion_of(root: nn.Module, operation: str) -> Insertion:
    """What was decided at insertion."""
    insertion = getattr(root, INSERTION, None)
    if not isinstance(insertion, Insertion):
        raise GateError(f"{operation}: no gates were inserted into {type(root).__name__}; use insert_gates_ first")
    return insertion


def _variations(example: Example) -> Iterator[Example]:
    """The example itself, and once more with other numbers in its floating tensors."""
    yield example

    def other(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.flip(tuple(range(leaf.dim()))) * 0.5
        return leaf

    yield Example(tree_map(other, example.args), tree_map(other, example.kwargs))


def _expected(gated: nn.Module, example: Example) -> Any:
    try:
        return evaluated(gated, example)
    except Exception as error:
        raise not_running(gated, example, "compact", error) from error


def _check_equal(gated: nn.Module, small: nn.Module, example: Example, outputs: Any, narrowing: Narrowing) -> None:
    expected = narrowed(outputs, narrowing)
    tolerance = tolerance_of(small, expected)
    try:
        problem = difference(expected, narrowed(evaluated(small, example), ()), tolerance)
        if problem is not None:
            # What a GPU rounds to ten bits (TF32) differs by more: only arithmetic without such rounding tells.
            problem = _difference_in_double(gated, small, example, narrowing, tolerance)
    except Exception as error:
        problem = f"it does not run on the example ({type(error).__name__}: {error})"[:300]
    if problem is not None:
        raise CompactionError(
            f"compact: the smaller {type(small).__name__} does not compute what the gated one computes: {problem} "
            f"(allowed: {tolerance:g}); please report the model"
        )


def _difference_in_double(
    gated: nn.Module, small: nn.Module, example: Example, narrowing: Narrowing, tolerance: float
) -> str | None:
    gated, small = copy.deepcopy(gated).double(), copy.deepcopy(small).double()
    given = in_double(example)
    with made_in_double():
        expected, got = evaluated(gated, given), evaluated(small, given)
    return difference(narrowed(expected, narrowing), narrowed(got, ()), tolerance)
