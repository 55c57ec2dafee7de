"""Orders from data: importances by hand, the model left alone, and gates that close the least important units first."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg
from headgate.surgery.information import mutual_information
from tests.surgery.exactness import outputs, randomise_
from tests.toys import PostBlock, PreBlock, conv

CRITERIA = ("magnitude", "norm_scale", "variance", "taylor", "mutual_information")


def chain(first: Iterable[Iterable[float]], second: Iterable[float], norm: Iterable[float] | None = None) -> nn.Module:
    """Inputs to hidden units by the rows of `first`, no bias; one output that reads them by `second`."""
    rows, columns = torch.tensor(first), torch.tensor([second])
    up, down = nn.Linear(rows.shape[1], rows.shape[0], bias=False), nn.Linear(rows.shape[0], 1, bias=False)
    layers = [up, *([] if norm is None else [nn.BatchNorm1d(rows.shape[0])]), nn.ReLU(), down]
    with torch.no_grad():
        up.weight.copy_(rows)
        down.weight.copy_(columns)
        if norm is not None:
            layers[1].weight.copy_(torch.tensor(norm))
    return nn.Sequential(*layers)


def places(model: nn.Module, criterion: Any, batches: Any, **options: Any) -> list[int]:
    (found,) = hg.order_by(model, criterion, batches, **options).values()
    return found.tolist()


# ---- by hand ----


def test_magnitude_is_the_norm_of_what_writes_and_reads_a_unit() -> None:
    model = chain([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [0.0, 1.0, 2.5])  # 3, √3 and 2.5
    assert places(model, "magnitude", [torch.zeros(4, 2)]) == [2, 0, 1]
    with torch.no_grad():
        model[2].weight[0, 1] = -2.9  # √(2 + 2.9²) = 3.2
    assert places(model, "magnitude", [torch.zeros(4, 2)]) == [1, 2, 0]


def test_magnitude_does_not_count_biases_and_norms() -> None:
    model = chain([[1.0], [2.0]], [0.0, 0.0], norm=[100.0, 1.0])
    model[0].bias = nn.Parameter(torch.tensor([100.0, 0.0]))
    assert places(model, "magnitude", [torch.zeros(4, 1)]) == [0, 1]


def test_norm_scale_is_the_size_of_the_scale() -> None:
    model = chain([[1.0]] * 3, [9.0, 1.0, 5.0], norm=[2.0, -7.0, 0.1])
    assert places(model, "norm_scale", [torch.zeros(4, 1)]) == [1, 2, 0]


def test_norm_scale_of_a_stream_adds_up_over_its_norms() -> None:
    model = nn.Sequential(conv(3, 3), PreBlock(3, 3), PreBlock(3, 3), nn.Flatten(), nn.Linear(48, 2))
    with torch.no_grad():
        model[1].bn1.weight.copy_(torch.tensor([5.0, -1.0, 1.0]))
        model[2].bn1.weight.copy_(torch.tensor([0.0, -3.0, 1.0]))
    with pytest.warns(hg.HeadgateWarning, match=r"equally important at '1\.conv1', "):
        assert hg.order_by(model, "norm_scale", [torch.randn(2, 3, 4, 4)])["0"].tolist() == [2, 1, 0]


def test_what_a_criterion_says_nothing_about_is_ordered_by_magnitude() -> None:
    layers = chain([[1.0]] * 2, [3.0, 1.0], norm=[1.0, 2.0]).children()
    model = nn.Sequential(*layers, nn.Linear(1, 3), nn.Linear(3, 1))
    with torch.no_grad():
        model[4].weight.copy_(torch.tensor([[5.0], [1.0], [3.0]]))
        model[5].weight.zero_()
    found = hg.order_by(model, "norm_scale", [torch.zeros(4, 1)])
    assert found["0"].tolist() == [0, 1] and found["4"].tolist() == [2, 0, 1]
    with pytest.raises(hg.ArgumentError, match="norm_scale: Sequential has nothing"):
        hg.order_by(chain([[1.0]] * 2, [3.0, 1.0]), "norm_scale", [torch.zeros(4, 1)])


def test_variance_is_that_of_all_batches_together() -> None:
    model = chain([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0])
    # Unit 0 changes between batches only: 4, 4, 4 | 0, variance 3. Unit 1 within them: 0, 3, 0 | 1, variance 1.5.
    batches = [torch.tensor([[4.0, 0.0], [4.0, 3.0], [4.0, -2.0]]), torch.tensor([[0.0, 1.0]])]
    assert places(model, "variance", batches) == [1, 0]
    assert places(model, "variance", batches[:1]) == [0, 1]


def test_variance_of_a_stream_adds_up_over_its_readers() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.last(torch.relu(self.first(x)))

    model = nn.Sequential(nn.Linear(3, 5), Block(), nn.Linear(5, 2)).double()
    x = torch.randn(50, 3, dtype=torch.float64)
    before, after = model[0](x), model[1](model[0](x))
    written = after - before
    found = hg.order_by(model, "variance", [x])
    wanted = before.var(0, correction=0) + after.var(0, correction=0)
    assert torch.equal(found["0"], wanted.argsort().argsort())
    assert torch.equal(found["1.last:write"], written.var(0).argsort().argsort())
    assert torch.equal(found["1.first:read"], before.var(0).argsort().argsort())


def test_taylor_is_the_mean_size_of_each_examples_effect() -> None:
    """What unit 0 does to the loss cancels between examples; it is still the most important one."""
    model = chain([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [10.0, 1.0, -2.0])
    x = torch.tensor([[1.0, 3.0, 1.0], [1.0, 3.0, 1.0]])
    signs = torch.tensor([[1.0], [-1.0]])
    batches = [(x, signs)]  # effects 10, 3 and 2 on each example
    assert places(model, "taylor", batches, loss_fn=lambda out, y: (out * y).mean()) == [2, 1, 0]


def test_taylor_weighs_examples_of_small_and_large_batches_alike() -> None:
    model = chain([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0])
    # Unit 0 has effects 2, 2, 2 | 0, unit 1 has 1, 1, 1 | 2: means 1.5 and 1.25, though means of means say otherwise.
    batches = [(torch.tensor([[2.0, 1.0]] * 3), None), (torch.tensor([[0.0, 2.0]]), None)]
    assert places(model, "taylor", batches, loss_fn=lambda out, _: out.mean()) == [1, 0]


def test_taylor_works_on_frozen_networks() -> None:
    model = chain([[1.0], [1.0]], [2.0, 1.0]).requires_grad_(False)
    assert places(model, "taylor", [(torch.ones(2, 1), None)], loss_fn=lambda out, _: out.mean()) == [1, 0]


def test_mutual_information_finds_the_unit_that_knows_the_class() -> None:
    labels = torch.arange(300) % 3
    noise = torch.randn(300, generator=torch.Generator().manual_seed(1))
    # Unit 0: loud noise. Unit 1: all classes, quietly. Unit 2: one of the classes.
    x = torch.stack([100 * noise.abs(), 0.01 * labels + 1, 5.0 * (labels == 2)], 1)
    model = chain(torch.eye(3).tolist(), [1.0, 1.0, 1.0])
    batches = list(zip(x.split(128), labels.split(128), strict=True))
    assert places(model, "mutual_information", batches) == [0, 2, 1]
    assert places(model, "variance", batches)[0] == 2


def test_mutual_information_by_hand() -> None:
    coin = torch.tensor([0, 0, 1, 1]).repeat(50)
    other = torch.tensor([0, 1]).repeat(100)
    log2 = torch.tensor(2.0).log().double()
    same, independent = mutual_information(torch.stack([coin, other], 1).double(), coin)
    torch.testing.assert_close(same, log2)
    assert independent == 0
    both = mutual_information(coin[:, None].double(), torch.stack([coin, other, coin], 1))
    torch.testing.assert_close(both, 2 * log2[None])
    real = mutual_information(coin[:, None].double(), coin.double() * 3 - 1)
    torch.testing.assert_close(real, log2[None])


@pytest.mark.parametrize("rare", [3, 20, 60, 97])
def test_a_unit_that_is_mostly_silent_still_tells(rare: int) -> None:
    """Equal numbers share a bin, whatever their share; neighbours do not swallow them."""
    events = torch.arange(100) < rare
    p = torch.tensor([rare / 100, 1 - rare / 100]).double()
    entropy = -(p * p.log()).sum()
    torch.testing.assert_close(mutual_information(events[:, None].double(), events), entropy[None])


# ---- how it is used ----


def residual() -> nn.Module:
    return randomise_(
        nn.Sequential(conv(3, 8), PostBlock(8, 8), PreBlock(8, 12, 2), nn.Dropout(), nn.Flatten(), nn.Linear(192, 4))
    )


def data(batches: int = 2) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 3, 8, 8, generator=generator), torch.arange(6) % 4) for _ in range(batches)]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("readers", [False, True])
def test_a_gated_network_starts_as_it_was_in_any_order(criterion: Any, readers: bool) -> None:
    model, image = residual(), torch.randn(2, 3, 8, 8)
    expected = outputs(model, image)
    plan = hg.find_groups(model, image, readers=True)
    streams = {branch.name: branch.group for branch in plan.branches}
    streams |= {reader.name: reader.group for reader in plan.readers}
    orders = hg.order_by(model, criterion, data(4), loss_fn=cross_entropy)
    gates = hg.insert_gates_(model, image, order=orders, readers=readers)
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, image), expected, strict=True))
    for name, gate in gates.items():
        with torch.no_grad():
            gate.offset.fill_(5 * (3.5 / gate.n - 1))  # four units are left
        assert torch.equal(gate.keep(), orders[streams.get(name) or name] >= gate.n - 4), name


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_model_is_left_exactly_as_it_was(criterion: Any) -> None:
    model = residual().train()
    model[1].bn1.eval()
    cross_entropy(model(data()[0][0]), data()[0][1]).backward()
    before, gradients = copy.deepcopy(model), [parameter.grad.clone() for parameter in model.parameters()]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(22, 3, 8, 8), torch.arange(22) % 4), batch_size=4, shuffle=True
    )
    state = torch.get_rng_state()
    hg.order_by(model, criterion, loader, loss_fn=cross_entropy)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    for (name, mine), other, grad in zip(model.named_parameters(), before.parameters(), gradients, strict=True):
        assert torch.equal(mine, other) and torch.equal(mine.grad, grad), name
        assert mine.requires_grad and mine.is_leaf
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before.buffers(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_of_other_sizes_and_arguments_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, pixels: Tensor, scale: float = 1.0) -> Tensor:
            return self.down(torch.relu(self.up(pixels)) * scale)

    model, x = Named(), torch.randn(9, 2)
    whole = hg.order_by(model, "variance", [x])
    named = hg.order_by(model, "variance", [{"pixels": x[:4], "scale": 1.0}, {"pixels": x[4:], "scale": 1.0}])
    paired = hg.order_by(model, "variance", [((x, 1.0), None)])
    assert torch.equal(whole["up"], named["up"]) and torch.equal(whole["up"], paired["up"])


def test_one_shot_pruning_keeps_what_matters() -> None:
    """Three of twelve hidden units do all the work: cut to three, the network computes the same."""
    model, x = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)).double(), torch.randn(30, 4).double()
    with torch.no_grad():
        model[2].weight[:, torch.tensor([0, 1, 2, 4, 5, 7, 8, 9, 11])] = 0
    plan, batches = hg.find_groups(model, x), [(x, None)]
    orders = hg.order_by(model, "taylor", batches, loss_fn=lambda out, _: out.square().mean())
    small = hg.shrink(model, plan, {group.name: orders[group.name] >= group.size - 3 for group in plan.groups})
    assert small[0].out_features == 3
    torch.testing.assert_close(small(x), model(x))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("criterion", "batches", "options", "complaint"),
    [
        ("size", data(), {}, "criterion='size' is unknown; use magnitude, norm_scale, variance, taylor, mutual"),
        ("variance", [], {}, "batches is empty"),
        ("variance", data()[0][0], {}, "not a Tensor; put a single batch into a list"),
        ("variance", 7, {}, "not a int"),
        ("variance", [data()[0][0], data()[0][0][:0]], {}, "holds no examples"),
        ("variance", [(data()[0][0], 1, 2)], {}, "a batch of 3 things is neither inputs nor a pair"),
        ("taylor", data(), {}, "taylor needs loss_fn="),
        ("taylor", [data()[0][0]], {"loss_fn": cross_entropy}, "taylor needs targets"),
        ("taylor", data(), {"loss_fn": lambda out, y: out}, "loss_fn must return one number"),
        ("taylor", data(), {"loss_fn": lambda out, y: torch.zeros(())}, "loss_fn must return one number"),
        ("mutual_information", [data()[0][0]], {}, "mutual_information needs targets"),
        ("mutual_information", [(data()[0][0], torch.zeros(5))], {}, r"for each of its 6 examples.*shape \(5,\)"),
        ("mutual_information", [(data()[0][0], None)], {}, "not None"),
        ("variance", [data()[0][0] * float("nan")], {}, "not finite"),
        ("mutual_information", [(data()[0][0] * float("nan"), torch.zeros(6))], {}, "not finite"),
        ("mutual_information", [(data()[0][0], torch.full((6,), float("nan")))], {}, "not finite"),
    ],
)
def test_what_cannot_be_is_refused(criterion: Any, batches: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(hg.ArgumentError, match=complaint):
        hg.order_by(residual(), criterion, batches, **options)


def test_networks_that_cannot_be_ordered_are_refused() -> None:
    gated = residual()
    hg.insert_gates_(gated, data()[0][0])
    with pytest.raises(hg.GateError, match="order first"):
        hg.order_by(gated, "magnitude", data())
    with pytest.raises(hg.GateError, match="nothing in Linear can be gated"):
        hg.order_by(nn.Linear(3, 2), "magnitude", [torch.randn(2, 3)])
    with pytest.raises(hg.ArgumentError, match=r"2 reads has shape .*does not hold the 3 examples"):
        hg.order_by(nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2)), "variance", [torch.randn(3, 8, 8)])


def test_activations_need_the_whole_graph() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            return y if float(y.sum()) > 0 else -y

    assert set(hg.order_by(Moody(), "magnitude", [torch.randn(2, 3)])) == {"body.0"}
    with pytest.raises(hg.TraceError, match="order_by: activations are followed through the whole graph of Moody"):
        hg.order_by(Moody(), "variance", [torch.randn(2, 3)])


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ({"0": [1, 0, 2, 3, 4, 5]}, "no order for '2'"),
        ({"0": "index", "2": "index", "zzz": [0], "4": [0]}, "names 'zzz', '4', and Sequential has no site of that"),
        ({"0": [1, 0, 2, 3, 4, 5], "2": [0, 1]}, r"order of '2': order has shape \(2,\)"),
        ({"0": "index0", "2": "index"}, "some orders count from 0"),
        ({"0": "backwards", "2": "index"}, "order of '0': order 'backwards' is unknown"),
    ],
)
def test_orders_by_site_must_fit(order: Any, complaint: str) -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
    with pytest.raises(hg.ArgumentError, match=complaint):
        hg.insert_gates_(model, torch.randn(2, 3), order=order)
    assert not hg.gates(model)


def test_orders_by_site_may_be_named() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
    order = {"0": [5, 4, 3, 2, 1, 0], "2": "index"}
    gates = hg.insert_gates_(model, torch.randn(2, 3), order=order, floor=1)
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(5 * (1.5 / gate.n - 1))
    assert gates["0"].keep().tolist() == [True, True, False, False, False, False]
    assert gates["2"].keep().tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("options", [{}, {"readers": True}, {"streams": False}, {"where": lambda name, _: name == "0"}])
def test_orders_may_say_more_than_is_asked(options: dict[str, Any]) -> None:
    """All sites are named there, readers too, and those that the trial refuses: here a width that the code repeats."""

    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.last(y * (y.shape[1] / 8))

    model, x = (
        nn.Sequential(conv(3, 8), PreBlock(8, 8), nn.Flatten(), nn.Linear(128, 8), Stubborn()),
        torch.randn(2, 3, 4, 4),
    )
    orders = hg.order_by(model, "magnitude", [x])
    assert any(name.endswith(":read") for name in orders) and "4.first" in orders
    gates = hg.insert_gates_(model, x, order=orders, **options)
    assert gates and gates.keys() < orders.keys() and "4.first" not in gates
