"""The plan as it is printed, and as it is cut down by a trial."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.channels.plan import STAYS
from headgate.errors import TraceError
from headgate.surgery.planning import find_groups

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


def test_a_copy_of_a_plan_is_the_plan(plan: hg.Plan) -> None:
    assert copy.deepcopy(plan) is plan


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


class Joined(nn.Module):
    """A branch that is added to two groups side by side, and to channels that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.branch = nn.Linear(5, 6), nn.Linear(5, 7), nn.Linear(18, 18)
        self.last = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        stream = torch.cat([self.left(x), x, self.right(x)], 1)
        return self.last(stream + self.branch(stream))


def test_a_branch_that_writes_into_several_groups_is_printed_with_all_of_them():
    plan = find_groups(Joined(), torch.randn(2, 5))
    (branch,) = plan.branches
    assert branch.group is None
    assert plan.written_into(branch) == ("left", None, "right")
    assert re.search(r"branch:write +18 +left, channels that stay, right$", str(plan), re.MULTILINE)


class Counting(nn.Sequential):
    """Its code looks at a number of channels, which only a trial can tell."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self[0](x)
        return self[1](hidden / hidden.shape[1])


def test_what_fails_in_the_trial_is_no_group():
    plan = find_groups(Counting(nn.Linear(5, 8), nn.Linear(8, 3)), torch.randn(2, 5))
    assert plan.groups == ()
    assert "0: trial: outputs differ by" in str(plan)
