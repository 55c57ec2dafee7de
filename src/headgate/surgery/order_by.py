"""Orders from data, for networks that have been trained: what matters least closes first."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headgate.bank import bank_of
from headgate.channels.groups import analysed
from headgate.channels.plan import Branch, Group, Plan
from headgate.channels.running import first_calls, said_by
from headgate.channels.taps import TappedGraph
from headgate.errors import ArgumentError, GateError, HeadgateWarning, TraceError
from headgate.gated import unwrap
from headgate.surgery.activations import Activations, LossFunction, MutualInformation, Taylor, Variance
from headgate.surgery.batches import Batch, batches_on
from headgate.surgery.importance import carried_by, magnitudes, norm_scales
from headgate.surgery.keep import Site, first_names, sites
from headgate.surgery.recipe import named_tensors

# What to look for where a criterion finds all units of a site equally important.
ADVICE = {
    "magnitude": "is the network trained?",
    "norm_scale": "is the network trained?",
    "variance": "is there more than one example, do they differ, and do activations depend on them?",
    "taylor": "does the loss depend on the activations, and is it above its minimum?",
    "mutual_information": "are there enough examples, of more than one target?",
}

NOTHING_FOUND = "it says nothing about any of the sites (norm_scale needs norms with a scale); magnitude does"

Criterion = Literal["magnitude", "norm_scale", "variance", "taylor", "mutual_information"]


def order_by(
    model: nn.Module, criterion: Criterion, batches: Iterable[Any], *, loss_fn: LossFunction | None = None
) -> dict[str, Tensor]:
    """Orders for `insert_gates_(order=…)` in which the least important units of a trained network close first.

    Comes back with the place of every unit, by the name of its site: of groups, residual branches and their readers.
    Where `insert_gates_` gates a stream, its branches and readers follow the stream's order and not their own. Of two
    equally important units the one with the lower index closes first.

    Importance is measured where a gate acts: for a group at all layers that read it, for a reader at those it feeds,
    for a branch on what its last layer writes. Activations are those of evaluation mode; what a recurrent layer reads
    from itself, step by step, is not seen. A site the criterion says nothing about is ordered by magnitude; also one
    whose units it finds all equally important, with a `HeadgateWarning`, and if that is all of them it is an error.

    - "magnitude": the Euclidean norm of all weights of two axes or more that write or read the unit.
    - "norm_scale": the sum of |scale| of the Batch-, Instance- and GroupNorms that normalise the unit.
    - "variance": the variance of its activation over examples and positions, summed over the layers that read it.
    - "taylor": the mean over examples of |Σ gradient × activation|, summed over positions and over all layers that
      read it before the size is taken: to first order, what closing the unit does to the example's loss.
    - "mutual_information": between its activation, averaged over positions, and the target, over examples (in bins of
      about equally many), summed over the layers that read it. A few hundred examples are needed, thousands are
      better; fewer than 20 give a `HeadgateWarning`.

    Args:
        model: a network without inserted gates. It is left exactly as it was, gradients and statistics included.
        criterion: one of the above.
        batches: pairs (inputs, targets), as loaders yield them, or inputs alone where no target is needed: a tensor or
            a dict of keyword arguments. Several positional inputs are given as a tuple within a pair,
            ((first, second), None). Of "magnitude" and "norm_scale" only the first batch is looked at, for its shape.
        loss_fn: for "taylor": of the model's outputs and the targets, averaged over the batch. Gradients are enabled
            for it, also where the caller has disabled them.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> with torch.no_grad():
        ...     _ = model[2].weight.copy_(torch.tensor([[5.0, 0.0, 9.0]]))
        >>> order_by(model, "magnitude", [torch.randn(4, 2)])
        {'0': tensor([1, 0, 2])}

    Raises:
        ArgumentError: an unknown criterion, no batches, a batch (by its number, from 1) that the model does not run on,
            that `loss_fn` fails on or that has not what the criterion needs, a first axis of activations that does not
            hold the examples, or units that are equally important at every site.
        GateError: the model has inserted gates already, or nothing in it can be ordered.
        TraceError: activations are asked for, and torch.export cannot trace the model as a whole.
    """
    root = _checked(model, criterion, batches, loss_fn)
    device = next((tensor.device for tensor in (*root.parameters(), *root.buffers())), torch.device("cpu"))
    with _gradients_possible(criterion == "taylor"), torch.random.fork_rng([device] if device.type == "cuda" else []):
        given = batches_on(device, batches)
        first = next(given, None)
        if first is None:
            raise ArgumentError("order_by: batches is empty; at least one is needed")
        plan = analysed(root, first.inputs, True, first.name)
        if not (known := sites(plan)):
            raise GateError(f"order_by: nothing in {type(root).__name__} can be gated:\n{plan}")
        found = _importances(root, plan, criterion, chain([first], given), loss_fn)
        told = _told_apart(root, criterion, found)
        weighed = {name: told[name] if name in told else magnitudes(root, plan, site) for name, site in known.items()}
        return {name: importance.argsort(stable=True).argsort() for name, importance in weighed.items()}


@contextmanager
def _gradients_possible(needed: bool) -> Iterator[None]:
    """If they are needed, no inference mode, so that they can be enabled; whether they are stays as it is."""
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(torch.is_inference_mode_enabled() and not needed), torch.set_grad_enabled(enabled):
        yield


def _checked(model: nn.Module, criterion: str, batches: Any, loss_fn: Any) -> nn.Module:
    root = unwrap(model, "order_by")
    if bank_of(root) is not None:
        raise GateError("order_by: the model has inserted gates already; order first, then insert_gates_(order=…)")
    if criterion not in get_args(Criterion):
        raise ArgumentError(f"order_by: criterion={criterion!r} is unknown; use {', '.join(get_args(Criterion))}")
    if isinstance(batches, (Tensor, dict, str)) or not isinstance(batches, Iterable):
        raise ArgumentError(
            f"order_by: batches must be a loader or a list of batches, not a {type(batches).__name__}; put a single "
            "batch into a list"
        )
    if criterion == "taylor" and not callable(loss_fn):
        raise ArgumentError(
            "order_by: taylor needs loss_fn=, a function of the model's outputs and the targets, such as "
            "torch.nn.functional.cross_entropy"
        )
    made = next((name for name, tensor in named_tensors(root).items() if tensor.is_inference()), None)
    if criterion == "taylor" and made is not None:
        raise ArgumentError(
            f"order_by: taylor needs gradients, and {made!r} of the model was made under torch.inference_mode, where "
            "there are none; make the model outside of it"
        )
    return root


def _importances(
    root: nn.Module, plan: Plan, criterion: Criterion, batches: Iterator[Batch], loss_fn: LossFunction | None
) -> dict[str, Tensor]:
    """By the name of every site that the criterion says something about."""
    known = sites(plan)
    sizes = {name: site.size for name, site in known.items()}
    if criterion == "magnitude":
        return {name: magnitudes(root, plan, site) for name, site in known.items()}
    if criterion == "norm_scale":
        scales = {name: norm_scales(root, plan, site) for name, site in known.items()}
        return {name: scale for name, scale in scales.items() if scale is not None}
    if criterion == "variance":
        return _observed(root, plan, Variance(sizes), batches)
    if criterion == "mutual_information":
        return _observed(root, plan, MutualInformation(sizes), _with_targets(batches, criterion))
    assert loss_fn is not None
    return _observed(root, plan, Taylor(sizes, loss_fn), _with_targets(batches, criterion))


def _with_targets(batches: Iterator[Batch], criterion: str) -> Iterator[Batch]:
    for batch in batches:
        if not batch.paired:
            raise ArgumentError(f"{batch.name}: {criterion} needs targets; give pairs (inputs, targets)")
        yield batch


def _observed(root: nn.Module, plan: Plan, measure: Activations, batches: Iterator[Batch]) -> dict[str, Tensor]:
    """What the measure makes of the activations of all batches."""
    reads = {name: carried_by(plan, site, _read(site)) for name, site in sites(plan).items() if _read(site)}
    graphs: dict[tuple[Any, ...], TappedGraph] = {}
    for batch in batches:
        with _by_batch(root, batch):
            if batch.signature not in graphs:
                graphs[batch.signature] = TappedGraph(root, batch.inputs, reads, plan.branches)
            graph = graphs[batch.signature]
            outputs, seen = graph.run(batch.inputs, measure.differentiable)
        with torch.set_grad_enabled(measure.differentiable):
            measure.see(graph.taps, seen, outputs, batch)
    return measure.importances()


def _read(site: Site) -> tuple[tuple[str, int], ...]:
    """The axes that sum over what is read; none for what is written."""
    return () if isinstance(site, Branch) else site.readers if isinstance(site, Group) else site.masked


@contextmanager
def _by_batch(root: nn.Module, batch: Batch) -> Iterator[None]:
    """A graph that cannot be made or run: either the model does not run on the batch, or it cannot be followed."""
    try:
        yield
    except Exception as error:
        first_calls(root, batch.inputs, batch.name)
        raise TraceError(
            f"order_by: activations are followed through the whole graph of {type(root).__name__}, which fails on "
            f"batch {batch.number}; magnitude and norm_scale do without: {said_by(error)}"
        ) from error


def _told_apart(root: nn.Module, criterion: Criterion, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The importances of those sites whose units are not all equally important; tells of the others."""
    for name, importance in found.items():
        if not bool(importance.isfinite().all()):
            raise ArgumentError(
                f"order_by: the importance of units of {name} is not finite: look for infinities or NaNs"
            )
    told = {name: one for name, one in found.items() if len(one) == 1 or bool((one != one[0]).any())}
    if not told:
        why = f"all units of a site are equally important; {ADVICE[criterion]}" if found else NOTHING_FOUND
        raise ArgumentError(f"order_by: {criterion}: {type(root).__name__} has nothing that it could tell apart: {why}")
    if alike := [name for name in found if name not in told]:
        warnings.warn(
            f"order_by: {criterion} finds all units equally important at {first_names(alike)}: ordered by "
            f"{'index' if criterion == 'magnitude' else 'magnitude'} there; {ADVICE[criterion]}",
            HeadgateWarning,
            stacklevel=3,
        )
    return told
