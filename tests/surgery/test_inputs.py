"""Masks on inputs where these are smaller than the weight: the same network, and the same weights for who asks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import headgate as hg
from headgate import inputs
from tests.small_nets import trained
from tests.surgery.gated_nets import (
    NETS,
    apart,
    expected_gradients,
    gradients,
    inserted,
    move_,
    pair,
    plain_forward,
    square,
    train,
)

TIGHT = 1e-9
Used = list[tuple[int, ...]]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Used:
    """Every input that can be masked is, however large; the shapes of the weights that read them."""
    seen: Used = []
    monkeypatch.setattr(inputs, "LARGE", 0)

    def always(x: Tensor, weight: Tensor) -> bool:
        seen.append(tuple(weight.shape))
        return True

    monkeypatch.setattr(inputs, "_is_smaller", always)
    return seen


def gated_copy(dense: nn.Module, x: Tensor, **options: bool) -> nn.Module:
    """With gates, some units closed, in float64."""
    gated = copy.deepcopy(dense)
    hg.insert_gates_(gated, x, floor=2, **options)
    move_(gated)
    return gated.double()


def wide(width: int = 256) -> nn.Module:
    """One weight of `width` squared that is large, and one that is not."""
    torch.manual_seed(0)
    return trained(
        nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
    )


# ---- the same network ----


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_masked_weights(name: str, training: bool, used: Used):
    dense, gated, x = pair(name)
    dense.train(training), gated.train(training)
    expected = expected_gradients(dense, gated, square, x)
    assert torch.allclose(plain_forward(copy.deepcopy(dense), gated, x), copy.deepcopy(gated)(x), rtol=TIGHT)
    square(gated(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert used


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_starts_as_the_network_it_was_given(name: str, dtype: torch.dtype, autocast: bool, used: Used):
    dense, gated, x = pair(name, moved=False, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(gated(x), dense(x))
    assert used


LAYERS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "1d": (lambda: [nn.Conv1d(2, 6, 3), nn.Tanh(), nn.Conv1d(6, 3, 3, padding=2, padding_mode="circular")], (2, 2, 9)),
    "2d": (lambda: [nn.Conv2d(2, 6, 3), nn.Conv2d(6, 3, 3, stride=2, padding="valid", bias=False)], (2, 2, 9, 8)),
    "3d": (lambda: [nn.Conv3d(2, 6, 1), nn.Conv3d(6, 3, 2, padding=1, dilation=2)], (2, 2, 3, 4, 5)),
    "reflected": (lambda: [nn.Conv2d(2, 6, 1), nn.Conv2d(6, 3, 3, padding=1, padding_mode="reflect")], (2, 2, 5, 5)),
    "without a batch": (lambda: [nn.Conv2d(2, 6, 1), nn.Conv2d(6, 3, 3)], (2, 5, 5)),
    "sequences": (lambda: [nn.Linear(2, 6), nn.Linear(6, 3)], (2, 4, 5, 2)),
    "one vector": (lambda: [nn.Linear(2, 6), nn.Linear(6, 3)], (2,)),
}
UNBATCHED = ("without a batch", "one vector")


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name: str, used: Used):
    layers, shape = LAYERS[name]
    torch.manual_seed(0)
    dense, x = trained(nn.Sequential(*layers())), torch.randn(shape)
    gated = gated_copy(dense, x.unsqueeze(0) if name in UNBATCHED else x)
    dense, x = dense.double(), x.double()
    expected = expected_gradients(dense, gated, square, x)
    square(gated(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert len(used) == 1


def test_two_masks_on_one_input(used: Used):
    """A stream's and that of one of its readers."""
    dense, _, x = pair("residual")
    gated = gated_copy(dense.float(), x.float(), readers=True)
    two = [name for name, module in gated.named_modules() if getattr(module, "axes", None) == (1, 1)]
    assert two
    dense = dense.double()
    expected = expected_gradients(dense, gated, square, x)
    square(gated(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert len(used) > len(two)


@pytest.mark.parametrize("name", ["residual", "tied", "flat"])
def test_gradients_of_gradients(name: str, used: Used):
    dense, gated, x = pair(name)
    dense.eval(), gated.eval()

    def twice(output: Tensor) -> Tensor:
        learned = list(gated.parameters())
        first = torch.autograd.grad(square(output), learned, create_graph=True, allow_unused=True)
        length = sum(gradient.square().sum() for gradient in first if gradient is not None)
        return torch.cat([g.flatten() for g in torch.autograd.grad(length, learned)])

    found, expected = twice(gated(x)), twice(plain_forward(dense, gated, x))
    assert torch.allclose(found, expected, rtol=TIGHT, atol=TIGHT * float(expected.abs().max()))
    assert used


# ---- who asks for the weight ----


def test_the_weight_of_a_layer_is_the_masked_one(used: Used):
    dense, gated, x = pair("skipping")
    mask = hg.gates(gated)["frozen"].mask().double()
    seen: list[Tensor] = []
    gated.head.register_forward_pre_hook(lambda module, args: seen.append(module.weight))
    gated(x)
    assert used
    for weight in (*seen, gated.head.weight):
        assert torch.equal(weight, dense.head.weight * mask)
    assert torch.autograd.grad(seen[0].sum(), inserted(gated).offset)[0].abs().sum() > 0


def test_hooks_see_the_input_as_it_was(used: Used):
    _, gated, x = pair("skipping")
    before, inside = [], []
    gated.middle.register_forward_hook(lambda module, args, output: before.append(output))
    gated.extra[0].register_forward_hook(lambda module, args, output: inside.append(args[0]))
    gated(x)
    assert used and inside[0] is before[0]


def test_another_parametrization_on_top(used: Used):
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    _, gated, x = pair("chain")
    gated.eval()
    shift, once = gated[5].bias, gated(x)
    parametrize.register_parametrization(gated[5], "weight", Doubled())
    assert torch.allclose(gated(x) - shift, 2 * (once - shift), rtol=TIGHT)
    assert used.count((3, 6)) == 1


def test_a_forward_of_the_users_own(used: Used):
    dense, gated, x = pair("chain")
    layer = gated[5]
    layer.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias)
    expected = expected_gradients(dense, pair("chain")[1], square, x)
    square(gated(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert used == [(6, 8)]


# ---- which of the two ----


@pytest.mark.parametrize(("batch", "smaller"), [(4, True), (300, False)])
def test_the_smaller_of_the_two_is_masked(batch: int, smaller: bool, monkeypatch: pytest.MonkeyPatch):
    dense, chosen = wide(), list[bool]()
    gated, x = gated_copy(dense, torch.randn(2, 4)), torch.randn(batch, 4).double()
    is_smaller = inputs._is_smaller

    def watched(x: Tensor, weight: Tensor) -> bool:
        chosen.append(is_smaller(x, weight))
        return chosen[-1]

    monkeypatch.setattr(inputs, "_is_smaller", watched)
    slopes = expected_gradients(dense.double(), gated, square, x)
    square(gated(x)).backward()
    assert chosen == [smaller], "the other weight is too small to be asked about"
    assert apart(gradients(gated), slopes) < TIGHT


def test_no_masked_weight_is_made():
    """Beside the input only its product with the mask is kept: less than a masked weight, of which there is none."""
    dense = wide()
    gated, x = gated_copy(dense, torch.randn(2, 4)).float(), torch.randn(4, 4)

    def kept(model: nn.Module) -> int:
        tensors: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            tensors[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(x)
        assert output.requires_grad
        return sum(tensors.values())

    assert kept(gated) < kept(dense) + 2 * 4 * 256 * 4 + 3 * 4 * 256


class Sliced(nn.Linear):
    """Not torch's own: who knows what it does with its weight."""


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Sliced(512, 256),
        lambda: nn.Conv2d(512, 512, 1, groups=2),
        lambda: nn.ConvTranspose2d(512, 256, 1),
        lambda: nn.Linear(512, 100),
    ],
)
def test_other_layers_have_their_weights_masked(layer: Callable[[], nn.Module]):
    assert not inputs.can_mask_inputs(layer())


def test_small_weights_keep_the_forward_of_torch():
    gated = gated_copy(wide(), torch.randn(2, 4))
    assert inputs.can_mask_inputs(nn.Linear(256, 256))
    assert [type(layer).forward is nn.Linear.forward for layer in gated.children()][::2] == [True, False, True]


def test_elsewhere_than_on_a_cpu_weights_are_masked():
    assert inputs.pays_for(torch.empty(1))
    assert not inputs.pays_for(torch.empty(1, device="meta"))


def test_what_a_layer_writes_is_masked_on_its_weight(used: Used):
    """The last layer of a branch has masks along both axes."""
    _, gated, x = pair("residual")
    assert gated.blocks[0].b.parametrizations.weight[0].axes == (1, 0)
    gated(x)
    assert len(used) == len(gated.blocks) + 1


def test_an_input_that_does_not_fit_is_refused_as_ever(used: Used):
    """A single channel times the mask would be broadcast into one that fits."""
    dense, gated, _ = pair("chain")
    for wrong in (torch.ones(2, 1), torch.ones(2, 7), torch.tensor(1.0)):
        with pytest.raises(RuntimeError) as plain:
            dense[2](wrong.double())
        with pytest.raises(RuntimeError) as masked:
            gated[2](wrong.double())
        assert str(masked.value) == str(plain.value)
    with pytest.raises(TypeError):
        gated[2](None)
    assert not used


# ---- surroundings ----


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_activation_checkpointing(reentrant: bool, learns: bool, used: Used):
    dense, gated, x = pair("residual")
    dense.eval(), gated.eval()
    inserted(gated).offset.requires_grad_(learns)
    expected = expected_gradients(dense, gated, square, x)
    for block in gated.blocks:
        block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=reentrant)
    for _ in range(2):
        gated.zero_grad()
        square(gated(x)).backward()
        assert apart(gradients(gated), expected) < TIGHT
    assert used
    assert not gated.headgate_shared.vectors


def test_one_layer_in_two_checkpoints(used: Used):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.entry, self.shared, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.checkpointed = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.entry(x).tanh()
            for _ in range(2):
                x = checkpoint(self.shared, x, use_reentrant=True) if self.checkpointed else self.shared(x)
            return self.out(x.tanh())

    torch.manual_seed(0)
    dense, x = trained(Twice()), torch.randn(3, 4)
    gated = gated_copy(dense, x)
    expected = expected_gradients(dense.double(), gated, square, x.double())
    gated.checkpointed = True
    square(gated(x.double())).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert used.count((8, 8)) == 4


def test_a_part_with_gradients_switched_on(used: Used):
    """As a model does that differentiates inside its own forward, called without gradients."""
    _, gated, x = pair("chain")
    run, seen = gated[5].forward, []

    def with_gradients(x: Tensor) -> Tensor:
        with torch.enable_grad():
            output = run(x)
            seen.append(torch.autograd.grad(output.sum(), inserted(gated).offset)[0])
            return output

    gated[5].forward = with_gradients
    with torch.no_grad():
        gated(x)
    assert used == [(6, 8), (3, 6)]
    assert seen[0][0] == 0 and seen[0][1] != 0


def test_parts_called_directly(used: Used):
    dense, gated, x = pair("chain")
    dense.eval(), gated.eval()
    expected = expected_gradients(dense, gated, square, x)
    for layer in gated.children():
        x = layer(x)
    square(x).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert len(used) == 2


def test_per_sample_gradients_go_by_the_definition(used: Used):
    dense, gated, _ = pair("chain")
    dense.eval(), gated.eval()
    xs = torch.randn(3, 1, 4, dtype=torch.float64)
    weights = {name: p.detach() for name, p in gated.named_parameters() if name != "headgate_offsets"}

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return square(functional_call(gated, values, (x,)))

    found = vmap(grad(loss), in_dims=(None, 0))(weights, xs)
    for number, x in enumerate(xs):
        expected = expected_gradients(dense, gated, square, x)
        assert apart({n: g[number].detach() for n, g in found.items()}, {n: expected[n] for n in weights}) < TIGHT
    assert not used


def test_compiled_by_the_definition(used: Used):
    dense, gated, x = pair("chain")
    torch.compiler.reset()
    expected = expected_gradients(dense, gated, square, x)
    square(torch.compile(gated, fullgraph=True, backend="aot_eager")(x)).backward()
    assert apart(gradients(gated), expected) < TIGHT
    assert not used


def test_substituted_weights(used: Used):
    _, gated, x = pair("chain")
    others = {n: p.detach() * 0.5 for n, p in gated.named_parameters() if n != "headgate_offsets"}
    twin = copy.deepcopy(gated)
    twin.load_state_dict(others, strict=False)
    assert torch.allclose(functional_call(gated.eval(), others, (x,)), twin.eval()(x), rtol=TIGHT)
    assert used


def test_autocast(used: Used):
    dense, gated, x = pair("residual", dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = expected_gradients(dense, gated, square, x)
        square(gated(x)).backward()
    assert apart(gradients(gated), expected) < 0.05
    assert used and inserted(gated).offset.grad.dtype == torch.float32


# ---- and off again ----


@pytest.mark.parametrize("name", NETS)
def test_trained_and_compacted(name: str, used: Used):
    _, gated, x = pair(name)
    train(gated, [x, x + 1, x - 1])
    gated.eval()
    expected = gated(x).detach()

    def equal(model: nn.Module) -> bool:
        return torch.allclose(model(x), expected, rtol=TIGHT, atol=TIGHT * float(expected.abs().max()))

    assert equal(hg.compact(gated))
    hg.bake_(gated)
    assert equal(gated) and used
    hg.remove_gates_(gated)
    used.clear()
    assert equal(gated) and not used
    for module in gated.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            assert type(module).forward in (nn.Linear.forward, nn.Conv2d.forward)


def test_a_layer_that_stays_parametrized_gets_its_forward_back(used: Used):
    _, gated, x = pair("chain")
    parametrize.register_parametrization(gated[2], "bias", nn.Tanh())
    gated.eval()
    expected, twin = gated(x), copy.deepcopy(gated)
    hg.remove_gates_(gated)
    assert type(gated[2]) is not nn.Linear and type(gated[2]).forward is nn.Linear.forward
    assert torch.allclose(gated(x), expected, rtol=TIGHT)
    used.clear()
    assert torch.equal(twin(x), expected), "the copy keeps its gates"
    assert len(used) == 2
