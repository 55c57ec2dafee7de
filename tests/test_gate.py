"""One gate at a time, with numbers worked out by hand.

Most gates here have four units and span 5, so their order numbers are 1.25, 2.5, 3.75 and 5.
"""

from __future__ import annotations

import copy
import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headgate import ArgumentError, Gate, GateError, HeadgateError, ShapeError, bake_
from headgate.curve import GATE_FUNCTIONS, NEVER_ZERO

FUNCTIONS = sorted(GATE_FUNCTIONS)
ZERO_REACHING = sorted(set(GATE_FUNCTIONS) - NEVER_ZERO)
SCALES = ["plain", "relative"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPILERS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler"),
            pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning"),  # torch's own
        ],
    ),
]


def move(gate: Gate, offset: float) -> Gate:
    with torch.no_grad():
        gate.offset.fill_(offset)
    return gate


def float_types(gate: Gate) -> set[torch.dtype]:
    return {tensor.dtype for name, tensor in gate.state_dict().items() if name != "baked"}


# --- Eq. 2 and Eq. 3 -------------------------------------------------------------------------------------------------


def test_the_mask_is_eq_2():
    mask = Gate(4, offset=-2.0).mask()
    expected = [0.0, math.tanh(0.5), math.tanh(1.75), math.tanh(3.0)]
    torch.testing.assert_close(mask, torch.tensor(expected))
    assert mask[0] == 0


def test_steepness_multiplies_after_the_offset_is_added():
    mask = Gate(4, offset=-2.0, steepness=3.0).mask()
    torch.testing.assert_close(mask, torch.tensor([0.0, math.tanh(1.5), math.tanh(5.25), math.tanh(9.0)]))


def test_order_says_which_unit_gets_which_number():
    mask = Gate(4, offset=-2.0, order=[3, 0, 2, 1]).mask()
    torch.testing.assert_close(mask, torch.tensor([math.tanh(3.0), 0.0, math.tanh(1.75), math.tanh(0.5)]))


@pytest.mark.parametrize(
    ("offset", "from_one", "from_zero"),
    [
        (1.0, 10, 10),
        (0.05, 10, 10),
        (-0.05, 10, 9),
        (-1.95, 9, 8),
        (-2.05, 8, 7),
        (-5.95, 5, 4),
        (-6.05, 4, 3),
        (-9.95, 1, 0),
        (-10.05, 0, 0),
    ],
)
def test_the_figure_of_the_paper(offset: float, from_one: int, from_zero: int):
    """k = 10 and n = 10: β = -2 prunes 20 %, β = -6 prunes 60 % (Figure 1 c, d); the reference code one unit more."""
    assert Gate(10, span=10.0, offset=offset).active == from_one
    assert Gate(10, span=10.0, offset=offset, order="index0").active == from_zero


def test_low_places_close_first():
    assert Gate(4, offset=-2.6).keep().tolist() == [False, False, True, True]
    assert Gate(4, offset=-2.6, order=[3, 0, 2, 1]).keep().tolist() == [True, False, True, False]


def test_keep_is_bool_and_detached():
    keep = Gate(4).keep()
    assert keep.dtype == torch.bool and not keep.requires_grad


# --- as a layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((4,), 0), ((4,), -1), ((2, 4), 1), ((4, 2), 0), ((4, 2), -2), ((2, 4, 3, 3), 1), ((2, 3, 4), -1), ((2, 3, 4), 2),
     ((2, 4, 3), -2), ((2, 3, 4, 2, 1, 2), 2), ((0, 4), 1)],
)  # fmt: skip
def test_any_rank_through_dim(shape: tuple[int, ...], dim: int):
    gate = Gate(4, dim=dim, offset=-2.0)
    x = torch.randn(shape)
    y = gate(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y.movedim(dim, -1), x.movedim(dim, -1) * gate.mask())


def test_one_gate_serves_as_a_bare_mask_on_weights():
    """conv(x∘g, W) = conv(x, W∘g): others multiply weights by the mask, and the offset gets the same gradient."""
    gate, layer, x = Gate(4, offset=-2.0), nn.Linear(4, 3), torch.randn(5, 4)
    on_weights = nn.functional.linear(x, layer.weight * gate.mask(), layer.bias)
    on_input = layer(gate(x))
    torch.testing.assert_close(on_weights, on_input)
    grads = [torch.autograd.grad(y.square().sum(), gate.offset)[0] for y in (on_weights, on_input)]
    torch.testing.assert_close(*grads)


def test_a_channels_last_input_stays_channels_last():
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    assert Gate(4)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_complex_signal_is_masked_too():
    x = torch.randn(2, 4, dtype=torch.complex64)
    y = Gate(4, offset=-2.0)(x)
    assert y.dtype == torch.complex64 and y[:, 0].abs().max() == 0 and y[:, 3].abs().min() > 0


def test_the_offset_is_the_only_parameter():
    gate = Gate(4)
    assert [name for name, _ in gate.named_parameters()] == ["offset"]
    assert gate.offset.shape == () and gate.offset.requires_grad
    assert {name for name, _ in gate.named_buffers()} == {"order", "steepness", "span", "start", "baked", "gain"}
    assert set(gate.state_dict()) == {"offset", "order", "steepness", "span", "start", "baked", "gain"}


def test_repr_says_what_kind_of_gate_it_is():
    assert repr(Gate(4, floor=2)) == "Gate(4, dim=1, fn='relu_tanh', scale='plain', floor=2)"


# --- dtypes, devices, copies, files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", ["method", "to"])
def test_a_gate_stays_float32_in_a_shorter_model(cast: str, dtype: torch.dtype):
    model = nn.Sequential(nn.Linear(3, 4), Gate(4, offset=0.3))
    if cast == "to":
        model.to(dtype)
    else:
        model.half() if dtype == torch.float16 else model.bfloat16()
    gate = model[1]
    assert float_types(gate) == {torch.float32}
    assert gate.mask().dtype == torch.float32
    assert gate.offset.item() == torch.tensor(0.3).item()  # not 0.3 rounded to the short type
    assert model[0].weight.dtype == dtype
    assert model(torch.randn(2, 3, dtype=dtype)).dtype == dtype


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature:UserWarning")
def test_a_gate_stays_real_in_a_complex_model():
    model = nn.Sequential(nn.Linear(3, 4), Gate(4)).to(torch.complex64)
    assert float_types(model[1]) == {torch.float32}
    assert model(torch.randn(2, 3, dtype=torch.complex64)).dtype == torch.complex64


def test_double_makes_a_gate_double_and_float_takes_it_back():
    gate = Gate(4).double()
    assert float_types(gate) == {torch.float64}
    assert gate.mask().dtype == torch.float64
    assert gate.float().mask().dtype == torch.float32


def test_a_gate_is_float32_whatever_the_default_dtype():
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        gate = Gate(4, offset=0.3)
    finally:
        torch.set_default_dtype(default)
    assert float_types(gate) == {torch.float32}


def test_an_offset_in_a_half_model_moves_by_small_steps():
    """In bfloat16 1.0 - 1e-3 is 1.0."""
    gate = Gate(4).bfloat16()
    with torch.no_grad():
        gate.offset.sub_(1e-3)
    assert gate.offset.item() == pytest.approx(0.999)


def test_the_mask_is_cast_to_the_input():
    gate = Gate(4, offset=-2.0)
    for dtype in (*DTYPES, torch.complex128):
        assert gate(torch.ones(1, 4, dtype=dtype)).dtype == dtype
    torch.testing.assert_close(gate(torch.ones(1, 4).half())[0], gate.mask().half())


@pytest.mark.parametrize("scale", SCALES)
def test_autocast_changes_nothing_but_the_activations(scale: Any):
    model = nn.Sequential(nn.Linear(3, 4), Gate(4, scale=scale), nn.Linear(4, 2))
    move(model[1], -2.0)
    reference = model[1].mask()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.randn(5, 3))
        assert y.dtype == torch.bfloat16
        assert model[1](torch.ones(1, 4)).dtype == torch.float32
        assert torch.equal(model[1].mask(), reference)
    y.sum().backward()
    assert model[1].offset.grad is not None and model[1].offset.grad.isfinite()


def test_meta_then_empty_then_load_gives_the_gate_back():
    source = Gate(6, offset=0.2, order="random:3", floor=2, scale="relative")
    with torch.device("meta"):
        gate = Gate(6, floor=2, scale="relative")
    assert gate.offset.is_meta and gate.order.is_meta
    gate.to_empty(device="cpu").load_state_dict(source.state_dict())
    assert torch.equal(gate.mask(), source.mask()) and torch.equal(gate.lowest, source.lowest)


def test_deepcopy_is_equal_and_separate():
    gate = Gate(4, offset=-1.0, order="random:1", floor=1)
    twin = copy.deepcopy(gate)
    assert torch.equal(twin.mask(), gate.mask()) and repr(twin) == repr(gate)
    move(twin, -3.0)
    assert gate.offset.item() == -1.0


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_round_trip(assign: bool):
    """Everything that decides the mask travels: the loading gate may have started elsewhere, in another order."""
    source = move(Gate(6, offset=0.5, order="random:3", steepness=2.0, span=3.0, scale="relative"), -1.1)
    target = Gate(6, scale="relative")
    result = target.load_state_dict(source.state_dict(), strict=True, assign=assign)
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(target.mask(), source.mask())
    assert torch.equal(target.lowest, source.lowest)
    assert isinstance(target.offset, nn.Parameter) and target.offset.requires_grad


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_checkpoint_saved_in_a_short_type_loads_as_float32(dtype: torch.dtype, assign: bool):
    source = move(Gate(4, offset=0.5), -2.0)
    saved = {name: t.to(dtype) if t.is_floating_point() else t for name, t in source.state_dict().items()}
    target = Gate(4)
    target.load_state_dict(saved, assign=assign)
    assert float_types(target) == {torch.float32}
    assert torch.equal(target.mask(), source.mask())  # these numbers are exact in every type
    assert saved["offset"].dtype == dtype  # the caller's dict is the caller's


def test_a_checkpoint_of_another_size_is_refused_by_torch():
    with pytest.raises(RuntimeError, match=r"size mismatch for order"):
        Gate(4).load_state_dict(Gate(5).state_dict())


# --- compile, vmap ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("scale", SCALES)
def test_compiled_whole_forward_and_backward(scale: Any, backend: str):
    def build() -> nn.Sequential:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 37), Gate(37, scale=scale), nn.Linear(37, 2))
        move(model[1], -2.0)
        return model

    torch._dynamo.reset()
    eager, compiled = build(), build()
    call = torch.compile(compiled, fullgraph=True, backend=backend)
    x = torch.randn(3, 5)
    torch.testing.assert_close(call(x), eager(x))
    call(x).square().sum().backward()
    eager(x).square().sum().backward()
    for ours, reference in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)
    move(eager[1], -3.3), move(compiled[1], -3.3)  # a new offset is data, not a new program
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(call(x), eager(x))


def test_a_stack_of_gates_under_vmap():
    """Three gates with different offsets, orders, starts; one of them baked."""
    stack = [Gate(4, offset=0.5, scale="relative", order=f"random:{seed}") for seed in range(3)]
    for gate, offset in zip(stack, (0.1, -2.0, -3.0), strict=True):
        move(gate, offset)
    bake_(stack[0])
    move(stack[0], -4.0)
    parameters, buffers = torch.func.stack_module_state(stack)  # type: ignore[arg-type]
    x = torch.randn(3, 7, 4)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(stack[0], (parameters, buffers), (x,)).square().sum()

    together = torch.vmap(loss)(parameters, buffers, x)
    gradients = torch.vmap(torch.func.grad(loss))(parameters, buffers, x)["offset"]
    for i, gate in enumerate(stack):
        alone = gate(x[i]).square().sum()
        torch.testing.assert_close(together[i], alone)
        torch.testing.assert_close(gradients[i], torch.autograd.grad(alone, gate.offset)[0])
    assert gradients[0] == 0 and gradients[1] != 0


# --- gate functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", ZERO_REACHING)
def test_exactly_zero_up_to_zero_and_positive_beyond(fn: str):
    z = torch.tensor([-1e9, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1e-6, 0.5, 3.0, 1e9])
    assert (GATE_FUNCTIONS[fn](z) > 0).tolist() == [False] * 5 + [True] * 5
    assert GATE_FUNCTIONS[fn](z)[:5].tolist() == [0.0] * 5


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gate_functions_rise_and_never_exceed_one_but_for_the_linear(fn: str):
    values = GATE_FUNCTIONS[fn](torch.linspace(-3, 9, 500))
    assert (values.diff() >= 0).all() and values[-1] > values[0]
    assert values[-1] <= 1 or fn == "linear"


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        ("relu_tanh", [0.0, math.tanh(0.5), math.tanh(1.75), math.tanh(3.0)]),
        ("hard_sigmoid", [0.0, 0.5 / 6, 1.75 / 6, 0.5]),
        ("linear", [0.0, 0.5, 1.75, 3.0]),
        ("piecewise_linear", [0.0, 0.5, 1.0, 1.0]),
        ("sigmoid", [1 / (1 + math.exp(-z)) for z in (-0.75, 0.5, 1.75, 3.0)]),
    ],
)
def test_gate_functions_by_hand(fn: str, expected: list[float]):
    torch.testing.assert_close(Gate(4, offset=-2.0, fn=fn).mask(), torch.tensor(expected))


@pytest.mark.parametrize("fn", ZERO_REACHING)
def test_eq_3_counts_whichever_function_is_used(fn: str):
    assert [Gate(4, offset=offset, fn=fn).active for offset in (1.0, -1.3, -2.0, -2.6, -4.9, -5.1)] == [
        4,
        3,
        3,
        2,
        1,
        0,
    ]


@pytest.mark.parametrize("scale", SCALES)
def test_the_sigmoid_closes_nothing_and_lets_nothing_be_removed(scale: Any):
    for offset in (1.0, -2.0, -5.0, -20.0):
        gate = move(Gate(4, fn="sigmoid", scale=scale), offset)
        assert (gate.mask() > 0).all()
        assert gate.active == 4
        with pytest.raises(GateError, match=r"fn='sigmoid' never closes a unit exactly.*4.*relu_tanh"):
            gate.keep()


def test_the_sigmoid_fails_where_relu_tanh_works():
    """Appendix A.4: eight inputs, a target that needs one of them. The same training closes units, or never does."""

    def train(fn: str) -> tuple[int, float]:
        torch.manual_seed(0)
        x = torch.randn(64, 8)
        gate, readout = Gate(8, fn=fn), nn.Linear(8, 1, bias=False)
        optimizer = torch.optim.Adam([*gate.parameters(), *readout.parameters()], lr=0.02)
        for _ in range(400):
            task = (readout(gate(x))[:, 0] - x[:, 7]).square().mean()
            optimizer.zero_grad()
            (task + 0.02 * gate.offset.clamp_min(-5.0)).backward()
            optimizer.step()
        return int((gate.mask() > 0).sum()), task.item()

    opened, error = train("relu_tanh")
    assert 1 <= opened <= 3 and error < 0.01
    opened, error = train("sigmoid")
    assert opened == 8 and error < 0.01


# --- relative masks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_relative_masks_start_as_ones_bit_for_bit(dtype: torch.dtype, fn: str):
    for n, offset in ((1, 1.0), (7, 0.3), (64, 1.0), (1000, 1e-4), (513, 30.0)):
        gate = Gate(n, offset=offset, fn=fn, scale="relative", order="random:5").to(dtype)
        assert torch.equal(gate.mask(), torch.ones_like(gate.mask()))
        x = torch.randn(3, n, dtype=dtype)
        assert torch.equal(gate(x), x)


@pytest.mark.parametrize("backend", COMPILERS)
def test_relative_masks_start_as_ones_when_compiled(backend: str):
    """101 units: a vectorised loop and its scalar rest must agree with themselves."""
    torch._dynamo.reset()
    gate = Gate(101, offset=0.3, scale="relative")
    call = torch.compile(gate, fullgraph=True, backend=backend)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.randn(3, 101, dtype=dtype)
        assert torch.equal(call(x), x)
    double = torch.compile(Gate(101, offset=0.3, scale="relative").double(), fullgraph=True, backend=backend)
    assert torch.equal(double(x.double()), x.double())


def test_relative_is_the_mask_over_its_start_over_its_largest():
    gate = move(Gate(4, offset=1.0, scale="relative"), -2.0)
    ratios = [math.tanh(order - 2) / math.tanh(order + 1) for order in (2.5, 3.75, 5.0)]
    torch.testing.assert_close(gate.mask(), torch.tensor([0.0, *(ratio / ratios[-1] for ratio in ratios)]))


def test_the_largest_entry_stays_one_when_nearly_closed():
    """A plain mask is at most tanh(5 - 4.999) = 0.001 here: the signal would be gone."""
    plain, relative = move(Gate(64), -4.999), move(Gate(64, scale="relative"), -4.999)
    assert plain.active == relative.active == 1
    assert plain.mask().amax().item() == pytest.approx(0.001, rel=1e-3)
    assert relative.mask().amax() == 1


@pytest.mark.parametrize("fn", ZERO_REACHING)
def test_an_all_closed_mask_is_zero_and_so_is_its_gradient(fn: str):
    gate = move(Gate(4, fn=fn, scale="relative"), -5.5)
    assert gate.mask().tolist() == [0.0] * 4 and gate.active == 0
    (1e6 * gate(torch.ones(1, 4))).sum().backward()
    assert gate.offset.grad == 0


def test_the_maximum_is_a_constant_to_the_gradient():
    """Two units at offset -2.4 (orders 2.5 and 5): the gradient is that of (g₁/s₁ + g₂/s₂)/c with c held fixed."""
    gate = move(Gate(2, offset=1.0, scale="relative"), -2.4)
    gate.mask().sum().backward()
    starts, values = (math.tanh(3.5), math.tanh(6.0)), (math.tanh(0.1), math.tanh(2.6))
    slopes = [(1 - value**2) / start for value, start in zip(values, starts, strict=True)]
    assert gate.offset.grad is not None
    assert gate.offset.grad.item() == pytest.approx(sum(slopes) / (values[1] / starts[1]), rel=1e-5)


@pytest.mark.parametrize(("offset", "order", "closed"), [(-1.3, "index", 1), (-2.6, "index", 2), (-0.1, "index0", 1)])
def test_a_relative_gate_must_start_open(offset: float, order: str, closed: int):
    with pytest.raises(ArgumentError, match=rf"offset={offset} closes {closed} of 4 units.*use an offset above -?[01]"):
        Gate(4, offset=offset, order=order, scale="relative")
    Gate(4, offset=offset, order=order)  # plain may


# --- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["index", "index0", "random:2", "random0:2", [3, 1, 0, 4, 2, 5, 6, 9, 7, 8]])
@pytest.mark.parametrize("floor", range(1, 11))
def test_the_lowest_offset_leaves_the_floor_open_and_no_more(floor: int, order: Any):
    gate = Gate(10, floor=floor, order=order)
    lowest = gate.lowest.item()
    assert move(gate, lowest).active == floor
    assert move(gate, lowest - 0.24).active == floor  # half of 5/10 away from the next closing
    assert move(gate, lowest - 0.26).active == floor - 1


def test_without_a_floor_the_lowest_is_where_everything_is_shut():
    gate = Gate(10)
    assert gate.lowest.item() == -5.0
    assert move(gate, -5.0).active == 0


def test_the_floor_is_not_in_the_mask():
    """A floor inside the mask would have no gradient there, and a gate at its floor could never open again."""
    assert move(Gate(4, floor=2), -10.0).active == 0


def test_a_start_below_the_floor_is_refused():
    with pytest.raises(ArgumentError, match=r"offset=-3 leaves 2 of 4 units open, below floor=3"):
        Gate(4, offset=-3.0, floor=3)


# --- baking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_baking_keeps_the_function_and_drops_the_offset(fn: str, scale: Any):
    gate = move(Gate(4, fn=fn, scale=scale), -2.0)
    x = torch.randn(3, 4)
    before, active = gate(x), gate.active
    bake_(gate)
    assert torch.equal(gate(x), before) and gate.active == active
    move(gate, -4.0)
    assert torch.equal(gate(x), before) and gate.active == active
    gate(x).sum().backward()
    assert gate.offset.grad == 0


def test_baked_twice_is_baked_once():
    gate = move(Gate(4), -2.0)
    bake_(gate)
    mask = gate.mask()
    move(gate, -4.0)
    bake_(gate)
    assert torch.equal(gate.mask(), mask)


@pytest.mark.parametrize("how", ["deepcopy", "state_dict", "assign", "half"])
def test_a_baked_gate_travels_baked(how: str):
    gate = move(Gate(4, scale="relative"), -2.0)
    bake_(gate)
    mask = gate.mask()
    move(gate, -4.0)
    if how == "deepcopy":
        other = copy.deepcopy(gate)
    elif how == "half":
        other = copy.deepcopy(gate).half()
    else:
        other = Gate(4, scale="relative")
        other.load_state_dict(gate.state_dict(), assign=how == "assign")
    assert bool(other.baked) and torch.equal(other.mask(), mask)


# --- not a number ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_a_checkpoint_with_a_broken_offset_is_refused_by_name(value: float, strict: bool, assign: bool):
    model = nn.ModuleDict({"stem": Gate(4), "head": nn.ModuleDict({"gate": Gate(4)})})
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved["head.gate.offset"].fill_(value)
    with pytest.raises(RuntimeError, match=rf"offset of gate 'head.gate' is {value} in the checkpoint"):
        model.load_state_dict(saved, strict=strict, assign=assign)
    assert model.get_parameter("head.gate.offset").item() == 1.0  # nothing of it was taken


@pytest.mark.parametrize("name", ["order", "start", "gain", "span", "steepness"])
def test_no_number_of_a_checkpoint_may_be_broken(name: str):
    saved = {key: tensor.clone() for key, tensor in Gate(4).state_dict().items()}
    saved[name].view(-1)[-1] = math.nan
    gate = Gate(4)
    with pytest.raises(RuntimeError, match=rf"the {name} of gate 'root' is nan in the checkpoint"):
        gate.load_state_dict(saved)
    assert all(tensor.isfinite().all() for tensor in gate.state_dict().values())


@pytest.mark.parametrize("saved", [torch.tensor([0.5, 0.6]), torch.tensor([]), torch.full((2, 2), math.nan)], ids=str)
def test_an_offset_of_another_shape_is_refused(saved: Tensor):
    """Torch itself would take the first of several."""
    gate = Gate(4)
    with pytest.raises(RuntimeError, match=r"size mismatch for offset: one number, but \(.*\) in the checkpoint"):
        gate.load_state_dict({**gate.state_dict(), "offset": saved})
    assert gate.offset.item() == 1.0


def test_a_gate_that_is_the_whole_model_is_called_root():
    saved = Gate(4).state_dict()
    saved["offset"].fill_(math.nan)
    with pytest.raises(RuntimeError, match="offset of gate 'root' is nan"):
        Gate(4).load_state_dict(saved)


def test_keep_and_active_refuse_a_broken_offset():
    gate = move(Gate(4, floor=2), math.nan)
    for ask in (gate.keep, lambda: gate.active):
        with pytest.raises(GateError, match=r"not a finite number in Gate\(4, dim=1, .*floor=2\) \(nan\)$"):
            ask()


# --- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": 0}, "n=0: a gate needs at least one unit"),
        ({"n": -3}, "n=-3: a gate needs at least one unit"),
        ({"n": 2.5}, "n=2.5 is not a whole number"),
        ({"n": True}, "n=True is not a whole number"),
        ({"n": "8"}, "n='8' is not a whole number"),
        ({"dim": 1.0}, "dim=1.0 is not a whole number"),
        ({"dim": None}, "dim=None is not a whole number"),
        ({"floor": 5}, "floor=5 must lie between 0 and the gate's 4 units"),
        ({"floor": -1}, "floor=-1 must lie between 0 and the gate's 4 units"),
        ({"floor": 0.5}, "floor=0.5 is not a whole number"),
        ({"steepness": 0.0}, "steepness=0.0 must be a finite number above 0"),
        ({"steepness": math.inf}, "steepness=inf must be a finite number above 0"),
        ({"span": -5.0}, "span=-5.0 must be a finite number above 0"),
        ({"span": math.nan}, "span=nan must be a finite number above 0"),
        ({"offset": math.nan}, "offset=nan must be a finite number"),
        ({"offset": -math.inf}, "offset=-inf must be a finite number"),
        ({"fn": "tanh"}, "fn='tanh' is unknown; use one of relu_tanh, hard_sigmoid"),
        ({"fn": ["relu_tanh"]}, r"fn=\['relu_tanh'\] is unknown"),
        ({"scale": "absolute"}, "scale='absolute' is unknown; use one of plain, relative"),
        ({"scale": {}}, "scale={} is unknown"),
        ({"offset": "x"}, "offset='x' is not a number"),
        ({"offset": "1.0"}, "offset='1.0' is not a number"),
        ({"offset": None}, "offset=None is not a number"),
        ({"offset": 1j}, "offset=1j is not a number"),
        ({"offset": torch.ones(2)}, r"offset=tensor\(\[1., 1.\]\) is not a number"),
        ({"offset": 10**400}, "offset is too large for a float"),
        ({"offset": 10**5000}, "offset is too large for a float"),
        ({"offset": -1e39}, r"offset=-1e\+39 must be a finite number \(in float32\)"),
        ({"span": 1e39}, r"span=1e\+39 must be a finite number above 0 \(in float32\)"),
        ({"span": "5"}, "span='5' is not a number"),
        ({"steepness": 1e-46}, r"steepness=1e-46 must be a finite number above 0 \(in float32\)"),
        ({"steepness": None}, "steepness=None is not a number"),
        ({"order": "weight"}, "order 'weight' is unknown"),
        ({"order": [0, 1, 1, 3]}, "order is not a permutation of 0 … 3"),
        ({"order": [0, 1, 2]}, r"order has shape \(3,\), but the gate has 4 units"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], complaint: str):
    with pytest.raises(ArgumentError, match=complaint) as raised:
        Gate(**{"n": 4, **arguments})
    assert isinstance(raised.value, HeadgateError) and isinstance(raised.value, ValueError)


def test_numbers_of_other_libraries_are_numbers():
    gate = Gate(np.int64(4), dim=np.int8(1), floor=torch.tensor(1), offset=np.float32(0.5), span=torch.tensor([3.0]))
    assert (gate.n, gate.dim, gate.floor, gate.offset.item(), gate.span.item()) == (4, 1, 1, 0.5, 3.0)
    assert all(type(number) is int for number in (gate.n, gate.dim, gate.floor))


@pytest.mark.parametrize("x", [None, [1.0] * 4, 2.0], ids=str)
def test_what_is_no_tensor_is_refused(x: Any):
    with pytest.raises(ShapeError, match=rf"Gate\(4, dim=1.* masks a tensor, but got {type(x).__name__}"):
        Gate(4)(x)


@pytest.mark.parametrize(
    ("dim", "x", "complaint"),
    [
        (1, torch.ones(4), r"Gate\(4, dim=1.*shape \(4,\), which has no dim 1"),
        (-3, torch.ones(2, 4), r"shape \(2, 4\), which has no dim -3"),
        (0, torch.ones(()), r"shape \(\), which has no dim 0"),
        (1, torch.ones(2, 5), r"masks 4 units along dim 1.*shape \(2, 5\), which has 5 there"),
        (1, torch.ones(2, 1), r"masks 4 units along dim 1.*shape \(2, 1\), which has 1 there"),
        (-1, torch.ones(4, 3), r"masks 4 units along dim -1.*shape \(4, 3\), which has 3 there"),
        (1, torch.ones(2, 4, dtype=torch.int64), "tensor of torch.int64; a mask needs floating point"),
        (1, torch.ones(2, 4, dtype=torch.bool), "tensor of torch.bool; a mask needs floating point"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(dim: int, x: Tensor, complaint: str):
    with pytest.raises(ShapeError, match=complaint):
        Gate(4, dim=dim)(x)
