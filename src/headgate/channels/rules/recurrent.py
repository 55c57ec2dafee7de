"""Recurrent layers: LSTM, GRU and plain ones, of several layers and directions, with and without projection; cells.

Unit j of a layer is one row in every block of its weights and biases (four blocks for the gates of an LSTM, three of a
GRU), and what it computes is read through one column: of the layer's own recurrent weight, and of whatever comes next.
With all of these columns masked nobody hears the unit, and since it depends on itself entry by entry only, it can go.
With a projection there are two kinds: cells, which the projection reads, and what the projection writes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headgate.channels.rules.contraction import contract
from headgate.channels.rules.step import Step, module_kind, module_paths
from headgate.channels.values import Value, on_axis
from headgate.layers import UNEVEN

# How many blocks of rows a weight has, by the beginning of the operation's name.
_BLOCKS = {"lstm": 4, "gru": 3, "rnn": 1}

# The classes, by their full names, that can have layers of several sizes one day, and those that have.
_TORCHS, _OURS = (
    frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds) for kinds in (UNEVEN, UNEVEN.values())
)

_POSITIONS = "runs through these positions one after the other"
_STATE = (
    "is given a state from outside, whose size is fixed; let it begin with its own zeros, or with a state that the "
    "model makes in the size of the layer"
)


@dataclass(frozen=True)
class _Piece:
    """The tensors of one layer and direction."""

    inputs: Value
    recurrent: Value
    biases: tuple[Value, ...]
    projection: Value | None


@dataclass(frozen=True)
class _Units:
    """The labels of what a piece returns, and of its cells; the same without a projection. None: a single one."""

    hidden: Tensor | None
    cells: Tensor | None


def recurrent(step: Step) -> tuple[Value, ...]:
    """All layers and directions of one call.

    Each has units of its own, if nobody looks at the states: these lie in one tensor for all layers and directions,
    which then shrink alike.
    """
    x = step.value("input" if "input" in step.arguments else "data")
    directions = 2 if step.arguments["bidirectional"] else 1
    pieces = _pieces(step)
    found: list[_Units] = []
    for start in range(0, len(pieces), directions):
        layer = [_units(step, x, piece) for piece in pieces[start : start + directions]]
        found += layer
        x = Value((*x.shape[:-1], step.shape[-1]), _along_last([units.hidden for units in layer], x.ndim))
    states: tuple[Value, ...] = tuple(Value(shape or ()) for shape in step.shapes[1:])
    if len(pieces) == 1 or not _states_are_its_own(step):
        states = _tied_states(step, found)
    return (Value(step.shape, x.fields), *states)


def _pieces(step: Step) -> list[_Piece]:
    """The flat list of weights by layer and direction."""
    flat = step.arguments["params"]
    biased = bool(step.arguments["has_biases"])
    each = len(flat) // (int(step.arguments["num_layers"]) * (2 if step.arguments["bidirectional"] else 1))
    pieces = []
    for start in range(0, len(flat), each):
        inputs, own, *others = flat[start : start + each]
        biases, rest = (others[:2], others[2:]) if biased else ([], others)
        pieces.append(_Piece(inputs, own, tuple(biases), rest[0] if rest else None))
    return pieces


def _units(step: Step, x: Value, piece: _Piece) -> _Units:
    """Ties the rows of all blocks, and notes who reads: the input's weight, the recurrent one, the projection."""
    contract(step, step.settled(x, x.ndim - 1), x.ndim - 1, piece.inputs, 1)
    step.stays_on(x, range(x.ndim - 1), _POSITIONS)
    cells = _tied_rows(step, piece)
    hidden = cells
    if piece.projection is not None:
        contract(step, _as_value(cells), 0, piece.projection, 1)
        if cells is not None and module_kind(step.node) not in _TORCHS | _OURS:
            step.stay([cells], "torch needs more cells than outputs, and this is a class of the model's own")
        hidden = step.vector(piece.projection, 0)
    contract(step, _as_value(hidden), 0, piece.recurrent, 1)
    return _Units(hidden, cells)


def _tied_rows(step: Step, piece: _Piece) -> Tensor | None:
    """One label for the same row of every block, of weights and biases."""
    blocks = _BLOCKS[step.operation.partition("_")[0]]
    rows = [step.vector(tensor, 0) for tensor in (piece.inputs, piece.recurrent, *piece.biases)]
    first = next((labels for labels in rows if labels is not None), None)
    if first is None or len(first) == blocks:
        step.stay([labels for labels in rows if labels is not None], "it is the only unit of its layer")
        return None
    cells = first.reshape(blocks, -1)[0]
    for labels in rows:
        step.join_vectors(
            None if labels is None else labels.reshape(blocks, -1), cells, "its row lies beside one that must stay"
        )
    return cells


def _as_value(labels: Tensor | None) -> Value:
    return Value((1,)) if labels is None else Value(tuple(labels.shape), (labels,))


def _along_last(labels: list[Tensor | None], ndim: int) -> tuple[Tensor, ...]:
    """Directions side by side. They are as large as each other, so that all or none have labels."""
    known = [each for each in labels if each is not None]
    return (on_axis(torch.cat(known), ndim - 1, ndim),) if known else ()


def _states_are_its_own(step: Step) -> bool:
    """Whether this is a module of torch's own that begins with zeros, and whose last states nobody uses."""
    if module_kind(step.node) not in _TORCHS:
        return False
    used = [user for user in step.node.users if user.target is not operator.getitem or user.args[1] != 0]
    return not any(user.users for user in used) and all(map(_is_zeros_of(step), states_given(step.node)))


def states_given(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The state that an operation begins with: the hidden state and, of an LSTM, the cells."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = node.args[next(place for place, one in enumerate(schema.arguments) if one.name == "hx")]
    states = given if isinstance(given, (list, tuple)) else [given]
    return [state for state in states if isinstance(state, torch.fx.Node)]


def _is_zeros_of(step: Step) -> Callable[[torch.fx.Node], bool]:
    def is_zeros(node: torch.fx.Node) -> bool:
        made = str(node.target) == "aten.zeros.default"
        return made and module_paths(node) == module_paths(step.node)

    return is_zeros


def _tied_states(step: Step, found: list[_Units]) -> tuple[Value, ...]:
    """States of all layers and directions in one tensor: unit j of each is one unit, in what is given and returned."""
    first = found[0]
    for other in found[1:]:
        for mine, theirs in ((first.hidden, other.hidden), (first.cells, other.cells)):
            step.join_vectors(mine, theirs, "its state lies beside one that must stay")
    return _with_states(step, first)


def _with_states(step: Step, units: _Units) -> tuple[Value, ...]:
    """Ties the states that go in, and labels those that come out (of a cell: everything)."""
    kinds = (units.hidden, units.cells)
    given = step.arguments["hx"]
    for state, labels in zip(given if isinstance(given, list) else [given], kinds, strict=False):
        last = state.ndim - 1
        step.join_vectors(step.vector(state, last), labels, _STATE)
        step.stays_silently(state, range(last))
    results = step.shapes if "cell" in step.operation else step.shapes[1:]
    return tuple(
        Value(shape or (), () if labels is None else (on_axis(labels, len(shape or ()) - 1, len(shape or ())),))
        for shape, labels in zip(results, kinds, strict=False)
    )


def cell(step: Step) -> Value | tuple[Value, ...]:
    """One step of one layer, as `nn.LSTMCell` and its like take it: the state goes in and comes out."""
    biases = tuple(bias for name in ("b_ih", "b_hh") if (bias := step.optional(name)) is not None)
    piece = _Piece(step.value("w_ih"), step.value("w_hh"), biases, None)
    states = _with_states(step, _units(step, step.value("input"), piece))
    return states if len(states) > 1 else states[0]


RULES: dict[str, Callable[[Step], Value | tuple[Value, ...]]] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), cell),
}
