"""Single rules by hand, without a trace: what they tie, what they keep, what comes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headgate.channels.ledger import Ledger
from headgate.channels.rules import RULES
from headgate.channels.rules.pointwise import pointwise
from headgate.channels.rules.step import Step
from headgate.channels.values import Value, on_axis

Shape = tuple[int, ...]


class Desk:
    """A ledger, and operations on values that are made up."""

    def __init__(self, kind: str = "tests.Net") -> None:
        self.ledger = Ledger()
        self.node = torch.fx.Graph().placeholder("operation")
        self.node.meta["nn_module_stack"] = {"path": ("path", kind)}

    def named(self, name: str, *shape: int) -> Value:
        fields = (on_axis(self.ledger.labels(name, a, s), a, len(shape)) for a, s in enumerate(shape) if s > 1)
        return Value(shape, tuple(fields), source=name)

    def map(self, name: str, *shape: int) -> Value:
        """An activation whose axis 1 carries units."""
        return Value(shape, (on_axis(self.ledger.labels(name, 0, shape[1]), 1, len(shape)),))

    def run(self, operation: str, shape: Shape | list[Shape], /, **arguments: Any) -> Any:
        shapes = tuple(shape) if isinstance(shape, list) else (shape,)
        parameters = frozenset({"w", "v", "b"})
        return RULES.get(operation, pointwise)(
            Step(self.ledger, operation, "path", arguments, shapes, {}, self.node, parameters, [])
        )

    def units(self, name: str, axis: int = 0) -> list[int]:
        """The units of an axis, each by the index at which it is first seen there."""
        found = self.ledger.solve().axes[name, axis].tolist()
        return [found.index(unit) for unit in found]

    def tied(self, one: tuple[str, int], other: tuple[str, int]) -> bool:
        axes = self.ledger.solve().axes
        return torch.equal(axes[one], axes[other])

    def stays(self, name: str, axis: int = 0) -> list[bool]:
        solution = self.ledger.solve()
        stays: Tensor = solution.fixed[solution.axes[name, axis]]
        return stays.tolist()


def test_linear_reads_columns_and_writes_rows() -> None:
    desk = Desk()
    weight, bias = desk.named("w", 5, 4), desk.named("b", 5)
    out = desk.run("linear", (2, 5), input=desk.map("x", 2, 4), weight=weight, bias=bias)
    assert desk.tied(("x", 0), ("w", 1)) and desk.tied(("b", 0), ("w", 0))
    assert out.fields[0].tolist() == [desk.ledger.labels("w", 0, 5).tolist()]
    assert desk.ledger.solve().readers == {("w", 1)}


def test_batch_norm_ties_all_its_vectors() -> None:
    desk = Desk()
    vectors = {name: desk.named(name, 6) for name in ("weight", "bias", "running_mean", "running_var")}
    desk.run(
        "_native_batch_norm_legit_no_training", [(2, 6, 3, 3), (0,), (0,)], input=desk.map("x", 2, 6, 3, 3), **vectors
    )
    assert all(desk.tied(("x", 0), (name, 0)) for name in vectors)


def test_a_grouped_convolution_has_one_unit_per_group() -> None:
    desk = Desk()
    weight, bias = desk.named("w", 6, 2, 3, 3), desk.named("b", 6)
    desk.run("conv2d", (2, 6, 5, 5), input=desk.map("x", 2, 4, 5, 5), weight=weight, bias=bias, groups=2)
    assert desk.units("x") == [0, 0, 2, 2]
    assert desk.units("w") == desk.units("b") == [0, 0, 0, 3, 3, 3]


def test_a_grouped_transposed_convolution_too() -> None:
    desk = Desk()
    weight = desk.named("w", 4, 3, 2, 2)
    out = desk.run(
        "conv_transpose2d", (2, 6, 8, 8), input=desk.map("x", 2, 4, 4, 4), weight=weight, bias=None, groups=2
    )
    assert desk.units("w") == [0, 0, 2, 2]
    assert out.fields[0].flatten().tolist() == [1, 1, 1, 3, 3, 3] or len(set(out.fields[0].flatten().tolist())) == 2


def test_concatenation_puts_units_side_by_side_and_ties_nothing() -> None:
    desk = Desk()
    out = desk.run("cat", (2, 7, 4), tensors=[desk.map("x", 2, 4, 4), desk.map("y", 2, 3, 4)], dim=1)
    assert out.fields[0].flatten().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert desk.units("x") == [0, 1, 2, 3]


def test_equal_pieces_shrink_alike() -> None:
    desk = Desk()
    desk.run("split", [(2, 3), (2, 3)], self=desk.map("x", 2, 6), dim=1)
    assert desk.units("x") == [0, 1, 2, 0, 1, 2]


def test_unequal_pieces_stay_unless_their_sizes_are_given_one_by_one() -> None:
    desk = Desk()
    desk.run("chunk", [(2, 4), (2, 2)], self=desk.map("x", 2, 6), dim=1)
    desk.run("split_with_sizes", [(2, 2), (2, 4)], self=desk.map("y", 2, 6), dim=1)
    assert desk.stays("x") == [True] * 6
    assert desk.units("y") == [0, 1, 2, 3, 4, 5] and desk.stays("y") == [False] * 6


def test_splitting_an_axis_ties_all_but_its_last_part() -> None:
    desk = Desk()
    desk.run("view", (2, 2, 3), self=desk.map("x", 2, 6))
    assert desk.units("x") == [0, 1, 2, 0, 1, 2]


def test_pixel_shuffle_makes_blocks_units() -> None:
    desk = Desk()
    out = desk.run("pixel_shuffle", (2, 2, 6, 6), self=desk.map("x", 2, 8, 3, 3), upscale_factor=2)
    assert desk.units("x") == [0, 0, 0, 0, 4, 4, 4, 4]
    assert out.fields[0].flatten().tolist() == [1, 5]


def test_a_sum_ties_its_addends() -> None:
    desk = Desk()
    desk.run("add", (2, 4), self=desk.map("x", 2, 4), other=desk.map("y", 2, 4))
    assert desk.tied(("x", 0), ("y", 0))


def test_meeting_a_constant_of_full_size_means_stay() -> None:
    desk = Desk()
    desk.run("add", (2, 4), self=desk.map("x", 2, 4), other=Value((1, 4)))
    assert desk.stays("x") == [True] * 4


def test_meeting_one_number_does_not() -> None:
    desk = Desk()
    desk.run("add", (2, 4), self=desk.map("x", 2, 4), other=Value((2, 1)))
    assert desk.stays("x") == [False] * 4


def test_reducing_over_channels_mixes_them_and_over_positions_does_not() -> None:
    desk = Desk()
    out = desk.run("mean", (2, 4), self=desk.map("x", 2, 4, 3, 3), dim=[2, 3])
    assert out.fields[0].shape == (1, 4) and desk.stays("x") == [False] * 4
    desk.run("mean", (2, 3, 3), self=desk.map("y", 2, 4, 3, 3), dim=[1])
    assert desk.stays("y") == [True] * 4


def test_group_norm_makes_norm_groups_units() -> None:
    desk = Desk()
    desk.run("group_norm", (2, 6, 3), input=desk.map("x", 2, 6, 3), num_groups=3, weight=None, bias=None)
    assert desk.units("x") == [0, 0, 2, 2, 4, 4]


def test_channel_padding_has_no_units() -> None:
    desk = Desk()
    out = desk.run("pad", (2, 6, 3), self=desk.map("x", 2, 4, 3), pad=[0, 0, 1, 1])
    assert out.fields[0].flatten().tolist() == [0, 1, 2, 3, 4, 0]


def test_einsum_by_letters() -> None:
    desk = Desk()
    weight, x = desk.named("w", 5, 4), desk.map("x", 2, 4, 3)
    out = desk.run("einsum", (2, 5, 3), equation="bct,oc->bot", tensors=[x, weight])
    assert desk.tied(("x", 0), ("w", 1)) and out.fields[0].shape == (1, 5, 1)
    assert desk.ledger.solve().readers == {("w", 1)}


def test_a_product_of_two_activations_cannot_be_masked() -> None:
    desk = Desk()
    keys = Value((2, 4, 5), (on_axis(desk.ledger.labels("k", 0, 4), 1, 3),))
    queries = Value((2, 3, 4), (on_axis(desk.ledger.labels("q", 0, 4), 2, 3),))
    desk.run("bmm", (2, 3, 5), self=queries, mat2=keys)
    assert desk.stays("k") == desk.stays("q") == [True] * 4


def test_concatenation_ties_units_on_the_other_axes() -> None:
    desk = Desk()
    desk.run("cat", (2, 4, 7), tensors=[desk.map("x", 2, 4, 4), desk.map("y", 2, 4, 3)], dim=2)
    assert desk.tied(("x", 0), ("y", 0))


def test_a_recurrent_unit_is_a_row_of_every_block_and_a_column() -> None:
    """Two units of an LSTM: rows 0, 2, 4, 6 of weights and biases are the first one; the recurrent weight reads it."""
    desk = Desk()
    state = desk.map("s", 3, 2)
    lent = Value((1, 3, 2), tuple(field.unsqueeze(0) for field in state.fields))
    out, hidden, cells = desk.run(
        "lstm", [(5, 3, 2), (1, 3, 2), (1, 3, 2)], input=Value((5, 3, 4)), hx=[lent, lent],
        params=[desk.named("w", 8, 4), desk.named("v", 8, 2), desk.named("b", 8), desk.named("c", 8)],
        has_biases=True, num_layers=1, bidirectional=False,
    )  # fmt: skip
    assert desk.units("w") == desk.units("v") == desk.units("b") == desk.units("c") == [0, 1] * 4
    assert desk.tied(("v", 1), ("s", 0)) and not any(desk.stays("v", 1))
    assert all(desk.stays("w", 1)), "what it reads from outside must stay"
    assert ("v", 1) in desk.ledger.solve().readers and ("w", 0) not in desk.ledger.solve().readers
    roots = desk.ledger.solve().roots
    for value in (out, hidden, cells):
        assert value.fields[0].shape == (1, 1, 2)
        assert torch.equal(roots[value.fields[0].flatten()], desk.ledger.solve().axes["v", 1])


@pytest.mark.parametrize(("kind", "stay"), [("torch.nn.modules.rnn.LSTM", False), ("tests.OwnLSTM", True)])
def test_of_a_projection_cells_and_outputs_are_units_of_their_own(kind: str, stay: bool) -> None:
    """Three cells are projected to two outputs, which the recurrent weight reads. Cells go in torch's class only."""
    desk = Desk(kind)
    zeros = [Value((1, 3, 2), (on_axis(desk.ledger.labels(name, 0, n), 2, 3),)) for name, n in (("h", 2), ("k", 3))]
    out, hidden, cells = desk.run(
        "lstm", [(5, 3, 2), (1, 3, 2), (1, 3, 3)], input=Value((5, 3, 4)), hx=zeros,
        params=[desk.named("w", 12, 4), desk.named("v", 12, 2), desk.named("b", 2, 3)],
        has_biases=False, num_layers=1, bidirectional=False,
    )  # fmt: skip
    assert desk.units("w") == [0, 1, 2] * 4
    assert desk.tied(("b", 1), ("k", 0)) and desk.tied(("b", 0), ("v", 1)) and desk.tied(("v", 1), ("h", 0))
    assert desk.stays("b", 0) == [False] * 2 and desk.stays("b", 1) == [stay] * 3
    assert out.fields[0].shape == hidden.fields[0].shape == (1, 1, 2) and cells.fields[0].shape == (1, 1, 3)


def test_a_state_of_fixed_size_keeps_a_cells_units() -> None:
    desk = Desk()
    weights = {"w_ih": desk.named("w", 6, 4), "w_hh": desk.named("v", 6, 2), "b_ih": None, "b_hh": None}
    desk.run("gru_cell", (3, 2), input=Value((3, 4)), hx=Value((3, 2)), **weights)
    assert all(desk.stays("w")) and all(desk.stays("v", 1))
