"""A network of odd widths and its stand-in: the same outputs, the same training, silence that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.layers import GatherBatchNorm2d
from headgate_lab.data.images import Normalisation
from headgate_lab.engine import network as engine
from headgate_lab.engine.images import Batches, Resident
from headgate_lab.engine.network import Network, Optimization
from headgate_lab.engine.stand_in import StandIn, stand_in
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.norm_channels import cut, scales
from headgate_lab.models.lenet import LeNet5
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.resnet import resnet_cifar
from headgate_lab.models.rows import RowsConv2d
from headgate_lab.models.vgg import VGG

PIXELS = 8
EPOCHS, STEPS, BATCH = 3, 4, 8


def images(count: int = STEPS * BATCH) -> Resident:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, PIXELS, PIXELS), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return Resident(pixels, labels, Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))


EXAMPLE = images(2).normalised(images(2).images, torch.float32)


def partly_closed(model: nn.Module) -> nn.Module:
    """Compacted at random, so that residual branches write into some places of their streams."""
    hg.insert_gates_(model, EXAMPLE, floor=2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-4 * torch.rand((), generator=generator).item())
    return hg.compact(model, EXAMPLE)


def without_a_branch(model: nn.Module) -> nn.Module:
    """The branch of a block whose shortcut is a projection is left as zeros."""
    plan = hg.find_groups(model, EXAMPLE)
    branch = next(one for one in plan.branches if one.name.startswith("stage2.0"))
    return hg.shrink(model, plan, {branch.name: torch.zeros(branch.size, dtype=torch.bool)})


def picking(model: nn.Module) -> nn.Module:
    """As Network Slimming and ChipNet cut: norms pick channels of a stream, layers are narrower, a block is gone."""
    generator = torch.Generator().manual_seed(2)
    stays = {name: torch.rand(len(scale), generator=generator) < 0.6 for name, scale in scales(model).items()}
    stays |= {name: torch.zeros_like(keep) for name, keep in stays.items() if name.startswith("stage1.1")}
    small = cut(model, hg.find_groups(model, EXAMPLE, readers=True), stays)
    assert any(hasattr(layer, "picked") for layer in small.modules())
    return small


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "preresnet": lambda: PreResNet(11, width=0.45),
    "a preresnet cut at random": lambda: partly_closed(PreResNet(20)),
    "a preresnet without a branch": lambda: without_a_branch(PreResNet(20, width=0.7)),
    "a preresnet whose norms pick": lambda: picking(PreResNet(20)),
    "vgg": lambda: VGG(widths=(16, 0, 24), width=0.7),
    "resnet": lambda: resnet_cifar(8, width=0.6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_the_same_in_widths_that_suit(name: str):
    torch.manual_seed(0)
    small = NETWORKS[name]()
    drawn = torch.get_rng_state()
    found = stand_in(small, EXAMPLE)
    assert found is not None and torch.equal(torch.get_rng_state(), drawn)
    assert torch.allclose(found.model.eval()(EXAMPLE), small.eval()(EXAMPLE), atol=1e-5)
    for layer in found.model.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.out_channels % 8 == 0 and layer.in_channels in (3, *range(8, 999, 8))


def test_where_branches_write_back_rows_are_masked():
    torch.manual_seed(0)
    small = NETWORKS["a preresnet cut at random"]()
    assert any(hasattr(layer, "places") for layer in small.modules())
    found = stand_in(small, EXAMPLE)
    assert found is not None and any(isinstance(layer, RowsConv2d) for layer in found.model.modules())


def trained(
    model: nn.Module, kind: str, method: Method | None = None, epochs: int = EPOCHS
) -> tuple[Network, list[dict[str, float]]]:
    network = fresh(model, kind, method)
    return network, [run(network) for _ in range(epochs)]


def fresh(
    model: nn.Module, kind: Any, method: Method | None = None, batch: int = BATCH, epochs: int = EPOCHS
) -> Network:
    how = Optimization(kind, 0.02 if kind == "sgd" else 1e-3, 5e-4, lambda epoch, epochs: 1 - epoch / epochs)
    batches = Batches(images(), batch, 0, pad=1, flip=True, dtype=next(model.parameters()).dtype)
    return Network(model, method or Narrower(), batches, how, epochs, 0)


def run(network: Network) -> dict[str, float]:
    network.begin_epoch()
    for _ in range(network.batches.steps):
        network.step()
        network.after_step()
    return network.metrics()


def silent(found: StandIn) -> Tensor:
    """Everything learned by the stand-in that belongs to no channel of the small network."""
    beyond = []
    for place, mine, its in found._pairs():
        if not isinstance(mine, nn.Parameter):
            continue
        mask = torch.ones_like(mine, dtype=torch.bool)
        mask[place] = False
        beyond.append(mine[mask].flatten().double())
        assert mask.sum() == mine.numel() - its.numel()
    return torch.cat(beyond)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are made."""
    monkeypatch.setattr(engine, "STAND_INS_ON", ("cpu",))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_same_training(name: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = NETWORKS[name]().double()  # in single precision roundings decide about ReLUs, and trainings part
    start = {key: value.clone() for key, value in model.state_dict().items()}
    monkeypatch.setattr(engine, "STAND_INS_ON", ("cpu",))
    with_it, losses = trained(model, kind)
    found = {key: value.clone() for key, value in with_it.model.state_dict().items()}
    assert with_it.stand_in is not None and not silent(with_it.stand_in).any()
    model.load_state_dict(start)
    monkeypatch.setattr(engine, "STAND_INS_ON", ())
    without, expected = trained(model, kind)
    assert without.stand_in is None
    for mine, other in zip(losses, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-6)
    moved = max((value - start[key]).abs().max() for key, value in without.model.named_parameters())
    for key, value in without.model.named_parameters():
        assert (found[key] - value).abs().max() < 1e-5 * moved, key
    for key, value in without.model.named_buffers():
        if "running" in key:
            assert torch.allclose(found[key], value, rtol=1e-6, atol=1e-9), key


@pytest.mark.usefixtures("anywhere")
def test_what_is_frozen_stays_so():
    torch.manual_seed(0)
    model = NETWORKS["preresnet"]()
    model.get_submodule("stage1").requires_grad_(False)
    start = {key: value.clone() for key, value in model.named_parameters()}
    network, _ = trained(model, "sgd")
    assert network.stand_in is not None
    for key, value in model.named_parameters():
        assert torch.equal(value, start[key]) == key.startswith("stage1."), key


class Tripled(GatherBatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x) if self.training else super().forward(x)


def test_a_norm_of_a_class_of_its_own_has_no_stand_in():
    torch.manual_seed(0)
    model = NETWORKS["a preresnet whose norms pick"]()
    norm = next(layer for layer in model.modules() if type(layer) is GatherBatchNorm2d)
    norm.__class__ = Tripled
    assert stand_in(model, EXAMPLE) is None


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", ["preresnet", "a preresnet whose norms pick"])
def test_an_interrupted_training_goes_on(name: str):
    torch.manual_seed(0)
    model = NETWORKS[name]()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    whole, losses = trained(model, "sgd")
    expected = {key: value.clone() for key, value in whole.model.state_dict().items()}
    model.load_state_dict(start)
    first, _ = trained(model, "sgd", epochs=1)
    state = first.state_dict()
    shapes = {value["momentum_buffer"].shape for value in state["optimizer"]["state"].values()}
    assert shapes == {parameter.shape for parameter in model.parameters()}  # a machine without stand-ins can go on
    again = fresh(NETWORKS[name](), "sgd")
    again.load_state_dict(state)
    assert [run(again) for _ in range(EPOCHS - 1)] == losses[1:]
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.usefixtures("anywhere")
def test_a_budget_goes_on_with_a_stand_in_of_the_small_network():
    torch.manual_seed(0)
    method, epochs = Budgeted(40_000, reach=0.5, train_on=True), 8
    network = fresh(method.attach(PreResNet(11), EXAMPLE), "sgd", method, 2, epochs)
    assert network.stand_in is None
    for _ in range(epochs):
        run(network)
    assert network.at_rest is not None and network.stand_in is not None
    assert not silent(network.stand_in).any()
    again = fresh(method.attach(PreResNet(11), EXAMPLE), "sgd", method, 2, epochs)
    again.load_state_dict(network.state_dict())
    assert again.stand_in is not None and not silent(again.stand_in).any()
    for (_, mine, _), (_, other, _) in zip(network.stand_in._pairs(), again.stand_in._pairs(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (PreResNet(11), EXAMPLE),  # nothing to fill up
        (LeNet5(torch.relu), torch.randn(2, 1, 28, 28)),  # biases
        (nn.Sequential(nn.Conv2d(3, 5, 1, bias=False), nn.PReLU(5)), EXAMPLE),  # an unknown layer
        (nn.Sequential(nn.Conv2d(3, 5, 1, bias=False), nn.Flatten(), nn.Linear(320, 2)), EXAMPLE),  # pixels
    ],
)
def test_what_needs_none_or_is_not_known_has_none(model: nn.Module, example: Tensor):
    assert stand_in(model, example) is None


@pytest.mark.usefixtures("anywhere")
def test_noise_on_gradients_would_wake_the_silent():
    how = Optimization("sgd", 0.1, 0.0, lambda epoch, epochs: 1.0, gradient_noise=0.05)
    batches = Batches(images(), BATCH, 0, pad=0, flip=False, dtype=torch.float32)
    assert Network(NETWORKS["preresnet"](), Narrower(), batches, how, 1, 0).stand_in is None
