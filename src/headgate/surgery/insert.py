"""Placing gates on a model by itself, and taking them off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from headgate.arguments import true_or_false, whole_number
from headgate.bank import Bank, GateSpec, InsertedGate, bank_of, install_bank_
from headgate.channels.example import Example
from headgate.channels.groups import analysed
from headgate.channels.plan import Branch, Group, Plan
from headgate.curve import Scale
from headgate.errors import ArgumentError, GateError
from headgate.gated import refuse_gated_parts, unwrap
from headgate.masked import attach_
from headgate.orders import Order, places_of
from headgate.surgery.constants import Rows, with_proven_carriers
from headgate.surgery.keep import Site, channels_each, first_names, sites
from headgate.surgery.placement import Placement, put_masks_on_, rows_before_norm
from headgate.surgery.planning import planned
from headgate.surgery.rollback import undone_on_failure
from headgate.unmask import take_masks_off_

INSERTION = "headgate_insertion"
START, SPAN, STEEPNESS, FUNCTION = 1.0, 5.0, 1.0, "relu_tanh"

Where = Callable[[str, nn.Module], bool]
Branches = Literal["narrow", "full"]


@dataclass(frozen=True)
class Insertion:
    """What was decided when gates were inserted, for everything that follows: plan, options, and the example.

    `before_norm` names the gates that act before a norm: of what they close, one unit stays (`constants`).
    """

    plan: Plan
    branches: Branches
    multiple_of: int
    example: Example
    before_norm: frozenset[str] = frozenset()

    def __deepcopy__(self, memo: dict[int, Any]) -> Insertion:
        return self


def insert_gates_(
    model: nn.Module,
    example: Any,
    *,
    where: Where | None = None,
    streams: bool = True,
    readers: bool = False,
    order: Order | Mapping[str, Order] = "index",
    scale: Scale = "relative",
    floor: int = 4,
    branches: Branches = "narrow",
    multiple_of: int = 1,
    placement: Placement = "exact",
) -> dict[str, InsertedGate]:
    """Puts a gate on every group of channels that can be removed from `model`, and returns them by name.

    A group's mask multiplies the input slices of the weights that read it, so the model starts as exactly the network
    it was. The last layer of every residual branch gets a gate of its own on what it writes. Only what a trial on a
    randomised copy has proven removable is gated; `find_groups` says what is not, and why.

    Args:
        model: any module that `torch.export` can trace. Its parameters stay the same objects.
        example: what to call the model with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        where: picks groups by name and by the module of that name.
        streams: whether residual streams (groups that activations are added into) get a gate too.
        readers: whether the entry of every residual branch gets a gate of its own on what it reads from its stream; in
            the small model its first layer picks those channels. What the stream's gate has closed is closed there too.
        order: which units close first: a named order, a permutation for models with one size of group, or orders by the
            name of every site, as from `order_by`: also of sites that get no gate, but of nothing else. Branches and
            readers of a stream that is gated take its order.
        scale: "relative" starts with masks of ones; "plain" is the paper's Eq. 2.
        floor: how many channels of each gate stay open whatever the strength; smaller groups get no gate. Where a unit
            is several channels, as an attention head is, so many units that they have that many: at least one.
        branches: "narrow" cuts what a residual branch does not write, and its last layer writes the rest into place.
            "full" keeps the outputs of branches at full width, zeros included, and needs no layer of ours; often
            faster where branches are thin. Either way a branch that writes nothing goes with its block, where all the
            block does is to add it; a narrow one also takes along what only feeds it where the block stays.
        multiple_of: compaction keeps widths, in channels, at multiples of this, by keeping closed units where needed.
        placement: "exact" masks what reads a group. "before_norm", for comparison with the paper, masks the rows of the
            layer that writes it wherever a norm follows and closed channels are constants from there on (not those of
            streams): one closed channel of each such gate stays in the small model, to pass on all of them.

    Raises:
        ArgumentError: an argument that cannot be, by name, or an example that the model does not run on.
        GateError: the model is wrapped, has inserted gates already, or nothing in it can be removed. It is as it was.
        ShapeError: a hand-placed gate does not fit the tensor that it meets, by its path.
        TraceError: `torch.export` can trace neither the model nor a part of it.

    Warns:
        HeadgateWarning: a trial has shown that gates cannot stand before a norm where they should be able to, by name.
    """
    _check_insertable(model)
    floor, multiple_of = _at_least_one("floor", floor), _at_least_one("multiple_of", multiple_of)
    streams, readers = _switch("streams", streams), _switch("readers", readers)
    _check_options(where, order, scale, branches, placement)
    given = Example.of(example)
    plan = planned(model, given, readers, "insert_gates_")
    if isinstance(order, Mapping):
        _refuse_unknown_names(order, model, given, plan)
    chosen = [site for site in sites(plan).values() if _wanted(site, plan, model, where, streams, floor)]
    if not chosen:
        raise GateError(f"insert_gates_: nothing in {type(model).__name__} can be gated:\n{plan}")
    places, count_from = _places(chosen, order)
    rows = _rows_before_norm(model, plan, given, chosen) if placement == "before_norm" else {}
    bank = Bank(model, _specs(chosen, plan, floor), START, SPAN, STEEPNESS, FUNCTION, scale, count_from)
    with undone_on_failure(model):
        install_bank_(model, bank, places)
        setattr(model, INSERTION, Insertion(plan, branches, multiple_of, given, frozenset(rows)))
        attach_(model)
        put_masks_on_(model, bank, plan, chosen, rows)
    return bank.views()


def _rows_before_norm(model: nn.Module, plan: Plan, given: Example, chosen: list[Site]) -> Rows:
    rows, spread = rows_before_norm(model, plan, (site for site in chosen if isinstance(site, Group)), given)
    return with_proven_carriers(model, plan, given, rows, spread)


def _specs(chosen: list[Site], plan: Plan, floor: int) -> tuple[GateSpec, ...]:
    """Read sides keep their floor; what a branch writes may fall silent altogether, since its shortcut goes on."""
    specs, first = [], 0
    for site in chosen:
        specs.append(GateSpec(site.name, first, site.size, _floor(site, plan, floor)))
        first += site.size
    return tuple(specs)


def _floor(site: Site, plan: Plan, floor: int) -> int:
    """How many units stay open. Of units that are several channels each, as heads are, fewer do: at least one."""
    return 0 if isinstance(site, Branch) else -(-floor // channels_each(plan, site))


def _places(chosen: list[Site], order: Order | Mapping[str, Order]) -> tuple[list[Tensor], int]:
    """Every gate's places, and what they count from. Branches and readers take their stream's: sets are nested then."""
    gated = {site.name for site in chosen}
    leading = [site.name if isinstance(site, Group) or site.group not in gated else site.group for site in chosen]
    found = {site.name: _placed(site, order) for site in chosen if site.name in leading}
    counts = {count_from for _, count_from in found.values()}
    if len(counts) > 1:
        raise ArgumentError("insert_gates_: some orders count from 0 and some from 1; all must do the same")
    return [found[name][0] for name in leading], counts.pop()


def _placed(site: Site, order: Order | Mapping[str, Order]) -> tuple[Tensor, int]:
    instead = ""
    if isinstance(order, Mapping):
        if site.name not in order:
            raise ArgumentError(f"insert_gates_: order names no order for {site.name!r}, which is to be gated")
        order = order[site.name]
    elif not isinstance(order, str):
        instead = "; a mapping from names to orders gives every gate its own"
    try:
        return places_of(order, site.size)
    except ArgumentError as error:
        raise ArgumentError(f"insert_gates_: order of {site.name!r}: {error}{instead}") from None


def _refuse_unknown_names(order: Mapping[str, Order], model: nn.Module, given: Example, plan: Plan) -> None:
    """An order may say more than is asked, as that from `order_by` does, but not of what is no site at all."""
    unknown = [name for name in order if name not in sites(plan)]
    if unknown:  # sites that failed in the trial, and readers where none are asked for, are sites all the same
        found = sites(analysed(model, given, True, "insert_gates_"))
        unknown = [name for name in unknown if name not in found]
    if unknown:
        raise ArgumentError(
            f"insert_gates_: order names {first_names(unknown)}, and {type(model).__name__} has no site of that name; "
            "print(find_groups(model, example, readers=True)) shows those that it has"
        )


def discard_gates_(model: nn.Module) -> None:
    """Takes everything off that `insert_gates_` put on; the weights are what they are without their masks."""
    take_masks_off_(model)
    if hasattr(model, INSERTION):
        delattr(model, INSERTION)


def _check_insertable(model: nn.Module) -> None:
    if unwrap(model, "insert_gates_") is not model:
        raise GateError(f"insert_gates_: insert gates before wrapping the model in {type(model).__name__}")
    if bank_of(model) is not None:
        raise GateError("insert_gates_: the model has inserted gates already; remove_gates_(model) takes them off")
    refuse_gated_parts(model, "insert_gates_", "gate the whole or the part; remove_gates_({}) takes those off")


def _at_least_one(name: str, value: Any) -> int:
    if (number := whole_number(f"insert_gates_: {name}", value)) < 1:
        raise ArgumentError(f"insert_gates_: {name}={number} must be at least 1")
    return number


def _switch(name: str, value: Any) -> bool:
    return true_or_false(f"insert_gates_: {name}", value)


def _check_options(where: Any, order: Order | Mapping[str, Order], scale: str, branches: str, placement: str) -> None:
    """Before the analysis, which takes its time."""
    if where is not None and not callable(where):
        raise ArgumentError(f"insert_gates_: where={where!r} must be a function of a site's name and module, or None")
    if isinstance(order, str):
        places_of(order, 1)
    for name, value, known in (
        ("scale", scale, get_args(Scale)),
        ("branches", branches, get_args(Branches)),
        ("placement", placement, get_args(Placement)),
    ):
        if value not in known:
            raise ArgumentError(f"insert_gates_: {name}={value!r} is unknown; use one of {', '.join(known)}")


def _wanted(site: Site, plan: Plan, model: nn.Module, where: Where | None, streams: bool, floor: int) -> bool:
    if not isinstance(site, Branch) and site.size <= _floor(site, plan, floor):
        return False
    if isinstance(site, Group) and site.stream and not streams:
        return False
    if where is None:
        return True
    path = site.name.partition("#")[0] if isinstance(site, Group) else site.path
    try:
        module = model.get_submodule(path)
    except AttributeError:
        module = model
    try:
        return bool(where(site.name, module))
    except Exception as error:
        raise ArgumentError(
            f"insert_gates_: where({site.name!r}, {type(module).__name__}) failed ({type(error).__name__}: {error}); "
            "it is called with the name of a group, branch or reader and with the module of that name"
        ) from error
