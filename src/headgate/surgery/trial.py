"""Proof before training: which groups can really be removed from this model, tried on a randomised copy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from headgate.channels.example import Example
from headgate.channels.held import HEADS
from headgate.channels.plan import Plan
from headgate.layers import without_fast_paths
from headgate.surgery.advice import advised
from headgate.surgery.counts import with_fitting_counts
from headgate.surgery.culprits import alike_in, culprits
from headgate.surgery.differing import DIFFERS, where_it_differs, where_it_fails
from headgate.surgery.keep import (
    Keep,
    branch_mask,
    chosen,
    random_vectors,
    reader_mask,
    sites,
    stream_mask,
)
from headgate.surgery.places import with_fitting_places
from headgate.surgery.shrink import shrink_

TOLERANCE = 1e-9
# Two, since one can be fooled: what should have been cut may happen to broadcast.
TRIALS = (0, 1)
# Of so many units two groups always lose equally many.
_FEW = (2, 3)

Left = Callable[[Any], Any]


def failure(drawn: nn.Module, example: Example, plan: Plan, keep: Keep) -> str | None:
    """Why removing these units would change what the model computes, or None if it would not.

    Silences the units on a copy, cuts them, and compares the outputs. `drawn` is a `randomised` copy of the model: a
    fresh model hides wrong surgery (scales of zero, shifts of zero).
    """
    masked = copy.deepcopy(drawn)
    silence_(masked, plan, keep)
    # Cutting makes new parameters; only buffers might be written into by the model's own code.
    small = copy.deepcopy(masked, {id(parameter): parameter for parameter in masked.parameters()})
    return problem_of(masked, small, plan, keep, in_double(example))


def problem_of(
    whole: nn.Module, small: nn.Module, plan: Plan, keep: Keep, example: Example, left: Left | None = None
) -> str | None:
    """Cuts `small` and says why it does not compute what the whole model does, with the module at fault if it shows.

    `left` picks what is left of the whole model's outputs; by default all of them.
    """
    try:
        expected = run_in_double(whole, example)
    except Exception as error:
        return f"the model does not run in float64, where this is tried ({type(error).__name__}: {_first_line(error)})"
    if not any(isinstance(leaf, Tensor) and leaf.numel() for leaf in tree_flatten(expected)[0]):
        return "the model returns nothing on the example that could be compared"
    try:
        shrink_(small, plan, keep)
    except Exception as error:
        return f"it cannot be cut ({type(error).__name__}: {_first_line(error)})"
    with made_in_double():
        try:
            got = run_in_double(small, example)
        except Exception as error:
            return where_it_fails(small, example, error)
        problem = difference(left(expected) if left else expected, got, TOLERANCE)
        return None if problem is None else problem + where_it_differs(whole, small, example, TOLERANCE)


def proven(model: nn.Module, example: Example, plan: Plan) -> Plan:
    """The plan with only those sites that can be cut, all at once; the others stay, with what happened.

    Two joint trials, in each of which every other branch that may leave is silent and all else is narrow. On failure
    what can be narrow and what can be silent is found out one after the other, halved until the culprits are found;
    unless the model disagrees with itself, or does not run, when nothing is removed at all.
    """
    drawn = randomised(model, seed=0)
    if _all_at_once(drawn, example, plan):
        return plan
    if (hopeless := failure(drawn, example, plan, chosen(plan, {}))) is not None:
        return plan.without(dict.fromkeys(sites(plan), f"even with nothing removed {hopeless}"))

    def problem(names: list[str], plan: Plan) -> str | None:
        tries = (chosen(plan, keep) for keep in _tries(plan, names))
        return next((found for keep in tries if (found := failure(drawn, example, plan, keep))), None)

    if any(map(plan.is_inner, plan.groups)):
        plan = with_fitting_places(model, plan, problem)
        if _all_at_once(drawn, example, plan):
            return plan
    fitting = with_fitting_counts(plan, problem)
    found = culprits(_cuttable(plan), lambda names: problem(names, fitting), alike_in(model))
    return _proven_silent(drawn, example, fitting.without(advised(fitting, found)))


def _all_at_once(drawn: nn.Module, example: Example, plan: Plan) -> bool:
    """Whether everything can be narrow together, and every other branch that may leave silent."""
    joint = (keep | silent(plan, leaving(plan)[n::2]) for n, keep in enumerate(_tries(plan, _cuttable(plan))))
    return all(failure(drawn, example, plan, chosen(plan, keep)) is None for keep in joint)


def _cuttable(plan: Plan) -> list[str]:
    return [name for name, site in sites(plan).items() if site.size > 1]


def _tries(plan: Plan, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Decisions in which all of these are narrow, in several ways.

    Heads have few places, of which queries and values may lose equally many by chance: at last only every other one of
    such groups is narrow; and where there are as few heads as places, all heads are kept.
    """
    known = sites(plan)
    for seed in TRIALS:
        yield random_vectors([known[name] for name in names], seed)
    inner = [group.name for group in plan.groups if group.name in names and plan.is_inner(group)]
    if len(inner) > 1:
        yield random_vectors([known[name] for name in names if name not in inner[1::2]], TRIALS[0])
    few = {group.name for group in plan.groups if plan.parts_of_heads(group) == HEADS and group.size in _FEW}
    if few.intersection(names) and any(known[name].size in _FEW for name in inner):
        yield random_vectors([known[name] for name in names if name not in few], TRIALS[0])


def leaving(plan: Plan) -> list[str]:
    """The branches, by name, that may leave without a trace once they are silent."""
    return [branch.name for branch in plan.branches if branch.block is not None or branch.inner]


def silent(plan: Plan, names: list[str]) -> dict[str, Tensor]:
    """These branches write nothing."""
    return {branch.name: torch.zeros(branch.size, dtype=torch.bool) for branch in plan.branches if branch.name in names}


def _proven_silent(drawn: nn.Module, example: Example, plan: Plan) -> Plan:
    """The plan in which only those branches leave without a trace, once silent, for which a trial confirms it."""
    failed = culprits(leaving(plan), lambda names: failure(drawn, example, plan, chosen(plan, silent(plan, names))))
    stay = (replace(b, block=None, inner=()) if b.name in failed else b for b in plan.branches)
    return replace(plan, branches=tuple(stay))


def difference(expected: Any, got: Any, tolerance: float) -> str | None:
    """In words, how two nested outputs differ by more than `tolerance` relative to the largest entry, or None."""
    ours, theirs = tree_flatten(expected)[0], tree_flatten(got)[0]
    if len(ours) != len(theirs):
        return f"it returns {len(theirs)} tensors instead of {len(ours)}"
    for left, right in zip(ours, theirs, strict=True):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            continue
        if left.shape != right.shape:
            return f"an output has shape {tuple(right.shape)} instead of {tuple(left.shape)}"
        if not (error := _error(left, right)) <= tolerance:
            return f"{DIFFERS} by {error:.1e} of their size"
    return None


def _error(left: Tensor, right: Tensor) -> float:
    """The largest difference relative to the largest entry; whole numbers and truth values are equal or not."""
    if not left.numel():
        return 0.0
    if not (left.is_floating_point() or left.is_complex()):
        return 0.0 if torch.equal(left, right) else math.inf
    return (left - right).abs().max().item() / max(left.abs().max().item(), 1e-30)


@torch.no_grad()
def randomised(model: nn.Module, seed: int) -> nn.Module:
    """A float64 copy in evaluation mode with every floating tensor drawn at random, statistics positive."""
    # Without gradients: moved with them, recurrent modules whose weights are computed could not be copied again.
    twin = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*twin.named_parameters(), *twin.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        if tensor.dim() >= 2:
            fan_in = max(1, tensor[0].numel())
            tensor.copy_((noise - 0.5) * (12 / fan_in) ** 0.5)
        elif name.endswith(("running_mean", "bias")):
            tensor.copy_(noise - 0.5)
        else:
            tensor.copy_(noise + 0.5)
    return twin


@torch.no_grad()
def silence_(model: nn.Module, plan: Plan, keep: Keep) -> None:
    """Multiplies what goes by zero: groups and readers where they are summed over, branches on the rows they write."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    masks = {axis: stream_mask(plan, keep, axis) for group in plan.groups for axis in group.readers}
    todo = [*masks.items(), *((axis, branch_mask(branch, keep)) for branch in plan.branches for axis in branch.masked)]
    todo += [(axis, reader_mask(reader, keep, axis)) for reader in plan.readers for axis in reader.masked]
    for (name, axis), mask in todo:
        shape = [1] * tensors[name].dim()
        shape[axis] = -1
        tensors[name].mul_(mask.to(tensors[name]).reshape(shape))


def run_in_double(model: nn.Module, example: Example) -> Any:
    """What the model returns on tensors of its own; those that its code makes are float64 too."""
    given = example.fresh()
    with torch.no_grad(), made_in_double(), without_fast_paths():
        return model(*given.args, **given.kwargs)


@contextmanager
def made_in_double() -> Iterator[None]:
    """What the model's code makes without a dtype is float64 too: a float32 among the others would end the trial."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_double(example: Example) -> Example:
    """The example with every floating tensor in float64."""

    def double(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return Example(tree_map(double, example.args), tree_map(double, example.kwargs))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
