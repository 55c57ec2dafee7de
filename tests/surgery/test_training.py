"""Gated training under everything that users train with: equal to the plain formula where there is one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.checkpoint import checkpoint

import headgate as hg
from headgate import masked
from headgate.masked_weight import MaskedWeight
from headgate.surgery import compact as compact_module
from headgate.surgery import decided as decided_module
from headgate.surgery import insert
from headgate.surgery.keep import chosen
from headgate.surgery.shrink import shrink_
from tests.conftest import Digits
from tests.small_nets import Residual, channels_last, image, same, trained
from tests.surgery.gated_nets import (
    NETS,
    Chain,
    apart,
    equal_states,
    expected_gradients,
    gradients,
    inserted,
    pair,
    plain_forward,
    rows,
    sgd,
    square,
    state,
    train,
)

TIGHT = 1e-12


def some(name: str, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [NETS[name][1]().to(dtype) for _ in range(count)]


# ---- compilers ----


@pytest.mark.parametrize("name", ["residual", "skipping"])
def test_compiled_whole(name: str):
    dense, gated, x = pair(name)
    torch.compiler.reset()
    expected = expected_gradients(dense, gated, square, x)
    compiled = torch.compile(gated, fullgraph=True, backend="aot_eager")
    square(compiled(x)).backward()
    assert apart(gradients(gated), expected) < 1e-9
    train(compiled, some(name, 3, torch.float64))
    assert len(hg.gates(compiled)) == len(hg.gates(gated))
    assert torch.allclose(compiled(x), copy.deepcopy(gated)(x), rtol=1e-9)
    small = hg.compact(compiled)
    assert type(small) is type(gated).__mro__[0] and not hasattr(small, "_orig_mod")


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool):
    _, gated, x = pair("residual")
    gated.eval()
    program = torch.export.export(gated, (x,), strict=strict)
    assert torch.allclose(program.module()(x), gated(x), rtol=TIGHT)


# ---- precision ----


def test_a_gradient_scaler():
    _, gated, _ = pair("residual", dtype=torch.float32)
    plain, xs = copy.deepcopy(gated), some("residual", 4)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), sgd(gated)
    for each in xs:
        optimizer.zero_grad()
        scaler.scale(square(gated(each)) + 0.5 * hg.penalty(gated)).backward()
        scaler.step(optimizer)
        scaler.update()
    train(plain, xs)
    assert torch.allclose(inserted(gated).offset, inserted(plain).offset, atol=1e-5)
    assert torch.allclose(gated.head.weight, plain.head.weight, atol=1e-5)


def test_a_gradient_scaler_after_an_overflow():
    _, gated, x = pair("residual", dtype=torch.float32)
    before, optimizer, scaler = state(gated.eval()), sgd(gated), torch.amp.GradScaler("cpu")
    scaler.scale(square(gated(x)) * torch.tensor(float("inf"))).backward()
    scaler.step(optimizer)
    scaler.update()
    assert equal_states(state(gated), before)


def test_trained_under_autocast():
    _, gated, _ = pair("residual", moved=False, dtype=torch.float32)
    before = inserted(gated).offset.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):
        train(gated, some("residual", 5))
    assert bool((inserted(gated).offset < before).all()) and inserted(gated).offset.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.float64])
def test_cast_as_a_whole_and_back(dtype: torch.dtype):
    _, gated, x = pair("residual", dtype=torch.float32)
    offsets, masks = inserted(gated).offset, [gate.mask() for gate in hg.gates(gated).values()]
    gated.eval().to(dtype)
    assert inserted(gated).offset is offsets
    assert offsets.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert gated(x.to(dtype)).dtype == dtype == gated.head.weight.dtype
    for gate, mask in zip(hg.gates(gated).values(), masks, strict=True):
        assert torch.allclose(gate.mask().float(), mask, atol=1e-6)
    gated.half()
    gated.bfloat16()
    gated.float()
    assert all(torch.allclose(g.mask(), m, atol=1e-6) for g, m in zip(hg.gates(gated).values(), masks, strict=True))
    train(gated, [x])


# ---- loops ----


def test_accumulated_gradients():
    dense, gated, x = pair("residual")
    dense.eval(), gated.eval()
    joint = torch.cat([x, 2 * x, x - 1])
    expected = expected_gradients(dense, gated, square, joint)
    for part in (x, 2 * x, x - 1):
        (square(gated(part)) / 3).backward()
    assert apart(gradients(gated), expected) < TIGHT


def test_two_forwards_before_one_backward():
    dense, gated, x = pair("flat")
    twin = copy.deepcopy(gated)
    (square(gated(x)) + square(gated(-x))).backward()
    (square(plain_forward(dense, twin, x)) + square(plain_forward(dense, twin, -x))).backward()
    assert apart(gradients(gated), gradients(twin)) < TIGHT


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("precise", [True, False], ids=["double", "autocast"])
def test_activation_checkpointing_of_parts(reentrant: bool, precise: bool):
    dtype = torch.float64 if precise else torch.float32
    dense, gated, x = pair("residual", dtype=dtype)
    dense.eval(), gated.eval()
    for number, block in enumerate(gated.blocks):
        original = block.forward
        block.forward = lambda x, run=original: checkpoint(run, x, use_reentrant=reentrant)
        assert number < 3
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        expected = expected_gradients(dense, pair("residual", dtype=dtype)[1].eval(), square, x)
        for _ in range(2):
            gated.zero_grad()
            square(gated(x)).backward()
            assert apart(gradients(gated), expected) < (TIGHT if precise else 0.05)
    assert not gated.headgate_shared.weights


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_of_the_whole(reentrant: bool):
    dense, gated, x = pair("residual")
    dense.eval(), gated.eval()
    expected = expected_gradients(dense, gated, square, x)
    outer = nn.Sequential(nn.Identity(), gated)
    square(checkpoint(outer, x.requires_grad_(), use_reentrant=reentrant)).backward()
    assert apart(gradients(gated), expected) < TIGHT


def test_sub_modules_called_directly():
    dense, gated, x = pair("residual")
    dense.eval(), gated.eval()
    z = gated.stem(x)
    for block in gated.blocks:
        z = block(z)
    out = gated.head((z * gated.scale).relu().mean((2, 3)))
    assert torch.allclose(out, gated(x), rtol=TIGHT)
    square(out).backward()
    assert apart(gradients(gated), expected_gradients(dense, gated, square, x)) < TIGHT


def test_per_sample_gradients():
    dense, gated, _ = pair("residual")
    dense.eval(), gated.eval()
    xs = torch.randn(3, 1, 2, 6, 6, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in gated.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return square(functional_call(gated, values, (x,)))

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, xs)
    for number, x in enumerate(xs):
        expected = expected_gradients(dense, gated, square, x)
        assert apart({name: g[number] for name, g in found.items()}, expected) < 1e-11


def test_substituted_weights_alone():
    """As fast weights do: the offsets stay the model's own."""
    dense, gated, x = pair("residual")
    others = {n: p.detach() * 0.5 for n, p in gated.named_parameters() if n != "headgate_offsets"}
    twin = copy.deepcopy(gated)
    twin.load_state_dict(others, strict=False)
    assert torch.allclose(functional_call(gated.eval(), others, (x,)), twin.eval()(x), rtol=TIGHT)
    assert torch.allclose(gated(x), plain_forward(dense.eval(), gated, x), rtol=TIGHT)


def test_evaluation_between_steps():
    _, gated, x = pair("residual", dtype=torch.float32)
    undisturbed, xs = copy.deepcopy(gated), some("residual", 4)
    optimizer = sgd(gated)
    for each in xs:
        train(gated, [each], optimizer)
        for mode in (torch.inference_mode, torch.no_grad):
            gated.eval()
            with mode():
                seen = gated(x)
            assert not seen.requires_grad and torch.allclose(seen, gated(x).detach(), rtol=1e-5, atol=1e-6)
        gated.train()
    train(undisturbed, xs)
    assert equal_states(state(gated), state(undisturbed))


def test_a_forward_that_raises_leaves_nothing_behind():
    _, gated, x = pair("skipping")
    gated.fails = True
    with pytest.raises(ValueError, match="the user's own"):
        gated(x)
    assert not gated.headgate_shared.weights
    gated.fails = False
    with torch.no_grad():
        gated.stem.weight.mul_(2), gated.middle[0].parametrizations.weight.original.mul_(3)
        inserted(gated).offset.sub_(0.5)
    seen = gated.middle(x.new_ones(1, 6, 3, 3))
    assert torch.allclose(seen, copy.deepcopy(gated).middle(x.new_ones(1, 6, 3, 3)), rtol=TIGHT)


def test_what_an_interrupted_forward_left_is_not_folded_in():
    """An interruption from the keyboard passes torch's hooks by."""
    _, gated, x = pair("skipping")
    masked._mask_all_(gated, ())
    assert gated.headgate_shared.weights
    with torch.no_grad():
        gated.middle[0].parametrizations.weight.original.mul_(3)
    expected = copy.deepcopy(gated)(x)
    hg.bake_(gated)
    assert torch.allclose(gated(x), expected, rtol=1e-9)


def test_weights_changed_by_hand():
    dense, gated, x = pair("residual")
    gated.eval()
    gated(x)
    with torch.no_grad():
        gated.head.parametrizations.weight.original.mul_(2)
    expected = plain_forward(dense.eval(), gated, x)
    assert torch.allclose(gated(x), expected, rtol=TIGHT)
    gated.head.parametrizations.weight.original = nn.Parameter(torch.ones(3, 8, dtype=torch.float64))
    assert torch.allclose(gated(x), plain_forward(dense, gated, x), rtol=TIGHT)
    square(gated(x)).backward()
    assert gated.head.parametrizations.weight.original.grad.abs().max() > 0


def test_trained_on_after_loading_with_assign():
    dense, gated, x = pair("residual")
    gated.eval()(x)
    for parameter in dense.parameters():
        parameter.data *= 0.9
    gated.load_state_dict(copy.deepcopy(dense.state_dict()), assign=True)
    expected = expected_gradients(dense.eval(), gated, square, x)
    square(gated(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    train(gated, [x])


def test_channels_last_training():
    _, gated, _ = pair("residual")
    plain, xs = copy.deepcopy(gated), some("residual", 3, torch.float64)
    train(channels_last(gated), [x.to(memory_format=torch.channels_last) for x in xs])
    train(plain, xs)
    assert torch.allclose(inserted(gated).offset, inserted(plain).offset, rtol=1e-9)
    assert torch.allclose(gated.blocks[0].a.weight, plain.blocks[0].a.weight, rtol=1e-9)
    small = hg.compact(gated)
    assert small.blocks[0].a.weight.is_contiguous(memory_format=torch.channels_last)


def test_resumed_bit_for_bit():
    _, gated, _ = pair("residual", moved=False, dtype=torch.float32)
    xs = some("residual", 8)
    optimizer = train(gated, xs[:4])
    saved = copy.deepcopy((gated.state_dict(), optimizer.state_dict()))
    train(gated, xs[4:], optimizer)
    _, other, _ = pair("residual", moved=False, dtype=torch.float32)
    other.load_state_dict(saved[0])
    later = sgd(other)
    later.load_state_dict(saved[1])
    train(other, xs[4:], later)
    assert equal_states(state(gated), state(other))
    assert bool((inserted(gated).offset < 1).all())


# ---- copies ----


def test_a_copy_is_independent():
    _, gated, x = pair("residual", dtype=torch.float32)
    gated(x)
    before, copied = state(gated), copy.deepcopy(gated)
    assert inserted(copied) is not inserted(gated) and inserted(copied).root is copied
    assert copied.headgate_shared is not gated.headgate_shared and not copied.headgate_shared.gated
    weights = {id(mask._links[0]) for mask in copied.modules() if isinstance(mask, MaskedWeight)}
    assert weights == {id(inserted(copied))}
    train(copied, some("residual", 3))
    assert not torch.equal(inserted(copied).offset, inserted(gated).offset)
    gated.eval()
    expected = gated(x)
    hg.compact(copied)
    hg.bake_(copied)
    hg.remove_gates_(copied)
    assert torch.equal(gated(x), expected)
    changed = {n for n, t in state(gated).items() if not torch.equal(t, before[n])}
    assert not changed
    assert len(hg.gates(gated)) == 7 and type(copied.head) is nn.Linear
    train(gated, [x])


def test_a_copied_part_has_gates_of_its_own():
    _, gated, _ = pair("residual")
    part = copy.deepcopy(gated.blocks[0])
    z = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    gated.eval(), part.eval()
    assert torch.equal(part(z), gated.blocks[0](z))
    with torch.no_grad():
        inserted(gated).offset.fill_(-3.0)
    assert not torch.allclose(part(z), gated.blocks[0](z))


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("decay", [None, 0.9, 0.999])
def test_an_averaged_model(use_buffers: bool, decay: float | None):
    _, gated, x = pair("residual", moved=False, dtype=torch.float32)
    ema = AveragedModel(gated, avg_fn=get_ema_avg_fn(decay) if decay else None, use_buffers=use_buffers)
    optimizer = sgd(gated)
    for each in some("residual", 12):
        train(gated, [each], optimizer)
        ema.update_parameters(gated)
    averaged = ema.module
    for number in range(7):
        assert torch.equal(inserted(averaged).places(number), torch.arange(8))
    assert [gate.n for gate in hg.gates(averaged).values()] == [8] * 7
    offsets = inserted(averaged).offset
    assert bool((offsets < 1).all()) and not torch.equal(offsets, inserted(gated).offset)
    assert all(gate.mask().min() >= 0 and gate.mask().max() <= 1 for gate in hg.gates(averaged).values())
    small = hg.compact(averaged)
    assert torch.allclose(small.eval()(x), averaged.eval()(x), atol=1e-4)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_averaged_model_is_baked_by_its_own_call(use_buffers: bool):
    """Else it would get the flags of the baked model without its weights, or its weights without the flags."""
    _, gated, x = pair("residual", dtype=torch.float32)
    gated.eval()
    ema = AveragedModel(gated, use_buffers=use_buffers)
    ema.update_parameters(gated)
    expected = gated(x)
    hg.bake_(gated), hg.bake_(ema.module)
    for _ in range(5):
        ema.update_parameters(gated)
    assert torch.allclose(ema(x), expected, atol=1e-6 * expected.abs().max().item())
    keep = [gate.keep().tolist() for gate in hg.gates(gated).values()]
    assert [gate.keep().tolist() for gate in hg.gates(ema.module).values()] == keep
    assert all(set(gate.mask().tolist()) <= {0.0, 1.0} for gate in hg.gates(ema.module).values())


def test_the_trap_of_a_baked_model_whose_average_was_not_baked():
    """Documents what happens: torch copies buffers into the average but averages weights, so its function jumps."""
    _, gated, x = pair("residual", dtype=torch.float32)
    gated.eval()
    ema = AveragedModel(gated)
    ema.update_parameters(gated)
    expected = gated(x)
    hg.bake_(gated)
    ema.update_parameters(gated)
    assert not torch.allclose(ema(x), expected, rtol=1e-2)


# ---- surroundings ----


def test_nested_in_a_bigger_model():
    _, gated, x = pair("residual", dtype=torch.float32)
    outer = nn.Sequential(gated, nn.Linear(3, 2))
    optimizer = torch.optim.SGD([*hg.param_groups(gated, lr=0.05, offset_lr=0.05), {"params": outer[1].parameters()}])
    before = inserted(gated).offset.detach().clone()
    twin = copy.deepcopy(outer)
    assert inserted(twin[0]).root is twin[0]
    for _ in range(3):
        optimizer.zero_grad()
        (outer(x).square().mean() + 0.5 * hg.penalty(outer[0])).backward()
        optimizer.step()
    assert not torch.equal(inserted(gated).offset, before)
    outer.eval()
    expected = outer(x)
    outer[0] = hg.compact(gated)
    assert torch.allclose(outer(x), expected, atol=1e-4)


def test_a_module_used_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.entry, self.shared, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.entry(x).relu()
            return self.out(self.shared(self.shared(x).relu()).relu())

    model, x = trained(Twice()).double(), rows().double()
    dense = copy.deepcopy(model)
    hg.insert_gates_(model, x, floor=2)
    model.double()
    with torch.no_grad():
        inserted(model).offset.fill_(-2.0)
    expected = expected_gradients(dense, model, square, x)
    square(model(x)).backward()
    assert apart(gradients(model), expected) < TIGHT
    small = hg.compact(model)
    assert torch.allclose(small(x), model(x), rtol=1e-9) and small.shared.in_features < 8


def test_training_with_frozen_weights_moves_the_rest():
    _, gated, _ = pair("skipping", dtype=torch.float32)
    frozen = gated.frozen.parametrizations.weight.original.detach().clone()
    offsets = inserted(gated).offset.detach().clone()
    train(gated, some("skipping", 3))
    assert torch.equal(gated.frozen.parametrizations.weight.original, frozen)
    assert bool((inserted(gated).offset != offsets).all())
    small = hg.compact(gated)
    assert [p.requires_grad for p in small.frozen.parameters()] == [False, False]


# ---- compaction ----


def test_what_survives_compaction():
    _, gated, _ = pair("residual", dtype=torch.float32)
    gated.blocks[0].requires_grad_(False)
    gated.train()
    gated.blocks[1].eval()
    before = state(gated)
    small = hg.compact(gated)
    assert equal_states(state(gated), before) and gated.training and not gated.blocks[1].training
    assert type(small) is Residual and small.training and not small.blocks[1].training
    names = [n for n, _ in Residual().named_parameters()]
    assert [n for n, _ in small.named_parameters()] == names
    assert [n for n, p in small.named_parameters() if not p.requires_grad] == [n for n in names if "blocks.0" in n]
    assert {p.dtype for p in small.parameters()} == {torch.float32}
    for module in small.modules():
        hooks = [table for name, table in vars(module).items() if "hooks" in name and isinstance(table, dict)]
        assert not any(hooks) and not hasattr(module, "parametrizations")
        assert {name for name in vars(module) if "headgate" in name} <= {"headgate_recipe"}
    assert not any("headgate" in name for name in small.state_dict())
    assert all(p.is_leaf and p.grad is None for p in small.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.half])
@pytest.mark.parametrize("name", NETS)
def test_compacted_in_any_dtype(name: str, dtype: torch.dtype):
    _, gated, x = pair(name, dtype=dtype)
    gated.eval()
    small = hg.compact(gated)
    assert {p.dtype for p in small.parameters()} == {dtype}
    limit = {torch.float64: 1e-9, torch.bfloat16: 0.1, torch.half: 0.02}[dtype]
    expected = gated(x)
    assert (small(x) - expected).abs().max() < limit * expected.abs().max()
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in gated.parameters())


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_models_are_compacted(wrap: Any):
    _, gated, x = pair("chain")
    gated.eval()
    small = hg.compact(wrap(gated))
    assert type(small) is Chain and torch.allclose(small(x), gated(x), rtol=1e-9)
    assert hg.status(wrap(gated)).total == 14


def test_another_example():
    _, gated, _ = pair("residual")
    seen = []
    gated.stem.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
    hg.compact(gated, torch.randn(3, 2, 7, 5, dtype=torch.float64))
    assert set(seen) == {(3, 2, 7, 5)}


def test_a_nan_offset_is_refused_by_name():
    _, gated, _ = pair("residual")
    with torch.no_grad():
        hg.gates(gated)["blocks.2.a"].offset.fill_(float("nan"))
    for function in (hg.compact, hg.bake_, hg.status):
        with pytest.raises(hg.GateError, match=r"blocks\.2\.a"):
            function(gated)


def test_no_gates():
    with pytest.raises(hg.GateError, match="compact: no gates were inserted into Residual"):
        hg.compact(Residual())


@pytest.mark.parametrize("name", ["residual", "flat", "chain"])
def test_a_wrong_surgery_is_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    """One unit of one group mistaken for another: the shapes still fit."""
    _, gated, _ = pair(name)

    def wrong(plan: Any, keep: dict[str, Tensor], operation: str) -> Any:
        name = next(name for name, vector in keep.items() if not bool(vector.all()) and not name.endswith("write"))
        return chosen(plan, {**keep, name: keep[name].flip(0)}, operation)

    monkeypatch.setattr(decided_module, "chosen", wrong)
    with pytest.raises(hg.CompactionError, match="does not compute"):
        hg.compact(gated)


def test_a_slightly_wrong_surgery_of_a_double_model_is_caught(monkeypatch: pytest.MonkeyPatch):
    """A model that was in float64 when gates came is held to the tolerance of float64, not to that of its offsets."""
    model, x = trained(Chain()).double().eval(), rows().double()
    hg.insert_gates_(model, x, floor=2)
    assert inserted(model).offset.dtype == torch.float32

    def wrong(small: nn.Module, *rest: Any) -> None:
        shrink_(small, *rest)
        small[0].bias.data += 1e-6

    hg.compact(model)
    monkeypatch.setattr(compact_module, "shrink_", wrong)
    with pytest.raises(hg.CompactionError, match="1e-09"):
        hg.compact(model)


def test_a_silent_block_becomes_its_shortcut():
    _, gated, x = pair("residual")
    with torch.no_grad():
        hg.gates(gated)["blocks.1.b:write"].offset.fill_(-5.0)
    gated.eval()
    small = hg.compact(gated)
    assert isinstance(small.blocks[1], nn.Identity)
    assert torch.allclose(small(x), gated(x), rtol=1e-9)


class Projecting(nn.Module):
    """As torchvision writes it, in place: a block with a projection, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.one, self.other = InPlace(6, 8), InPlace(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(self.one(self.stem(x))).mean((2, 3)))


class InPlace(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(inputs, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.projection = nn.Conv2d(inputs, width, 1) if inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.projection is None else self.projection(x)
        out = self.norm(self.b(self.relu(self.a(x))))
        out += identity
        return self.relu(out)


def test_silent_branches_in_place_and_beside_a_projection():
    model, x = trained(Projecting()).eval(), image()
    found = hg.insert_gates_(model, x, floor=2)
    model.double()
    writes = [name for name in found if name.endswith(":write")]
    assert writes == ["one.norm:write", "other.norm:write"]
    with torch.no_grad():
        for name, gate in found.items():
            gate.offset.fill_(-5.0 if name in writes else -1.0)
    small = hg.compact(model)
    given = x.double()
    assert torch.allclose(small(given), model(given), rtol=1e-9)
    assert all(type(layer).__name__ == "Zeros" for layer in (small.one.a, small.one.b, small.one.norm))
    assert small.one.projection.out_channels == small.head.in_features < 8
    again = given.clone()
    small(again)
    assert torch.equal(again, given), "its input is not written into"


def test_a_large_strength_ends_small_and_exact(digits: Digits):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.na = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
            self.b, self.nb = nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16)
            self.head = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.na(self.a(x.view(-1, 1, 8, 8))).relu()
            return self.head(self.nb(self.b(x)).relu().mean((2, 3)))

    model = Net()
    hg.insert_gates_(model, digits.train_x[:2])
    optimizer = torch.optim.Adam(hg.param_groups(model, lr=1e-2, offset_lr=0.05))
    for step in range(240):
        batch = torch.randint(0, len(digits.train_y), (64,))
        hg.freeze_(model, step < 20)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(digits.train_x[batch]), digits.train_y[batch])
        (loss + 100 * hg.penalty(model)).backward()
        optimizer.step()
    small = hg.compact(model)
    assert small.a.out_channels == small.b.out_channels == 4
    model.eval(), small.eval()
    assert torch.allclose(small(digits.test_x), model(digits.test_x), atol=1e-4)
    accuracy = (small(digits.test_x).argmax(1) == digits.test_y).float().mean()
    assert accuracy > 0.2, "small, not constant"
    assert same(small, copy.deepcopy(small), digits.test_x)


def test_the_small_model_trains_on():
    _, gated, x = pair("residual", dtype=torch.float32)
    small = hg.compact(gated)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.01)
    before = square(small(x)).item()
    for _ in range(5):
        optimizer.zero_grad()
        square(small(x)).backward()
        optimizer.step()
    assert square(small(x)).item() < before


def test_gated_and_compacted_again():
    _, gated, x = pair("residual")
    small = hg.compact(gated).eval()
    expected = small(x)
    hg.insert_gates_(small, x, floor=1)
    assert torch.equal(small(x), expected)
    with torch.no_grad():
        inserted(small).offset.fill_(-2.0)
    assert torch.allclose(hg.compact(small)(x), small(x), rtol=1e-9)
    assert hasattr(small, insert.INSERTION)
