"""A gated model inside a bigger one: its gates count in the whole; what needs its plan names the part to use."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from tests.surgery.exactness import LIMIT, error, outputs, randomise_


class Detector(nn.Module):
    """A gated backbone, a head of its own, and perhaps a gate placed by hand."""

    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 5))
        self.gate: nn.Module = hg.Gate(5) if by_hand else nn.Identity()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gate(self.backbone(x)))


def rows() -> Tensor:
    return torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def nested(by_hand: bool = False) -> Detector:
    model = Detector(by_hand).double()
    randomise_(model)
    if by_hand:
        model.gate = hg.Gate(5)
    hg.insert_gates_(model.backbone, rows(), floor=1, order="random:3")
    return model


def test_its_gates_are_the_wholes_gates() -> None:
    model = nested()
    assert list(hg.gates(model)) == ["backbone.0", "backbone.2"]
    assert hg.gates(model)["backbone.0"].offset.data_ptr() == hg.gates(model.backbone)["0"].offset.data_ptr()
    assert [gate.name for gate in hg.status(model).gates] == ["backbone.0", "backbone.2"]


def test_beside_gates_placed_by_hand() -> None:
    model = nested(by_hand=True)
    assert list(hg.gates(model)) == ["gate", "backbone.0", "backbone.2"]
    weights, offsets = hg.param_groups(model, lr=0.1)
    assert len(offsets["params"]) == 2
    held = {id(parameter) for group in (weights, offsets) for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    assert not {id(parameter) for parameter in weights["params"]} & {id(p) for p in offsets["params"]}
    assert hg.penalty(model).item() == pytest.approx(1.0)


def test_training_moves_them_within_their_bounds() -> None:
    model = nested()
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.01, offset_lr=0.1))
    (model(rows()).square().mean() + 10 * hg.penalty(model)).backward()
    optimizer.step()
    for gate in hg.gates(model).values():
        assert gate.offset.item() == pytest.approx(0.9, abs=1e-5)
    hg.freeze_(model)
    assert all(gate.frozen for gate in hg.gates(model.backbone).values())


def test_baked_and_removed_from_outside_it_is_the_same_function() -> None:
    model = nested(by_hand=True)
    with torch.no_grad():
        for number, gate in enumerate(hg.gates(model).values()):
            gate.offset.fill_(-1.3 - 0.6 * number)
    expected = outputs(model, rows())
    baked = copy.deepcopy(model)
    hg.bake_(baked)
    assert all(bool(gate.baked) for gate in hg.gates(baked).values())
    assert error(expected, outputs(baked, rows())) < LIMIT
    hg.remove_gates_(model)
    assert hg.gates(model) == {} and not any("headgate" in name for name in model.state_dict())
    assert type(model.backbone[2]) is nn.Linear
    assert not model.backbone._forward_pre_hooks
    assert error(expected, outputs(model, rows())) < LIMIT


def test_kept_counts_as_compaction_would() -> None:
    model = nested()
    with torch.no_grad():
        hg.gates(model)["backbone.0"].offset.fill_(-2.3)
    assert hg.kept(model) == hg.kept(model.backbone) < 1


REFUSED: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "compact": (hg.compact, "compact(model.get_submodule('backbone')) is its smaller twin"),
    "kept": (lambda model: hg.kept(model, of="params"), "kept(model.get_submodule('backbone'), of='params')"),
    "Budget": (lambda model: hg.Budget(model, params=0.5, steps=1000), "Budget(model.get_submodule('backbone'), …)"),
    "insert_gates_": (lambda model: hg.insert_gates_(model, rows()), "remove_gates_(model.get_submodule('backbone'))"),
    "transfer_": (
        lambda model: hg.transfer_(torch.optim.SGD(model.parameters()), model, nn.Linear(2, 2)),
        "transfer_(optimizer, model.get_submodule('backbone'), small)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_goes_by_the_parts_plan_names_the_part(name: str, by_hand: bool) -> None:
    use, words = REFUSED[name]
    if name == "kept" and by_hand:
        pytest.skip("gates placed by hand are named there")
    with pytest.raises(
        hg.GateError, match=rf"^{name}: gates were inserted into the part 'backbone' of this Det"
    ) as told:
        use(nested(by_hand))
    assert words in str(told.value)


def test_a_plan_is_for_a_network_without_inserted_gates() -> None:
    model = nested()
    for gated in (model, model.backbone):
        with pytest.raises(hg.GateError, match=r"find_groups: gates were inserted .* remove_gates_\(model\)"):
            hg.find_groups(gated, rows())


def test_the_part_is_compacted_in_its_place_and_trained_on() -> None:
    model = nested()
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.01), momentum=0.9)
    model(rows()).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-2.3)
    hg.bake_(model)
    expected = outputs(model, rows())
    small = hg.compact(model.backbone)
    hg.transfer_(optimizer, model.backbone, small)
    model.backbone = small
    assert error(expected, outputs(model, rows())) < LIMIT
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
