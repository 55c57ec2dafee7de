"""Indices that carry a head and a place: masks multiply, an index stays iff both stay, and all that counts agrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.fused import layout
from tests.attention_toys import HEADS, PLACES, WIDTH, SelfAttention, between, masked_kernel, merged, plain_kernel
from tests.place_toys import VALUES, Inferred, InnerWidth, ReadByRows, Valued, by_matmul, fused
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, parameters, randomise_
from tests.surgery.test_attention import SOURCES, TOKENS, Attending
from tests.toys import tokens

X = tokens().double()
Q, V = "attention.q", "attention.v"
BUILDS: dict[str, Callable[[], nn.Module]] = {
    "by attributes": lambda: between(Valued(fused))(),
    "left open": lambda: between(Inferred(fused))(),
    "product kept": lambda: between(InnerWidth())(),
    "read by rows": lambda: between(ReadByRows())(),
}


def gated(name: str, **options: Any) -> nn.Module:
    model = randomise_(BUILDS[name]()).double()
    hg.insert_gates_(model, X, floor=1, **options)
    return model


def open_(model: nn.Module, heads: int, places: int) -> None:
    """Closes all but so many heads and so many places of each."""
    with torch.no_grad():
        hg.gates(model)[Q].offset.fill_(5 * (heads - 0.5) / HEADS - 5)
        hg.gates(model)[V].offset.fill_(5 * (places - 0.5) / VALUES - 5)


def test_the_mask_on_a_channel_is_the_product_of_its_head_and_its_place() -> None:
    model = gated("by attributes", scale="plain", where=lambda name, _: name in (Q, V))
    open_(model, 3, 2)
    gates = hg.gates(model)
    dense = model.attention.o.parametrizations.weight.original
    mask = torch.outer(gates[Q].mask(), gates[V].mask()).flatten()
    torch.testing.assert_close(model.attention.o.weight, dense * mask)
    assert int((mask > 0).sum()) == 3 * 2


@pytest.mark.parametrize("order", ["index", "random:1", "random:2"])
@pytest.mark.parametrize("name", BUILDS)
def test_what_is_left_is_heads_times_places(name: str, order: str) -> None:
    model = gated(name, order=order)
    open_(model, 3, 2)
    share, small = hg.kept(model, of="params"), hg.compact(model)
    attention = small.attention
    assert attention.q.out_features == attention.k.out_features == 3 * PLACES
    assert attention.v.out_features == 3 * 2 and attention.num_heads == 3
    assert attention.value_dim == (2 if name == "by attributes" else VALUES)
    assert getattr(attention, "inner_dim", 6) == 6
    assert error(outputs(model, X), outputs(small, X)) < LIMIT
    assert share == parameters(small) / parameters(BUILDS[name]())


@pytest.mark.parametrize("heads", range(1, HEADS + 1))
@pytest.mark.parametrize("places", range(1, VALUES + 1))
def test_every_combination_is_exact_and_counted(heads: int, places: int) -> None:
    plan = hg.find_groups(model := randomise_(BUILDS["left open"]()).double(), X)
    generator = torch.Generator().manual_seed(heads * 10 + places)
    keep = {
        Q: torch.rand(HEADS, generator=generator).argsort() < heads,
        V: torch.rand(VALUES, generator=generator).argsort() < places,
    }
    silenced = torch.outer(keep[Q], keep[V]).flatten()
    with torch.no_grad():
        model.attention.o.weight.mul_(silenced)
    small = hg.shrink(model, plan, keep)
    assert torch.equal(small.attention.v.weight, model.attention.v.weight[silenced])
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


@pytest.mark.parametrize("name", BUILDS)
def test_saved_loaded_and_cut_again(name: str, tmp_path: Path) -> None:
    model = gated(name, order="random:4", branches="full")
    open_(model, 3, 4)
    once = hg.compact(model)
    hg.insert_gates_(once, X, floor=1)
    move_offsets_(once, 1)
    twice = hg.compact(once)
    assert error(outputs(once, X), outputs(twice, X)) < LIMIT
    hg.save(twice, tmp_path / "twice.safetensors")
    loaded = hg.load(tmp_path / "twice.safetensors", BUILDS[name])
    assert all(map(torch.equal, outputs(twice, X), outputs(loaded, X)))


def test_either_alone() -> None:
    for site, left in ((Q, (HEADS, 3 * VALUES)), (V, (VALUES, HEADS * 3))):

        def chosen(name: str, _: nn.Module, site: str = site) -> bool:
            return name == site

        model = randomise_(BUILDS["left open"]()).double()
        gates = hg.insert_gates_(model, X, floor=1, where=chosen)
        assert {name: gate.n for name, gate in gates.items()} == {site: left[0]}
        with torch.no_grad():
            gates[site].offset.fill_(-2.3)
        small = hg.compact(model)
        assert small.attention.v.out_features == left[1]
        assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_a_budget_counts_both() -> None:
    torch.manual_seed(0)
    model, x = BUILDS["by attributes"](), X.float()
    hg.insert_gates_(model, x, floor=1, order="random:3")
    optimizer = torch.optim.Adam(hg.param_groups(model, lr=1e-3))
    budget = hg.Budget(model, x, params=0.5, steps=100)
    for _ in range(100):
        loss = model(x).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step()
    share, small = hg.kept(model, of="params"), hg.compact(model)
    assert budget.met and share <= 0.5
    assert parameters(small) / parameters(BUILDS["by attributes"]()) == share
    hg.transfer_(optimizer, model, small)
    small(x).square().mean().backward()
    optimizer.step()


def test_multiples_hold_whatever_both_leave() -> None:
    """Places are filled up to a multiple by themselves, so that any number of heads times them is one."""
    model = gated("left open", multiple_of=4)
    open_(model, 3, 2)
    small = hg.compact(model)
    assert small.attention.v.out_features % 4 == 0 and small.attention.v.out_features == 4 * 4
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_floors_are_in_channels_of_one_head() -> None:
    """Four channels: two heads of three, four of the five places."""
    gates = hg.insert_gates_(randomise_(BUILDS["left open"]()), X.float(), floor=4)
    assert (gates[Q].floor, gates[V].floor) == (2, 4)


def mean_square(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).square().mean()


@pytest.mark.parametrize("criterion", ["magnitude", "variance", "taylor"])
def test_orders_from_data_see_each_side(criterion: Any) -> None:
    """One head and one place hardly say anything: they close first."""
    model = randomise_(BUILDS["left open"]())
    attention = model.attention
    with torch.no_grad():
        for part in (attention.q, attention.k, attention.v):
            part.weight.view(HEADS, -1, WIDTH)[2] *= 1e-3
            part.bias.view(HEADS, -1)[2] *= 1e-3
        attention.v.weight.view(HEADS, VALUES, WIDTH)[:, 3] *= 1e-3
        attention.v.bias.view(HEADS, VALUES)[:, 3] *= 1e-3
    target = torch.randn(model(X.float()).shape, generator=torch.Generator().manual_seed(0))
    loss_fn = mean_square if criterion == "taylor" else None
    orders = hg.order_by(model, criterion, [(X.float(), target)], loss_fn=loss_fn)
    assert int(orders[Q].argmin()) == 2 and int(orders[V].argmin()) == 3
    gates = hg.insert_gates_(model, X.float(), floor=1, order=orders)
    with torch.no_grad():
        gates[Q].offset.fill_(-1.3)
    assert gates[Q].keep().tolist() == [True, True, False, True]


@pytest.mark.parametrize("criterion", ["magnitude", "variance"])
def test_places_of_queries_and_keys_are_ordered_by_magnitude(criterion: Any) -> None:
    """No weight reads them, so that no activation is looked at."""
    model = randomise_(between(Inferred(by_matmul))())
    with torch.no_grad():
        for part in (model.attention.q, model.attention.k):
            part.weight.view(HEADS, PLACES, WIDTH)[:, 1] *= 1e-3
    assert int(hg.order_by(model, criterion, [X.float()])["attention.k"].argmin()) == 1


def test_taylor_of_a_place_is_the_slope_along_its_mask() -> None:
    model = randomise_(BUILDS["left open"]()).double()
    target = torch.randn(model(X[:1]).shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(VALUES, dtype=torch.float64, requires_grad=True)
    weight = model.attention.o.weight.detach()
    masked = {"attention.o.weight": weight * mask.repeat(HEADS)}
    mean_square(torch.func.functional_call(model, masked, X[:1]), target).backward()
    assert mask.grad is not None
    orders = hg.order_by(model, "taylor", [(X[:1], target)], loss_fn=mean_square)
    assert orders[V].tolist() == mask.grad.abs().argsort().argsort().tolist()


def by_hand(closed: list[int]) -> nn.Module:
    """A gate over all channels between attention and its output projection, with these closed."""

    class ByHand(Inferred):
        def __init__(self) -> None:
            super().__init__(fused)
            self.gate = hg.Gate(HEADS * VALUES, dim=-1)

        def forward(self, x: Tensor) -> Tensor:
            parts = (self.q(x), self.k(x), self.v(x))
            q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
            return self.o(self.gate(merged(fused(q, k, v))))

    model = randomise_(between(ByHand())()).double()
    order = [index for index in range(HEADS * VALUES) if index not in closed]
    places = torch.tensor([*closed, *order]).argsort()
    model.attention.gate = hg.Gate(HEADS * VALUES, dim=-1, order=places).double()
    with torch.no_grad():
        model.attention.gate.offset.fill_(-5 * len(closed) / (HEADS * VALUES))
    return model


HEAD_1 = list(range(VALUES, 2 * VALUES))
PLACE_2 = list(range(2, HEADS * VALUES, VALUES))


@pytest.mark.parametrize(
    ("closed", "left"),
    [(HEAD_1, (3, 5)), (PLACE_2, (4, 4)), (sorted({*HEAD_1, *PLACE_2}), (3, 4))],
    ids=["a head", "a place", "both"],
)
def test_gates_placed_by_hand_close_heads_and_places(closed: list[int], left: tuple[int, int]) -> None:
    model = by_hand(closed)
    assert model.attention.gate.active == HEADS * VALUES - len(closed)
    small = hg.compact(model, X)
    assert small.attention.num_heads == left[0]
    assert small.attention.v.out_features == left[0] * left[1]
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_a_gate_placed_by_hand_that_closes_parts_of_heads_is_refused_by_name() -> None:
    model = by_hand([0, 6])
    with pytest.raises(hg.GateError, match=r"attention\.gate.*whole heads, or a place of all heads"):
        hg.compact(model, X)
    small = hg.compact(model, X, unremovable="scale")
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_one_size_for_all_three_is_told_by_name() -> None:
    model = nn.Sequential(nn.Linear(6, WIDTH), *(SelfAttention(plain_kernel) for _ in range(3)))
    plan = hg.find_groups(model, tokens())
    assert {group.name for group in plan.groups} == {"0", "1.q", "1.o", "2.q", "2.o", "3.q"}
    for i in (1, 2, 3):
        assert f"{i}.v: trial: the model's own code does not run on fewer channels" in str(plan)


def test_torchs_attention_with_weights_of_their_own_loses_places_of_values() -> None:
    model = randomise_(Attending(batch_first=True, kdim=7, vdim=7, bias=False)).double()
    example = (TOKENS.double(), SOURCES[..., :7].double())
    gates = hg.insert_gates_(model, example, floor=1)
    assert {name: gate.n for name, gate in gates.items()} == {"attention": 4, "attention#2": 3}
    with torch.no_grad():
        gates["attention#2"].offset.fill_(-2.0)  # no head goes
    small = hg.compact(model)
    assert small.attention.num_heads == 4 and small.attention.v_proj_weight.shape == (4 * 2, 7)
    assert error(outputs(model, example), outputs(small, example)) < LIMIT


def test_two_masks_along_one_axis_are_left_to_plain_operations() -> None:
    """The kernels take one mask along the rows and one along the columns."""
    weight = torch.randn(HEADS * VALUES, WIDTH)
    assert layout(weight, (0,)) is not None and layout(weight, (0, 1)) is not None
    assert layout(weight, (0, 0)) is None and layout(weight, (1, 1)) is None


def test_a_place_of_queries_and_keys_is_masked_on_the_rows_of_the_queries() -> None:
    model = randomise_(between(Inferred(by_matmul))()).double()
    gates = hg.insert_gates_(model, X, floor=1, scale="plain", where=lambda name, _: name == "attention.k")
    with torch.no_grad():
        gates["attention.k"].offset.fill_(-2.0)
    mask, attention = gates["attention.k"].mask().repeat(HEADS), model.attention
    for leaf in ("weight", "bias"):
        dense = getattr(attention.q.parametrizations, leaf).original
        torch.testing.assert_close(getattr(attention.q, leaf), dense * mask.view(-1, *[1] * (dense.dim() - 1)))
    assert not hasattr(attention.k, "parametrizations") and not hasattr(attention.o, "parametrizations")
    small = hg.compact(model)
    assert small.attention.q.out_features == small.attention.k.out_features == HEADS * 2
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_places_of_all_three_go_together_where_one_attribute_gives_their_size() -> None:
    model = randomise_(between(SelfAttention(masked_kernel))()).double()
    plan = hg.find_groups(model, X)
    (group,) = (group for group in plan.groups if group.name == "attention.k")
    rows = {(f"attention.{part}.{leaf}", 0) for part in "kqv" for leaf in ("weight", "bias")}
    assert {*group.writers, *group.readers} == rows | {("attention.o.weight", 1)}
    keep = torch.tensor([True, False, True])
    with torch.no_grad():
        model.attention.o.weight.mul_(keep.repeat(HEADS))
        model.attention.q.weight.mul_(keep.repeat(HEADS)[:, None])
        model.attention.q.bias.mul_(keep.repeat(HEADS))
    small = hg.shrink(model, plan, {"attention.k": keep})
    assert small.attention.head_dim == 2 and small.attention.v.out_features == HEADS * 2
    assert error(outputs(model, X), outputs(small, X)) < LIMIT


def test_tied_groups_share_their_numbers() -> None:
    plan = hg.find_groups(between(Inferred(by_matmul, values=PLACES))(), X.float())
    assert {group.name: group.size for group in plan.groups} == {Q: HEADS, "attention.k": PLACES, V: PLACES}
    tied = plan.with_tied({V: "attention.k"})
    assert [group.name for group in tied.groups] == [Q, "attention.k"] and tied.size == HEADS + PLACES
    assert (
        tied.axes["attention.v.weight", 0] == tied.axes["attention.k.weight", 0] == tied.axes["attention.o.weight", 1]
    )
    assert len(tied.products) == HEADS * PLACES
    assert sorted(tied.products) == [(h, HEADS + j) for h in range(HEADS) for j in range(PLACES)]
