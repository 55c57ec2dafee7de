"""The flat offsets of inserted gates: what a gate of the bank answers is what a hand-placed gate answers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.bank import (
    BANK,
    Bank,
    GateSpec,
    Offsets,
    bank_of,
    find_last_,
    guarded,
    install_bank_,
    unguarded,
    uninstall_bank_,
)
from headgate.orders import places_of

SIZES = (3, 8, 5)


def banked(scale: str = "plain", order: str = "index", fn: str = "relu_tanh", steepness: float = 1.0) -> Bank:
    root, first, specs, places = nn.Linear(2, 2), 0, [], []
    for number, n in enumerate(SIZES):
        specs.append(GateSpec(f"gate{number}", first, n, number))
        found, count_from = places_of(order, n)
        places.append(found)
        first += n
    install_bank_(root, Bank(root, tuple(specs), 1.0, 5.0, steepness, fn, scale, count_from), places)
    bank = bank_of(root)
    assert bank is not None
    return bank


def by_hand(n: int, floor: int, scale: str, order: str, fn: str, steepness: float) -> hg.Gate:
    return hg.Gate(n, scale=scale, order=order, fn=fn, steepness=steepness, floor=floor)


@pytest.mark.parametrize("scale", ["plain", "relative"])
@pytest.mark.parametrize("order", ["index", "random:3", "index0"])
@pytest.mark.parametrize(("fn", "steepness"), [("relu_tanh", 1.0), ("relu_tanh", 2.5), ("linear", 1.0)])
def test_masks_counts_and_gradients_are_those_of_gates_placed_by_hand(
    scale: str, order: str, fn: str, steepness: float
):
    bank = banked(scale, order, fn, steepness)
    for offsets in ([1.0, 1.0, 1.0], [0.3, -2.2, -4.4], [-3.0, 0.9, -1.7]):
        with torch.no_grad():
            bank.offset.copy_(torch.tensor(offsets))
        bank.offset.grad = None
        flat = bank.masks(range(3))
        (flat.square() * torch.arange(1.0, 17)).sum().backward()
        pieces, weights = flat.split(SIZES), torch.arange(1.0, 17).split(SIZES)
        for number, (name, gate) in enumerate(bank.views().items()):
            twin = by_hand(SIZES[number], number, scale, order, fn, steepness)
            with torch.no_grad():
                twin.offset.fill_(offsets[number])
            (twin.mask().square() * weights[number]).sum().backward()
            assert name == f"gate{number}" and gate.n == twin.n
            assert torch.allclose(pieces[number], twin.mask(), atol=1e-6)
            assert torch.allclose(gate.mask(), pieces[number])
            assert torch.equal(gate.keep(), twin.keep()) and gate.active == int(twin.keep().sum())
            assert torch.allclose(bank.offset.grad[number], twin.offset.grad.squeeze(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", ["index", "index0"])
def test_the_lowest_offset_is_that_of_gates_placed_by_hand(order: str):
    bank = banked(order=order)
    for number, (n, lowest) in enumerate(zip(SIZES, bank.lowest.tolist(), strict=True)):
        assert lowest == pytest.approx(by_hand(n, number, "plain", order, "relu_tanh", 1.0).lowest.item())
        with torch.no_grad():
            bank.offset[number] = lowest
    assert [gate.active for gate in bank.views().values()] == [0, 1, 2]


def test_neighbouring_gates_alone():
    bank = banked("relative", "random:1")
    with torch.no_grad():
        bank.offset.copy_(torch.tensor([-1.0, -2.0, -3.0]))
    assert torch.equal(bank.masks(range(1, 3)), bank.masks(range(3))[3:])
    assert torch.equal(bank.mask(1), bank.masks(range(3))[3:11])


@pytest.mark.parametrize("order", ["index", "random:4"])
def test_a_relative_mask_has_a_largest_entry_of_one(order: str):
    bank = banked("relative", order)
    for value in (1.0, 0.0, -2.0, -3.9):
        with torch.no_grad():
            bank.offset.fill_(value)
        for mask in bank.masks(range(3)).split(SIZES):
            assert mask.max() == 1 and mask.min() >= 0
    with torch.no_grad():
        bank.offset.fill_(-5.0)
    assert not bank.masks(range(3)).any(), "closed altogether: zeros, nothing infinite"


def test_the_last_unit_follows_the_places():
    bank = banked("relative")
    with torch.no_grad():
        bank.root.headgate_places.copy_(guarded(torch.cat([torch.arange(n).flip(0) for n in SIZES])))
        find_last_(bank)
        bank.offset.fill_(-2.0)
    assert bank.numbers("headgate_last").tolist() == [0, 3, 11]
    assert bank.mask(1)[0] == 1 and bank.mask(1)[-1] == 0


def test_an_offset_that_is_no_number_is_named():
    bank = banked()
    with torch.no_grad():
        bank.offset[1] = float("inf")
    assert bank.views()["gate0"].active == 3
    with pytest.raises(hg.GateError, match="gate1"):
        bank.views()["gate1"].keep()


@pytest.mark.parametrize(
    "cast", [nn.Module.half, nn.Module.bfloat16, lambda m: m.to(torch.half), lambda m: m.to("cpu")]
)
def test_offsets_are_never_shortened(cast: object):
    bank = banked()
    offset = bank.offset
    cast(bank.root)
    assert bank.offset is offset and offset.dtype == torch.float32
    bank.root.double()
    assert offset.dtype == torch.float64
    bank.root.to(torch.bfloat16)
    assert offset.dtype == torch.float64 or offset.dtype == torch.float32
    assert type(copy.deepcopy(bank.root).headgate_offsets) is Offsets


def test_numbers_survive_a_moving_average():
    """In floats and rounded down, as torch's AveragedModel averages buffers."""
    numbers = torch.arange(3000)
    stored, model = guarded(numbers), guarded(numbers)
    for decay in (0.9, 0.99, 0.999, 0.5, 0.3) * 20:
        stored.copy_(stored * decay + model * (1 - decay))
        assert torch.equal(unguarded(stored), numbers)


def test_without_the_guard_they_would_not():
    numbers = torch.arange(3000)
    stored = numbers.clone()
    stored.copy_(stored * 0.9 + numbers * (1 - 0.9))
    assert not torch.equal(stored, numbers)


def test_installed_and_taken_off_again():
    root = nn.Linear(2, 2)
    before = set(vars(root)), list(root.state_dict())
    bank = banked()
    assert bank_of(bank.root) is bank and bank_of(root) is None
    assert [n for n in bank.root.state_dict() if n.startswith("headgate")] == [
        "headgate_offsets",
        "headgate_places",
        "headgate_baked",
        "headgate_open",
    ]
    uninstall_bank_(bank.root)
    assert (set(vars(bank.root)), list(bank.root.state_dict())) == before
    assert not hasattr(bank.root, BANK) and not bank.root._non_persistent_buffers_set
    uninstall_bank_(root)


def test_nothing_is_read_back_to_the_host_in_a_mask():
    bank = banked("relative")
    bank.root.to("meta")
    seen: Tensor = bank.masks(range(3))
    assert seen.shape == (16,) and seen.is_meta
    assert bank.lowest.is_meta
