"""What compaction would leave of a gated model, without doing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headgate.channels.example import Example
from headgate.channels.plan import Plan
from headgate.channels.trace import aliases, with_same_tensors
from headgate.count import Call, count
from headgate.errors import ArgumentError, GateError, TraceError
from headgate.gated import gated_parts, refuse_gated_parts, require_gates, status, unwrap
from headgate.surgery import trial
from headgate.surgery.compact import insertion_of
from headgate.surgery.decided import decided, open_units
from headgate.surgery.hand import placed_gates
from headgate.surgery.insert import Insertion, discard_gates_
from headgate.surgery.keep import chosen, random_vectors, sites
from headgate.surgery.shrink import shrink_
from headgate.surgery.sizes import Shape, Sizes, Term, leaving, parameter_terms

Of = Literal["channels", "params", "macs"]


@torch.no_grad()
def kept(model: nn.Module, of: Of = "channels") -> float:
    """The fraction of a gated model that `compact` would leave.

    Args:
        model: a model with gates; wrapped is fine. It is left as it is.
        of: "channels": of the gated units, those that stay; works for hand-placed gates too. "params": of the
            parameters of the network without its gates, exactly. "macs": of its multiply-accumulates in evaluation
            mode, on the example the gates were inserted with, exactly as `cost` counts them. The first call traces the
            model; later ones only look at the gates, unless the work is not in the model's parameters alone (attention
            between activations, for instance): then every call traces a compacted copy.

    Example:
        >>> kept(nn.Sequential(nn.Linear(8, 4), Gate(4, offset=-2.0)))
        0.75

    Raises:
        ArgumentError: an unknown `of`.
        GateError: no gates, a gate whose offset is NaN, by name, or "params" or "macs" of a model with gates placed by
            hand, since nobody knows what reads them, or with a gate that closed all of a group, which must not be.
        TraceError: "macs" of a compacted model that torch.export cannot trace.
    """
    if of not in get_args(Of):
        raise ArgumentError(f"kept: of={of!r} is unknown; use one of {', '.join(map(repr, get_args(Of)))}")
    require_gates(model, "kept")
    now, root = status(model), unwrap(model, "kept")
    if of != "channels" and (by_hand := placed_gates(root)):
        raise GateError(
            f"kept: of={of!r} needs gates that insert_gates_ has placed; {', '.join(map(repr, sorted(by_hand)))} of "
            f"{type(root).__name__} were placed by hand, and only of='channels' is known for them"
        )
    if of == "channels":
        left = _units_left(root)
        return sum(left.get(gate.name, gate.open) for gate in now.gates) / now.total
    refuse_gated_parts(root, "kept", f"kept({{}}, of={of!r}) is what compaction leaves of it")
    insertion = insertion_of(root, "kept")
    units, _ = decided(root, insertion, "kept")
    return _of_params(root, insertion.plan, units) if of == "params" else _of_macs(root, insertion, units)


def _units_left(root: nn.Module) -> dict[str, int]:
    """How many units of every inserted gate compaction would leave."""
    return {
        f"{path}.{name}" if path else name: int(units.sum())
        for path, part in gated_parts(root, "kept").items()
        for name, units in open_units(part, insertion_of(part, "kept")).items()
    }


def without_gates(root: nn.Module) -> nn.Module:
    """The network without its gates: modules of its own, but the very same tensors."""
    dense = with_same_tensors(root)
    discard_gates_(dense)
    return dense


def _of_params(root: nn.Module, plan: Plan, units: Mapping[str, Tensor]) -> float:
    sizes = parameter_sizes(root, plan)
    left, full = sizes.total(torch.stack([sizes.state(units), sizes.state({})])).tolist()
    return float(left / full)


def parameter_sizes(root: nn.Module, plan: Plan) -> Sizes:
    """What states of the gates leave of the parameters of the network without gates."""
    dense = without_gates(root)
    shapes = {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}
    return Sizes(plan, shapes, parameter_terms(plan, shapes, aliases(dense)))


def call_sizes(root: nn.Module, insertion: Insertion, example: Example | None) -> Sizes | None:
    """For a `Budget`: what states of the gates leave of the work on an example, if the parameters tell it."""
    return _work(root, insertion, "Budget", example).sizes


@dataclass(frozen=True)
class _Work:
    """The multiply-accumulates of the network without gates, and whether the plan can tell what is left of them.

    A call on parameters alone uses each of their elements the same number of times. Whether that number stays the same
    in a smaller network (another axis of the activations may shrink too) is tried, on copies cut at random.
    """

    insertion: Insertion
    macs: int
    sizes: Sizes | None

    def left(self, units: Mapping[str, Tensor]) -> int | None:
        """The multiply-accumulates of the calls that remain, by what remains of their weights, if that tells them."""
        return None if self.sizes is None else int(self.sizes.total(self.sizes.state(units)[None]))


# A constant of every gated model, found when it is first asked for.
_KNOWN: WeakKeyDictionary[nn.Module, _Work] = WeakKeyDictionary()


def _of_macs(root: nn.Module, insertion: Insertion, units: Mapping[str, Tensor]) -> float:
    work = _KNOWN.get(root)
    if work is None or work.insertion is not insertion:
        work = _KNOWN[root] = _work(root, insertion, "kept")
    if not work.macs:
        raise GateError(f"kept: of='macs': {type(root).__name__} does no multiply-accumulates on its example")
    left = work.left(units)
    return (_macs_after(root, insertion, units) if left is None else left) / work.macs


def _work(root: nn.Module, insertion: Insertion, operation: str, example: Example | None = None) -> _Work:
    """On an example of the caller's, or on that of the insertion wherever the model has gone since."""
    dense = without_gates(root)
    counted = count(dense, example or insertion.example.following(dense), operation)
    calls = [call for call in counted.calls if call.macs]
    if not all(call.weights for call in calls):
        return _Work(insertion, counted.macs, None)
    shapes = {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}
    work = _Work(insertion, counted.macs, Sizes(insertion.plan, shapes, _call_terms(insertion.plan, shapes, calls)))
    return work if _foretells(work, root, example) else replace(work, sizes=None)


def _call_terms(plan: Plan, shapes: Mapping[str, Shape], calls: Sequence[Call]) -> list[Term]:
    """One term for each call: as many multiply-accumulates for every element of its weights as now."""
    return [
        Term(
            call.modules[-1] if call.modules else "",
            tuple(call.weights),
            call.macs // sum(prod(shapes[name]) for name in call.weights),
            (frozenset(n for n, branch in enumerate(plan.branches) if not leaving(branch).isdisjoint(call.modules)),),
        )
        for call in calls
    ]


def _foretells(work: _Work, root: nn.Module, example: Example | None) -> bool:
    try:
        return all(work.left(t) == _macs_after(root, work.insertion, t, example) for t in _trials(work.insertion.plan))
    except TraceError:
        return False


def _macs_after(
    root: nn.Module, insertion: Insertion, units: Mapping[str, Tensor], example: Example | None = None
) -> int:
    small = without_gates(root)
    shrink_(small, insertion.plan, chosen(insertion.plan, units, "kept"))
    return count(small, example or insertion.example.following(small), "kept").macs


def _trials(plan: Plan) -> Iterator[dict[str, Tensor]]:
    """Some of all units; then the same with every other branch silent that can leave altogether.

    The first shows what the work of a layer depends on, which a layer that is gone cannot.
    """
    vectors = random_vectors(sites(plan).values(), seed=0)
    yield vectors
    if may_leave := trial.leaving(plan):
        yield vectors | trial.silent(plan, may_leave[::2])
