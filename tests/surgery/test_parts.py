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


def test_what_leaves_a_part_stays_for_the_reason_that_holds():
    plan = hg.find_groups(Chooser(), torch.randn(4, 3, 6, 6))
    reasons = {axis: set(map(str, refusal.obstacles)) for refusal in plan.refusals for axis in refusal.axes}
    words = "returns it to code that torch.export cannot trace"
    assert reasons["backbone.deep.second.weight", 0] == {f"backbone.deep.second: border: backbone.deep {words}"}
    assert reasons["head.2.weight", 0] == {f"head.2: border: head {words}"}


class GatedPart(Chooser):
    """A gate placed by hand where a part ends: what reads its channels is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone["deep"] = nn.Sequential(Part(), hg.Gate(6, offset=-2.3))


def test_a_gate_at_the_border_of_a_part_is_refused_for_that_reason():
    torch.manual_seed(0)
    model, example = GatedPart().double().eval(), torch.randn(4, 3, 6, 6, dtype=torch.float64)
    with pytest.raises(hg.GateError, match=r"gate 'backbone.deep.1': .*backbone.deep returns it to code that"):
        hg.compact(model, example)
    small = hg.compact(model, example, unremovable="scale")
    torch.testing.assert_close(small(example), model(example), rtol=1e-12, atol=1e-12)


def test_an_example_that_does_not_fit_is_no_fault_of_the_tracer():
    with pytest.raises(hg.ArgumentError, match=r"find_groups: Chooser does not run .* module 'backbone.deep.first'"):
        hg.find_groups(Chooser(), torch.randn(4, 2, 6, 6))
