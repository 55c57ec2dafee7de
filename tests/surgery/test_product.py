"""Weights times masks in one node: values and gradients are those of the plain formula, for every kind of weight."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import headgate as hg
from headgate import product as module_under_test
from headgate.masked_weight import MaskedWeight
from headgate.product import grouped, mask_weights
from tests.small_nets import channels_last
from tests.surgery.gated_nets import NETS, apart, expected_gradients, gradients, inserted, pair, plain_forward, square

TIGHT = 1e-12


def of_the_node(gated: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    gated.zero_grad()
    square(gated(x)).backward()
    return gradients(gated)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_the_plain_formula(name: str, training: bool):
    dense, gated, x = pair(name)
    dense.train(training), gated.train(training)
    expected = expected_gradients(dense, gated, square, x)
    assert torch.allclose(plain_forward(copy.deepcopy(dense), gated, x), copy.deepcopy(gated)(x), rtol=TIGHT, atol=0)
    assert apart(of_the_node(gated, x), expected) < TIGHT
    assert all(slope.abs() > 0 for slope in inserted(gated).offset.grad)


@pytest.mark.parametrize("name", ["residual", "flat", "tied"])
@pytest.mark.parametrize("limit", [0, 60])
def test_large_weights_are_multiplied_by_themselves(name: str, limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module_under_test, "STACKED_BELOW", limit)
    dense, gated, x = pair(name)
    assert apart(of_the_node(gated, x), expected_gradients(dense, gated, square, x)) < TIGHT


@pytest.mark.parametrize("name", ["residual", "skipping"])
def test_channels_last_weights(name: str):
    dense, gated, x = pair(name)
    expected = expected_gradients(dense, gated, square, x)
    channels_last(gated)
    found = of_the_node(gated, x.to(memory_format=torch.channels_last))
    assert apart(found, expected) < TIGHT
    assert gated.get_submodule("stem").weight.is_contiguous(memory_format=torch.channels_last)
    inner = "blocks.0.b" if name == "residual" else "extra.0"
    assert gated.get_submodule(inner).weight.is_contiguous(memory_format=torch.channels_last)


def test_some_weights_channels_last_and_some_not():
    dense, gated, x = pair("residual")
    expected = expected_gradients(dense, gated, square, x)
    channels_last(gated.blocks[1])
    assert apart(of_the_node(gated, x), expected) < TIGHT


def test_a_weight_that_was_not_used_gets_no_gradient():
    dense, gated, x = pair("skipping")
    dense.skip = gated.skip = True
    found = of_the_node(gated, x)
    assert apart(found, expected_gradients(dense, gated, square, x)) < TIGHT
    assert found["extra.0.parametrizations.weight.original"] is None
    assert found["middle.0.parametrizations.weight.original"] is not None


def test_a_frozen_weight_gets_no_gradient_but_its_gate_does():
    dense, gated, x = pair("skipping")
    for parameter in gated.parameters():
        parameter.requires_grad_(parameter is inserted(gated).offset)
    found = of_the_node(gated, x)
    assert [name for name, gradient in found.items() if gradient is not None] == ["headgate_offsets"]
    assert apart(found, expected_gradients(dense, gated, square, x)) < TIGHT


def test_frozen_offsets_leave_the_weights_gradients():
    dense, gated, x = pair("residual")
    inserted(gated).offset.requires_grad_(False)
    found = of_the_node(gated, x)
    assert found["headgate_offsets"] is None
    assert apart(found, expected_gradients(dense, gated, square, x)) < TIGHT


def test_nothing_to_learn_at_all():
    _, gated, x = pair("residual")
    gated.requires_grad_(False)
    assert not gated(x).requires_grad
    x.requires_grad_()
    gated(x).sum().backward()
    assert x.grad.abs().max() > 0


def rounded_alike(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Convolutions in short dtypes add in an order that depends on where in memory their weights lie."""
    return bool((found - expected).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_short_weights(name: str, dtype: torch.dtype):
    dense, gated, x = pair(name, dtype=dtype)
    dense.eval(), gated.eval()
    assert inserted(gated).offset.dtype == torch.float32
    assert rounded_alike(gated(x), plain_forward(dense, gated, x), dtype)
    found = of_the_node(gated, x)
    assert {p.grad.dtype for n, p in gated.named_parameters() if p.grad is not None and n[:4] != "head"} == {dtype}
    assert apart(found, expected_gradients(dense, gated, square, x)) < 0.1


@pytest.mark.parametrize("name", ["residual", "flat", "skipping", "chain"])
def test_autocast(name: str):
    dense, gated, x = pair(name, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = expected_gradients(dense, gated, square, x)
        plain = plain_forward(copy.deepcopy(dense), gated, x)
        assert rounded_alike(copy.deepcopy(gated)(x), plain, torch.bfloat16)
        found = of_the_node(gated, x)
    assert apart(found, expected) < 0.05
    assert all(gradient is None or gradient.dtype == torch.float32 for gradient in found.values())


def test_a_part_with_autocast_switched_off():
    dense, gated, x = pair("skipping", dtype=torch.float32)
    dense.full_precision = gated.full_precision = True
    seen = []
    gated.head.register_forward_pre_hook(lambda module, _: seen.append(module.weight.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        expected = expected_gradients(dense, gated, square, x)
        assert gated(x).dtype == torch.float32
        assert apart(of_the_node(gated, x), expected) < 0.05
    assert set(seen) == {torch.float32}


def test_a_part_with_gradients_switched_on():
    """As a model does that differentiates inside its own forward, called without gradients."""
    _, gated, x = pair("skipping")

    def with_gradients(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        with torch.enable_grad():
            seen.append(torch.autograd.grad(module.weight.sum(), module.parametrizations.weight.original)[0])

    seen: list[Tensor] = []
    gated.head.register_forward_pre_hook(with_gradients)
    with torch.no_grad():
        gated(x)
    assert torch.equal(seen[0], hg.gates(gated)["frozen"].mask().double().expand(3, 6))


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_gradients(name: str):
    """What HVPs and MAML differentiate twice."""
    dense, gated, x = pair(name)
    dense.eval(), gated.eval()

    def twice(output: Tensor) -> list[Tensor | None]:
        learned = [p for p in gated.parameters() if p.requires_grad]
        first = torch.autograd.grad(square(output), learned, create_graph=True, allow_unused=True)
        length = sum(gradient.square().sum() for gradient in first if gradient is not None)
        return list(torch.autograd.grad(length, learned, allow_unused=True))

    for a, b in zip(twice(gated(x)), twice(plain_forward(dense, gated, x)), strict=True):
        if a is None or b is None:
            assert a is b
        else:
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))


def test_gone_through_twice():
    _, gated, x = pair("residual")
    loss = square(gated.eval()(x))
    loss.backward(retain_graph=True)
    once = gradients(gated)
    loss.backward()
    assert apart(gradients(gated), {n: None if g is None else 2 * g for n, g in once.items()}) < TIGHT


def test_small_weights_alike_are_multiplied_together():
    a, b, c = torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(3, 4)
    large, other = torch.zeros(512, 512), torch.zeros(512, 512)
    axes = [(1,), (1,), (1,), (0,), (0,)]
    assert grouped([a, b, c, large, other], axes) == [[0, 1], [2], [3], [4]]
    assert grouped([a, b], [(1,), (0,)]) == [[0], [1]]
    assert grouped([a, b.half()], [(1,), (1,)]) == [[0], [1]]
    image = torch.zeros(4, 3, 2, 2)
    assert grouped([image, image.to(memory_format=torch.channels_last)], [(1,), (1,)]) == [[0], [1]]


def test_the_node_alone_by_hand():
    offset = torch.tensor([2.0, 3.0], requires_grad=True)
    weights = [torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 5.0, requires_grad=True)]
    masked = mask_weights(offset, lambda given: [[(1, torch.stack([given, given.square()]))]], weights, [[0, 1]])
    assert torch.equal(masked[0], torch.tensor([[2.0, 3.0], [2.0, 3.0]]))
    assert torch.equal(masked[1], torch.tensor([[20.0, 45.0], [20.0, 45.0]]))
    (masked[0].sum() + masked[1].sum()).backward()
    assert torch.equal(weights[1].grad, torch.tensor([[4.0, 9.0], [4.0, 9.0]]))
    # d/do (2·o + 10·o²) = 2 + 20·o, for each column.
    assert torch.equal(offset.grad, torch.tensor([42.0, 62.0]))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_what_else_is_put_on_a_weight_is_not_passed_by():
    """A masked weight is found by a short way, which must not lead around a parametrization of the user's own."""
    _, gated, x = pair("chain")
    layer = next(module for module in gated.modules() if parametrize.is_parametrized(module, "weight"))
    seen = []
    layer.register_forward_pre_hook(lambda module, _: seen.append(module.weight.detach().clone()))
    gated(x)
    parametrize.register_parametrization(layer, "weight", Doubled())
    gated(x)
    assert torch.equal(seen[1], 2 * seen[0])


def test_masks_are_applied_once_a_forward(monkeypatch: pytest.MonkeyPatch):
    _, gated, x = pair("chain")
    alone: list[MaskedWeight] = []
    usual = MaskedWeight.forward

    def counted(self: MaskedWeight, weight: Tensor) -> Tensor:
        alone.append(self)
        return usual(self, weight)

    monkeypatch.setattr(MaskedWeight, "forward", counted)
    gated(x)
    assert not alone
    layer = next(module for module in gated.modules() if parametrize.is_parametrized(module, "weight"))
    assert layer.weight is not None and len(alone) == 1
