"""insert_gates_, remove_gates_ and bake_: what they place and leave, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import headgate as hg
from headgate.layers import WriteBack
from headgate.surgery import insert as module_under_test
from headgate.surgery.planning import planned
from headgate_lab.models.preresnet import PreResNet
from tests.small_nets import Residual, Tied, image, trained
from tests.surgery.gated_nets import NETS, Chain, equal_states, inserted, move_, pair, plain_forward, rows, state
from tests.surgery.gated_nets import train as train_

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def analysed() -> tuple[nn.Module, Any]:
    """A PreResNet and its proven plan, for what follows the analysis."""
    torch.manual_seed(0)
    model = trained(PreResNet(20)).eval()
    return model, hg.find_groups(model, IMAGE)


@pytest.fixture
def preresnet(analysed: tuple[nn.Module, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """A copy; inserting into it takes the plan that is there."""
    model, plan = analysed
    monkeypatch.setattr(module_under_test, "planned", lambda *_: plan)
    yield copy.deepcopy(model)


# ---- where ----


@pytest.mark.slow
def test_the_papers_gates_on_preresnet_164(monkeypatch: pytest.MonkeyPatch):
    model, plans = PreResNet(164), []

    def noted(*args: Any) -> Any:
        plans.append(planned(*args))
        return plans[-1]

    monkeypatch.setattr(module_under_test, "planned", noted)
    twin = copy.deepcopy(model)
    found = hg.insert_gates_(model, IMAGE)
    assert len(found) == 166 == 1 + 108 + 54 + 3
    branches = [name for name in found if name.endswith(":write")]
    assert len(branches) == 54 and all(found[name].floor == 0 for name in branches)
    monkeypatch.setattr(module_under_test, "planned", lambda *_: plans[0])
    assert len(hg.insert_gates_(twin, IMAGE, streams=False)) == 163
    assert set(found) - set(hg.gates(twin)) == {"stage1.0.conv3", "stage2.0.conv3", "stage3.0.conv3"}


def test_the_same_law_on_preresnet_20(preresnet: nn.Module):
    found = hg.insert_gates_(copy.deepcopy(preresnet), IMAGE)
    assert len(found) == 1 + 12 + 6 + 3
    assert len(hg.insert_gates_(preresnet, IMAGE, streams=False)) == 1 + 12 + 6
    assert found["stem"].n == 16 and found["stage3.1.conv2"].n == 64 and found["stage2.1.conv3:write"].n == 128


def test_where_picks_by_name_and_module(preresnet: nn.Module):
    seen: dict[str, nn.Module] = {}

    def where(name: str, module: nn.Module) -> bool:
        seen[name] = module
        return "conv2" in name

    found = hg.insert_gates_(preresnet, IMAGE, where=where)
    assert list(found) == [f"stage{stage}.{block}.conv2" for stage in (1, 2, 3) for block in (0, 1)]
    assert len(seen) == 22 and isinstance(seen["stem"], nn.Conv2d)
    assert seen["stage1.0.conv3:write"] is seen["stage1.0.conv3"]


def test_groups_no_larger_than_the_floor_get_no_gate(preresnet: nn.Module):
    found = hg.insert_gates_(preresnet, IMAGE, floor=32)
    assert {gate.n for gate in found.values()} == {64, 128, 256}
    assert all(gate.floor == (0 if name.endswith(":write") else 32) for name, gate in found.items())


def test_the_floor_holds_under_any_strength():
    _, gated, x = pair("chain", moved=False, dtype=torch.float32)
    train_(gated, [x] * 200, strength=50.0)
    assert [gate.active for gate in hg.gates(gated).values()] == [2, 2]


@pytest.mark.parametrize("multiple_of", [4, 8])
@pytest.mark.parametrize("order", ["index", "random:3"])
def test_widths_are_multiples_after_compaction(preresnet: nn.Module, multiple_of: int, order: str):
    hg.insert_gates_(preresnet, IMAGE, multiple_of=multiple_of, floor=3, order=order)
    move_(preresnet)
    small = hg.compact(preresnet)
    convolutions = [module for module in small.modules() if isinstance(module, nn.Conv2d)]
    assert all(c.in_channels % multiple_of == 0 or c.in_channels == 3 for c in convolutions)
    # A silent branch keeps one channel to write zeros with; nothing is silent here.
    assert all(c.out_channels % multiple_of == 0 for c in convolutions)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in preresnet.parameters())


# ---- orders ----


@pytest.mark.parametrize("order", ["index", "random:7", "index0", "random0:7"])
def test_a_branch_takes_its_streams_order(preresnet: nn.Module, order: str):
    found = hg.insert_gates_(preresnet, IMAGE, order=order)
    bank = inserted(preresnet)
    place = {name: bank.places(number).tolist() for number, name in enumerate(found)}
    for stage in (1, 2, 3):
        for block in (0, 1):
            assert place[f"stage{stage}.{block}.conv3:write"] == place[f"stage{stage}.0.conv3"]
    assert sorted(place["stem"]) == list(range(16))
    assert (place["stem"] == list(range(16))) == order.startswith("index")
    with torch.no_grad():
        bank.offset.fill_(-2.0)
        found["stage1.0.conv3"].offset.fill_(-1.0)
    stream, written = found["stage1.0.conv3"].keep(), found["stage1.1.conv3:write"].keep()
    assert int(stream.sum()) > int(written.sum()) and not bool((written & ~stream).any())


def test_a_given_permutation():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    found = hg.insert_gates_(model, rows(), order=[7, 6, 5, 4, 3, 2, 1, 0])
    with torch.no_grad():
        found["0"].offset.fill_(-3.0)
    assert found["0"].keep().tolist() == [True] * 4 + [False] * 4


# ---- the start ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
@pytest.mark.parametrize("name", NETS)
def test_it_starts_as_the_network_it_was_bit_for_bit(name: str, dtype: torch.dtype):
    dense, gated, x = pair(name, moved=False, dtype=dtype)
    dense.eval(), gated.eval()
    assert torch.equal(dense(x), gated(x))
    assert all(bool((gate.mask() == 1).all()) for gate in hg.gates(gated).values())
    with torch.no_grad():
        assert torch.equal(dense(x), gated(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.half])
def test_inserted_into_a_model_of_that_dtype(dtype: torch.dtype):
    model, x = Chain().to(dtype).eval(), rows().to(dtype)
    before = model(x)
    hg.insert_gates_(model, x, floor=2)
    assert torch.equal(model(x), before)
    assert inserted(model).offset.dtype == torch.float32
    assert {p.dtype for n, p in model.named_parameters() if not n.startswith("headgate")} == {dtype}


def test_plain_masks_are_the_papers_formula():
    model = Chain()
    found = hg.insert_gates_(model, rows(), scale="plain", floor=2)
    places = torch.arange(1, 9) * 5 / 8
    assert torch.allclose(found["0"].mask(), (places + 1).tanh())


def test_parameters_stay_the_same_objects_and_an_older_optimizer_goes_on():
    model, x = Residual(), image()
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hg.insert_gates_(model, x, floor=2)
    after = {id(p) for p in model.parameters()} - {id(inserted(model).offset)}
    assert after == {id(p) for p in before.values()}
    assert model.head.parametrizations.weight.original is before["head.weight"]
    values = {name: p.detach().clone() for name, p in before.items()}
    model(x).sum().backward()
    optimizer.step()
    assert all(not torch.equal(values[name], p) for name, p in before.items())
    assert torch.equal(inserted(model).offset, torch.ones(7))


def test_an_offset_is_a_view_that_can_be_written():
    _, gated, x = pair("residual", moved=False)
    gate = hg.gates(gated)["blocks.1.a"]
    before = gated(x)
    with torch.no_grad():
        gate.offset.fill_(-3.0)
    number = list(hg.gates(gated)).index("blocks.1.a")
    assert gated.headgate_offsets[number] == -3.0
    assert gate.active == 4 and not torch.equal(gated(x), before)
    assert "blocks.1.a" in repr(gate) and gate.n == 8


# ---- checkpoints ----


def test_names_in_the_state_dict():
    dense, gated, _ = pair("residual")
    extra = {"headgate_offsets", "headgate_places", "headgate_baked", "headgate_open"}
    names = {name.replace("parametrizations.weight.original", "weight") for name in gated.state_dict()}
    names = {name.replace("parametrizations.bias.original", "bias") for name in names}
    assert names == set(dense.state_dict()) | extra
    assert "head.parametrizations.weight.original" in gated.state_dict()


@pytest.mark.parametrize("name", NETS)
def test_a_dense_checkpoint_loads(name: str):
    dense, gated, x = pair(name, moved=False)
    other = trained(copy.deepcopy(dense)).eval()
    offsets = inserted(gated).offset
    assert gated.load_state_dict(other.state_dict(), strict=True).missing_keys == []
    assert torch.equal(gated.eval()(x), other(x))
    assert inserted(gated).offset is offsets
    move_(gated)
    gated.load_state_dict(dense.state_dict())
    assert offsets.min() < -2, "the gates stay where they are"


def test_a_dense_checkpoint_loads_below_a_prefix():
    dense, gated, x = pair("residual", moved=False)
    other = trained(copy.deepcopy(dense)).eval()
    outer = nn.ModuleDict({"net": gated, "more": nn.Linear(2, 2)})
    outer.load_state_dict(nn.ModuleDict({"net": other, "more": nn.Linear(2, 2)}).state_dict(), strict=True)
    assert torch.equal(gated.eval()(x), other(x))


def test_wrong_checkpoints_are_still_refused():
    dense, gated, _ = pair("chain")
    missing, foreign = dense.state_dict(), dense.state_dict() | {"other": torch.ones(1)}
    del missing["0.weight"]
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        gated.load_state_dict(missing)
    with pytest.raises(RuntimeError, match="other"):
        gated.load_state_dict(foreign)


@pytest.mark.parametrize("name", NETS)
def test_a_gated_checkpoint_makes_the_round_trip(name: str):
    _, gated, x = pair(name)
    _, other, _ = pair(name, moved=False)
    trained(other).load_state_dict(state(gated), strict=True)
    assert equal_states(state(gated), state(other))
    assert torch.equal(gated.eval()(x), other.eval()(x))


def test_a_checkpoint_with_another_order():
    _, gated, x = pair("chain", moved=False)
    other = Chain()
    hg.insert_gates_(other, x.float(), floor=2, order="random:5")
    move_(other.double())
    gated.load_state_dict(other.state_dict())
    assert torch.equal(gated.eval()(x), other.eval()(x))
    assert gated(x).isfinite().all() and hg.gates(gated)["0"].mask().max() == 1


def test_loading_with_assign():
    dense, gated, x = pair("residual")
    _, other, _ = pair("residual", moved=False)
    other.load_state_dict(state(gated), assign=True)
    assert torch.equal(gated.eval()(x), other.eval()(x))
    assert inserted(other.half()).offset.dtype == torch.float64, "still the kind of parameter that is never shortened"
    offsets = inserted(gated).offset
    gated.load_state_dict({name: torch.zeros_like(t) for name, t in dense.state_dict().items()}, assign=True)
    assert inserted(gated).offset is offsets
    assert not gated(x).any() and gated.stem.weight.requires_grad


# ---- taking them off ----


@pytest.mark.parametrize("name", NETS)
def test_removed_gates_leave_the_same_function_and_the_same_model(name: str):
    dense, gated, x = pair(name)
    dense.eval(), gated.eval()
    expected = gated(x)
    hg.remove_gates_(gated)
    assert torch.allclose(gated(x), expected, rtol=1e-12, atol=1e-14)
    assert_like(gated, dense)


def assert_like(model: nn.Module, dense: nn.Module) -> None:
    """The same structure as a model that never had gates, order included."""
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in dense.named_parameters()]
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in dense.named_buffers()]
    assert list(model.state_dict()) == list(dense.state_dict())
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in dense.parameters()]
    for one, other in zip(model.modules(), dense.modules(), strict=True):
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
        assert list(one._parameters) == list(other._parameters)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_pre_hooks"):
            assert len(getattr(one, hooks)) == len(getattr(other, hooks))
        assert len(one._load_state_dict_post_hooks) == len(other._load_state_dict_post_hooks)
        assert not one._forward_hooks_always_called


def test_removed_gates_keep_ties():
    _, gated, _ = pair("tied")
    hg.remove_gates_(gated)
    assert gated.first.weight is gated.second.weight


def test_a_removed_model_pickles_and_takes_gates_again():
    _, gated, x = pair("chain")
    hg.remove_gates_(gated)
    other = pickle.loads(pickle.dumps(gated))
    hg.insert_gates_(other, x, floor=2)
    assert torch.equal(other.eval()(x), gated.eval()(x))


def test_a_gated_model_cannot_be_pickled_whole():
    _, gated, _ = pair("chain")
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(gated)


@pytest.mark.parametrize("name", NETS)
def test_baking_is_the_same_function_once_and_for_all(name: str):
    _, gated, x = pair(name)
    gated.eval()
    expected, keep = gated(x), {name: gate.keep() for name, gate in hg.gates(gated).items()}
    hg.bake_(gated)
    assert torch.allclose(gated(x), expected, rtol=1e-12, atol=1e-14)
    for name_, gate in hg.gates(gated).items():
        assert torch.equal(gate.mask(), keep[name_].to(gate.mask().dtype)) and bool(gate.baked)
    once = state(gated)
    hg.bake_(gated)
    assert equal_states(state(gated), once)
    with torch.no_grad():
        inserted(gated).offset.fill_(0.5)
    assert torch.allclose(gated(x), expected, rtol=1e-12, atol=1e-14), "offsets no longer matter"
    assert torch.allclose(hg.compact(gated)(x), expected, rtol=1e-9)


def test_a_parametrization_on_top_of_a_mask_is_not_lost_silently():
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    _, gated, _ = pair("chain")
    parametrize.register_parametrization(gated[2], "weight", Doubled())
    before = state(gated)
    for function in (hg.remove_gates_, hg.bake_, hg.compact):
        with pytest.raises(hg.GateError, match="Doubled"):
            function(gated)
    assert equal_states(state(gated), before)
    masks = gated[2].parametrizations.weight
    assert torch.allclose(gated[2].weight, 2 * masks[0](masks.original))


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": "conv"}, "where='conv' must be a function of a site's name and module"),
        ({"floor": 0}, "floor=0 must be at least 1"),
        ({"floor": 2.5}, "floor=2.5 is not a whole number"),
        ({"floor": True}, "floor=True"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"multiple_of": "8"}, "multiple_of='8'"),
        ({"order": "backwards"}, "order 'backwards' is unknown"),
        ({"order": [0, 1]}, "insert_gates_: order of '0': order has shape .* a mapping from names to orders"),
        ({"scale": "raw"}, "scale='raw' is unknown; use one of plain, relative"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str):
    model = Chain()
    before, fresh = state(model), Chain()
    with pytest.raises(hg.ArgumentError, match=words.replace("[", r"\[")):
        hg.insert_gates_(model, rows(), **options)
    assert_like(model, fresh)
    assert equal_states(state(model), before)


def test_no_module_at_all():
    with pytest.raises(hg.ArgumentError, match=r"torch\.nn\.Module"):
        hg.insert_gates_(lambda x: x, rows())


def test_gated_already():
    _, gated, x = pair("chain")
    before = state(gated)
    with pytest.raises(hg.GateError, match="already"):
        hg.insert_gates_(gated, x)
    assert equal_states(state(gated), before) and len(gated._forward_pre_hooks) == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped(wrap: Any):
    model = Chain()
    with pytest.raises(hg.GateError, match="before wrapping"):
        hg.insert_gates_(wrap(model), rows())
    assert not any("headgate" in name for name in (*vars(model), *model.state_dict()))


def test_wrapped_in_ddp(tmp_path: Any):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(hg.GateError, match="before wrapping the model in DistributedDataParallel"):
            hg.insert_gates_(nn.parallel.DistributedDataParallel(Chain()), rows())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("build", "example"), [(lambda: nn.Linear(4, 8), rows), (lambda: nn.ReLU(), rows)])
def test_nothing_to_gate(build: Any, example: Any):
    model = build()
    with pytest.raises(hg.GateError, match="nothing in"):
        hg.insert_gates_(model, example())
    assert_like(model, build())


def test_nothing_wanted():
    model = Chain()
    with pytest.raises(hg.GateError, match="nothing in"):
        hg.insert_gates_(model, rows(), where=lambda name, module: False)
    assert_like(model, Chain())


def test_removing_what_is_not_there():
    with pytest.raises(hg.GateError, match="remove_gates_: Chain has no gates"):
        hg.remove_gates_(Chain())


def test_the_users_own_parametrization_on_another_layer_stays():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    parametrizations.weight_norm(model[0])
    names, x = [n for n, _ in model.named_parameters()], rows()
    expected = model(x)
    hg.insert_gates_(model, x, where=lambda name, module: name == "2")
    assert torch.equal(model(x), expected)
    hg.remove_gates_(model)
    assert [n for n, _ in model.named_parameters()] == names
    assert parametrize.is_parametrized(model[0]) and torch.equal(model(x), expected)


def test_tied_weights_are_masked_under_every_name():
    dense, gated, x = pair("tied")
    assert isinstance(dense, Tied)
    assert gated.first.weight is gated.second.weight
    assert torch.allclose(gated(x), plain_forward(dense, gated, x), rtol=1e-12)


def test_branches_of_full_width_need_no_layer_of_ours():
    torch.manual_seed(0)
    example = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    model = PreResNet(20).double().eval()
    gates = hg.insert_gates_(model, example, branches="full", floor=1, order="random:2")
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(-2.2)
        gates["stage1.1.conv3:write"].offset.fill_(-5.0)
    small = hg.compact(model)
    torch.testing.assert_close(small(example), model(example), rtol=1e-10, atol=1e-10)
    assert not any(isinstance(module, WriteBack) for module in small.modules())
    assert isinstance(small.stage1[1], nn.Identity)
    assert small.stage2[1].conv3.out_channels == gates["stage2.0.conv3"].active
    assert hg.kept(model, "params") * sum(p.numel() for p in PreResNet(20).parameters()) == pytest.approx(
        sum(p.numel() for p in small.parameters())
    )


def test_an_unknown_kind_of_branches_is_refused():
    with pytest.raises(hg.ArgumentError, match="branches='wide' is unknown; use one of narrow, full"):
        hg.insert_gates_(PreResNet(20), torch.randn(2, 3, 8, 8), branches="wide")
