"""The plan as it is printed, and as it is cut down by a trial."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.channels.groups import STAYS, find_groups
from headgate.errors import TraceError

PRINTED = """\
group  units  written by        read by
0      8      0.bias, 0.weight  2.weight
2      6      2.bias, 2.weight  4.weight

stays                         size  because
0.weight (in)                 5     0: linear: reads channels that cannot be removed
4.bias (out), 4.weight (out)  3     4: output: the model returns it"""


@pytest.fixture(scope="module")
def plan() -> hg.Plan:
    layers = nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    return find_groups(nn.Sequential(*layers), torch.randn(2, 5))


def test_a_plan_prints_groups_and_reasons(plan: hg.Plan) -> None:
    assert str(plan) == PRINTED


def test_every_index_of_an_axis_has_its_unit(plan: hg.Plan) -> None:
    assert plan.axes["2.weight", 1] == plan.axes["0.bias", 0] == tuple(range(8))
    assert plan.axes["2.weight", 0] == tuple(range(8, 14))
    assert ("0.weight", 1) not in plan.axes


def test_without_a_group_the_others_are_numbered_anew(plan: hg.Plan) -> None:
    left = plan.without({"0": "because"})
    assert [(group.name, group.start, group.size) for group in left.groups] == [("2", 0, 6)]
    assert left.axes["2.weight", 0] == tuple(range(6)) and ("0.bias", 0) not in left.axes
    assert "0: trial: because" in str(left)


def test_without_any_group_no_axis_is_left(plan: hg.Plan) -> None:
    left = plan.without({"0": "one", "2": "two"})
    assert left.size == 0 and not left.axes
    assert STAYS not in {unit for units in left.axes.values() for unit in units}


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if float(x.sum()) > 0 else x


def test_a_model_that_cannot_be_traced_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError, match=r"torch\.export cannot trace Untraceable in evaluation mode"):
        find_groups(Untraceable(), torch.randn(2, 5))
    assert len(capfd.readouterr().err) < 200
