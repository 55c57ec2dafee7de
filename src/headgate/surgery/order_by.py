"""Orders from data, for networks that have been trained: what matters least closes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from headgate.bank import bank_of
from headgate.channels.groups import analysed
from headgate.channels.plan import Branch, Group, Plan
from headgate.channels.taps import TappedGraph
from headgate.channels.trace import Example
from headgate.errors import ArgumentError, GateError, TraceError
from headgate.gated import unwrap
from headgate.surgery.activations import Activations, LossFunction, MutualInformation, Taylor, Variance
from headgate.surgery.importance import carried_by, magnitudes, norm_scales
from headgate.surgery.keep import Site, sites

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
    from itself, step by step, is not seen. A site the criterion says nothing about is ordered by magnitude.

    - "magnitude": the Euclidean norm of all weights of two axes or more that write or read the unit.
    - "norm_scale": the sum of |scale| of the Batch-, Instance- and GroupNorms that normalise the unit.
    - "variance": the variance of its activation over examples and positions, summed over the layers that read it.
    - "taylor": the mean over examples of |Σ gradient × activation|, summed over positions and over all layers that
      read it before the size is taken: to first order, what closing the unit does to the example's loss.
    - "mutual_information": between its activation, averaged over positions, and the target, over examples (in bins of
      about equally many), summed over the layers that read it. A few hundred examples are needed, thousands are better.

    Args:
        model: a network without inserted gates. It is left exactly as it was, gradients and statistics included.
        criterion: one of the above.
        batches: pairs (inputs, targets), as loaders yield them, or inputs alone where no target is needed: a tensor or
            a dict of keyword arguments. Several positional inputs are given as a tuple within a pair,
            ((first, second), None). Of "magnitude" and "norm_scale" only the first batch is looked at, for its shape.
        loss_fn: for "taylor": of the model's outputs and the targets, averaged over the batch.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> with torch.no_grad():
        ...     _ = model[2].weight.copy_(torch.tensor([[5.0, 0.0, 9.0]]))
        >>> order_by(model, "magnitude", [torch.randn(4, 2)])
        {'0': tensor([1, 0, 2])}

    Raises:
        ArgumentError: an unknown criterion, no batches, batches without what the criterion needs, or a first axis of
            activations that does not hold the examples.
        GateError: the model has inserted gates already, or nothing in it can be ordered.
        TraceError: activations are asked for, and torch.export cannot trace the model as a whole.
    """
    root = _checked(model, criterion, batches, loss_fn)
    device = next((tensor.device for tensor in (*root.parameters(), *root.buffers())), torch.device("cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        given = _given(batches, device)
        first = next(given, None)
        if first is None:
            raise ArgumentError("order_by: batches is empty; at least one is needed")
        plan = analysed(root, first.inputs, True, "order_by")
        if not (known := sites(plan)):
            raise GateError(f"order_by: nothing in {type(root).__name__} can be gated:\n{plan}")
        found = _importances(root, plan, criterion, _chained(first, given), loss_fn)
        if not found:
            raise ArgumentError(f"order_by: {criterion}: {type(root).__name__} has nothing that it could tell apart")
        weighed = {name: found[name] if name in found else magnitudes(root, plan, site) for name, site in known.items()}
    return {name: _places(name, importance) for name, importance in weighed.items()}


@dataclass(frozen=True)
class _Batch:
    inputs: Example
    targets: Any
    paired: bool

    @property
    def examples(self) -> int:
        """The first axis of the first tensor."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if not tensors or not len(tensors[0]):
            raise ArgumentError("order_by: a batch holds no examples, along the first axis of its first tensor")
        return len(tensors[0])

    @property
    def leaves(self) -> list[Any]:
        return tree_flatten((self.inputs.args, self.inputs.kwargs))[0]

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a graph is made for: everything but the numbers in tensors."""
        leaves, spec = tree_flatten((self.inputs.args, self.inputs.kwargs))
        return (spec, *(((*x.shape, x.dtype) if isinstance(x, Tensor) else repr(x)) for x in leaves))


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
    return root


def _given(batches: Iterable[Any], device: torch.device) -> Iterator[_Batch]:
    """Every batch where the model is, as inputs and targets."""

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    for batch in batches:
        paired = isinstance(batch, (tuple, list))
        if paired and len(batch) != 2:
            raise ArgumentError(
                f"order_by: a batch of {len(batch)} things is neither inputs nor a pair (inputs, targets); several "
                "inputs go into a tuple within a pair, ((first, second), targets), where targets may be None"
            )
        inputs, targets = tree_map(moved, tuple(batch) if paired else (batch, None))
        yield _Batch(Example.of(inputs), targets, paired)


def _chained(first: _Batch, others: Iterator[_Batch]) -> Iterator[_Batch]:
    yield first
    yield from others


def _importances(
    root: nn.Module, plan: Plan, criterion: Criterion, batches: Iterator[_Batch], loss_fn: LossFunction | None
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


def _with_targets(batches: Iterator[_Batch], criterion: str) -> Iterator[_Batch]:
    for batch in batches:
        if not batch.paired:
            raise ArgumentError(f"order_by: {criterion} needs targets; give pairs (inputs, targets)")
        yield batch


def _observed(root: nn.Module, plan: Plan, measure: Activations, batches: Iterator[_Batch]) -> dict[str, Tensor]:
    """What the measure makes of the activations of all batches."""
    reads = {name: carried_by(plan, site, _read(site)) for name, site in sites(plan).items() if _read(site)}
    graphs: dict[tuple[Any, ...], TappedGraph] = {}
    for batch in batches:
        if batch.signature not in graphs:
            graphs[batch.signature] = _tapped(root, batch.inputs, reads, plan)
        graph = graphs[batch.signature]
        outputs, seen = graph.run(batch.inputs, measure.differentiable)
        measure.see(graph.taps, seen, batch.examples, outputs, batch.targets)
    return measure.importances()


def _read(site: Site) -> tuple[tuple[str, int], ...]:
    """The axes that sum over what is read; none for what is written."""
    return () if isinstance(site, Branch) else site.readers if isinstance(site, Group) else site.masked


def _tapped(root: nn.Module, inputs: Example, reads: Any, plan: Plan) -> TappedGraph:
    try:
        return TappedGraph(root, inputs, reads, plan.branches)
    except TraceError as error:
        raise TraceError(
            f"order_by: activations are followed through the whole graph of {type(root).__name__}; magnitude and "
            f"norm_scale do without: {error}"
        ) from error


def _places(name: str, importance: Tensor) -> Tensor:
    if not bool(importance.isfinite().all()):
        raise ArgumentError(f"order_by: the importance of units of {name} is not finite: look for infinities or NaNs")
    return importance.argsort(stable=True).argsort()
