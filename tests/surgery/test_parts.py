"""Models whose root no graph can follow: their parts are pruned, and the whole stays exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headgate as hg


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


class Chooser(nn.Module):
    """Keeps as many rows as the values say: the size of what follows depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"deep": Part()})
        self.head = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone["deep"](x).mean((2, 3))
        count = int((features[:, 0] > features[:, 0].median()).sum()) + 1
        return self.head(features[:count])


class Hopeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if float(x.sum()) > 0 else x


def test_parts_are_found_under_the_names_of_the_whole():
    plan = hg.find_groups(Chooser(), torch.randn(4, 3, 6, 6))
    assert {group.name: group.size for group in plan.groups} == {"backbone.deep.first": 8, "head.0": 10}
    assert all(obstacle.path for refusal in plan.refusals for obstacle in refusal.obstacles)


def test_the_whole_stays_exact():
    torch.manual_seed(0)
    model, example = Chooser().double().eval(), torch.randn(4, 3, 6, 6, dtype=torch.float64)
    gates = hg.insert_gates_(model, example, floor=1, order="random:3")
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(-2.6)
    small = hg.compact(model)
    torch.testing.assert_close(small(example), model(example), rtol=1e-12, atol=1e-12)
    assert small.head[0].out_features == 5
    assert small.backbone["deep"].norm.num_features == 4


def test_where_not_even_a_part_can_be_traced_the_reason_is_given():
    with pytest.raises(hg.TraceError, match="Hopeless"):
        hg.find_groups(Hopeless(), torch.randn(2, 3))
