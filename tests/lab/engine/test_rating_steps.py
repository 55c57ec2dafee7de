"""Steps of one shape learn what steps just as large as their subgraphs learn, and never ask the host."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import headgate as hg
from headgate_lab.data.batch_index import Kept
from headgate_lab.data.fixed_batch import Room
from headgate_lab.data.subgraphs import enclosing
from headgate_lab.engine import captured, rating_networks
from headgate_lab.engine.fitting import OFFSET, Fitting
from headgate_lab.engine.rating_networks import RatingNetworks
from headgate_lab.engine.rating_steps import FixedRatingSteps
from headgate_lab.models.igmc import Igmc
from tests.lab.rated import random_ratings

CPU = torch.device("cpu")
METHODS = {
    "control": (lambda: nn.Identity(), Fitting(batch=7)),
    "no edge is dropped": (lambda: nn.Identity(), Fitting(batch=7, edge_dropout=0.0)),
    "dropout": (lambda: nn.Identity(), Fitting(batch=7, dropout=0.5)),
    "gate": (lambda: hg.Gate(8, dim=-1, order="index0"), Fitting(batch=7, strength=0.5)),
    "gate with a floor": (
        lambda: hg.Gate(8, dim=-1, scale="relative", floor=3),
        Fitting(batch=7, strength=100.0, offset_lr=0.3),
    ),
}


def training(
    method: str, seeds: int = 2, relations: int = 4, *, fixed: bool, double: bool = True, device: torch.device = CPU
) -> RatingNetworks:
    graph = random_ratings(14, 12, relations, share=0.35)
    subgraphs = enclosing(graph, graph.users, graph.items)
    gate, fitting = METHODS[method]
    networks = [
        Igmc(relations, gate(), width=5, hidden=8, generator=torch.Generator().manual_seed(seed))
        for seed in range(seeds)
    ]
    if double:
        networks = [network.double() for network in networks]
    ratings = 1.0 + graph.relations.to(torch.float64 if double else torch.float32)
    return RatingNetworks(networks, subgraphs, ratings, fitting, list(range(seeds)), device, fixed=fixed)


def same(one: RatingNetworks, other: RatingNetworks, tolerance: float = 1e-9) -> None:
    for name, value in one.parameters.items():
        torch.testing.assert_close(value, other.parameters[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_epochs_are_the_same(method: str, seeds: int) -> None:
    plain, fixed = (training(method, seeds, fixed=fixed) for fixed in (False, True))
    assert len(plain.ratings) % 7 != 0  # the last step is smaller
    for _ in range(3):
        assert fixed.epoch() == pytest.approx(plain.epoch(), rel=1e-6)
    same(fixed, plain)
    if method == "gate with a floor":
        assert torch.equal(fixed.parameters[OFFSET], torch.full_like(fixed.parameters[OFFSET], fixed.lowest))


def test_predictions_are_the_same_however_many_at_once() -> None:
    trained = training("gate", fixed=False)
    trained.epoch()
    assert trained.at_once == 7
    few = trained.predict(trained.batches)
    trained.at_once = rating_networks.MANY_PAIRS
    torch.testing.assert_close(trained.predict(trained.batches), few, rtol=0, atol=1e-12)


def test_many_relations() -> None:
    plain, fixed = (training("control", relations=11, fixed=fixed) for fixed in (False, True))
    assert [fixed.epoch() for _ in range(2)] == [pytest.approx(plain.epoch(), rel=1e-6) for _ in range(2)]
    same(fixed, plain)


def test_single_precision() -> None:
    plain, fixed = (training("gate", fixed=fixed, double=False) for fixed in (False, True))
    for _ in range(3):
        assert fixed.epoch() == pytest.approx(plain.epoch(), rel=1e-4)
    same(fixed, plain, 1e-3)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_steps_that_do_not_fit_are_taken_all_the_same(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fixed = (training("dropout", fixed=fixed) for fixed in (False, True))
    steps = fixed.steps
    assert isinstance(steps, FixedRatingSteps)

    def too_little(self: FixedRatingSteps, room: Room, *others: Any) -> None:
        lay_out(self, Room(*(int(share * each) for each in room)), *others)

    lay_out = FixedRatingSteps._lay_out_
    monkeypatch.setattr(FixedRatingSteps, "_lay_out_", too_little)
    for _ in range(2):
        assert fixed.epoch() == pytest.approx(plain.epoch(), rel=1e-6)
        assert not all(steps.fits) and (share == 0.5 or any(steps.fits))
    same(fixed, plain)


def test_fewer_pairs_than_a_step_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "control", (lambda: nn.Identity(), Fitting(batch=1000)))
    plain, fixed = (training("control", fixed=fixed) for fixed in (False, True))
    assert fixed.epoch() == plain.epoch()


def test_what_is_read_stays_where_it_is() -> None:
    """A captured step reads the addresses that it was captured with."""
    fixed = training("dropout", fixed=True)
    fixed.epoch()
    steps = fixed.steps
    assert isinstance(steps, FixedRatingSteps)
    read = [*steps.read, steps.position, fixed.total, *fixed.parameters.values()]
    before, values = [each.data_ptr() for each in read], [each.clone() for each in steps.read]
    fixed.epoch()
    assert [each.data_ptr() for each in read] == before and steps.read[0] is read[0]
    assert not any(torch.equal(now, then) for now, then in zip(steps.read, values, strict=True))


def test_a_checkpoint_of_another_device() -> None:
    """There the rates are tensors, and Adam is told that it is captured: neither is taken over."""
    one, other, plain = (training("gate with a floor", fixed=fixed) for fixed in (True, True, False))
    one.epoch()
    state = copy.deepcopy(one.state_dict())
    for group in state["optimizer"]["param_groups"]:
        group |= {"lr": torch.tensor(5.0), "capturable": True}
    one.epoch()
    for going_on in (other, plain):
        going_on.load_state_dict(copy.deepcopy(state))
        going_on.epoch()
        same(going_on, one)
        assert not any(group["capturable"] for group in going_on.optimizer.param_groups)


class NothingIsRead(TorchDispatchMode):
    """Refuses what a capture does: sizes and values that only the device knows, and tensors that are elsewhere."""

    refused = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "repeat_interleave",
        "unique_dim",
        "_unique2",
        "equal",
    )

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        found = operation(*args, **(kwargs or {})) if name not in self.refused else None
        met = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor)]
        by_mask = name in ("index", "index_put", "index_put_") and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if name in self.refused or by_mask or any(each.device != self.device for each in met):
            raise AssertionError(f"{operation} cannot be captured")
        return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_step_asks_the_host_for_nothing(method: str, seeds: int) -> None:
    fixed = training(method, seeds, fixed=True)
    fixed.steps.begin_(*fixed.drawn())
    with NothingIsRead(CPU):
        for number in range(len(fixed.ratings) // 7):
            fixed.steps.take_(number)
        # The last step is smaller, and is not captured.
        with pytest.raises(AssertionError, match="cannot be captured"):
            fixed.steps.take_(len(fixed.ratings) // 7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seeds", [1, 2])
def test_nothing_in_a_step_comes_from_the_host(method: str, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device where there are no values: whatever reads one, or meets a tensor of the host, fails."""
    # Adam has no step there.
    monkeypatch.setattr(rating_networks, "adam", lambda parameters, *_: torch.optim.SGD(parameters.values(), lr=0.1))
    order, kept, noise = training(method, seeds, fixed=True).drawn()
    there = torch.device("meta")
    fixed = training(method, seeds, fixed=True, device=there)
    fixed.steps.begin_(order, Kept(*(part.to(there) for part in kept)), None if noise is None else noise.to(there))
    with NothingIsRead(there):
        for number in range(len(fixed.ratings) // 7):
            fixed.steps.take_(number)


class Counted(TorchDispatchMode):
    """How many operations compute something; views do not."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not operation.is_view
        return operation(*args, **(kwargs or {}))


def test_a_step_has_few_operations() -> None:
    """On a GPU its time is their number, whatever their size."""
    fixed = training("gate", fixed=True)
    fixed.steps.begin_(*fixed.drawn())
    fixed.steps.take_(0)
    with Counted() as counted:
        fixed.steps.take_(1)
    assert counted.count < 440


@pytest.mark.parametrize("broken", [0, 1])
def test_a_network_that_diverges_leaves_the_others_alone(broken: int) -> None:
    alone, beside = training("gate", fixed=True), training("gate", fixed=True)
    with torch.no_grad():
        beside.parameters["layers.0.root"][broken] = torch.nan
    for one in (alone, beside):
        one.epoch()
    for name, value in beside.parameters.items():
        assert torch.equal(value[1 - broken], alone.parameters[name][1 - broken]), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_captured_steps_learn_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers differ between devices, so both are given those of the CPU."""
    there = torch.device("cuda")
    plain, fixed = training(method, fixed=False), training(method, fixed=True, device=there)
    for _ in range(3):
        order, kept, noise = plain.drawn()
        told = order, Kept(*(part.to(there) for part in kept)), None if noise is None else noise.to(there)
        monkeypatch.setattr(fixed, "drawn", lambda told=told: told)
        assert fixed.epoch() == pytest.approx(plain.epoch(), rel=1e-6)
    for name, value in fixed.parameters.items():
        torch.testing.assert_close(value.cpu(), plain.parameters[name], rtol=1e-6, atol=1e-6, msg=name)
    plain.load_state_dict(fixed.state_dict())
    fixed.load_state_dict(plain.state_dict())
    fixed.epoch()


def test_every_call_is_one_step_plain_or_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def wait_stream(self, other: Stream) -> None:
            order.append("wait")

    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(captured, "captured", lambda step: lambda: order.append("replay"))
    for kind, wanted in ("cuda", ["wait", "plain", "wait"] * 3 + ["replay"] * 2), ("cpu", ["plain"] * 5):
        order.clear()
        take = captured.PlainThenCaptured(lambda: order.append("plain"), torch.device(kind))
        for _ in range(5):
            take()
        assert order == wanted
