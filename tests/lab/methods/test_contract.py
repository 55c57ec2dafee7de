"""One suite for every method, on several networks: trainable, never silently wrong, and small in the end."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.dam import Dam, in_the_paper_s_way
from headgate_lab.methods.l1 import L1, Masked
from headgate_lab.methods.narrower import Narrower, parameters, widest
from headgate_lab.methods.one_shot import OneShot
from headgate_lab.models.lenet import LeNet5, LeNet5Caffe
from headgate_lab.models.preresnet import PreResNet

METHODS: dict[str, Callable[[int], Method]] = {
    "dam": lambda size: Dam(3.0, offset_lr=0.5),
    "dam, settled": lambda size: Dam(3.0, cold_start=1, settle=2, offset_lr=1.0),
    "dam, the paper's way": lambda size: Dam(3.0, offset_update="plain", scale="plain", floor=1, streams=False),
    "dam, before norms": lambda size: in_the_paper_s_way(3.0, 0),
    "budgeted": lambda size: Budgeted(size // 3, floor=1),
    "one-shot": lambda size: OneShot(size // 2),
    "l1": lambda size: L1(20.0),
    "full": lambda size: Narrower(),
    "narrower": lambda size: Narrower(size // 2),
    "narrower, by work": lambda size: Narrower(macs=0.5),
    "budgeted, by work": lambda size: Budgeted(macs=0.5, floor=1),
}
NETWORKS: dict[str, tuple[Callable[[float], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda width: LeNet5(width=width), (4, 1, 28, 28)),
    "lenet5-caffe": (LeNet5Caffe, (4, 1, 28, 28)),
    "preresnet": (lambda width: PreResNet(11, width=width), (4, 3, 8, 8)),
}


def trained(method: Method, build: Callable[[float], nn.Module], images: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = method.attach(build(method.width(build, images)), images).train()
    if isinstance(model, Masked):  # few steps do not carry a mask from 1 to 0
        for mask in model.masks:
            nn.init.uniform_(mask.values, 0.02, 1.0)  # type: ignore[arg-type]
    groups = method.groups(model)
    if groups[-1].get("offset_update") == "plain":
        groups[-1]["lr"] = 0.5
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    labels = torch.arange(len(images))
    steps = 30 if isinstance(method, Budgeted) else 3
    companion = method.companion(model, 3 * steps)
    for epoch in range(3):
        method.on_epoch(model, epoch)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            penalty = method.penalty(model) if companion is None else companion.penalty()
            (loss if penalty is None else loss + penalty).backward()
            optimizer.step()
            if companion is not None:
                companion.step()
    return model.eval()


def work(model: nn.Module, images: Tensor) -> int:
    return hg.cost(model, images).macs or 0


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_its_small_network_computes_the_same(name: str, network: str) -> None:
    build, shape = NETWORKS[network]
    size = sum(parameter.numel() for parameter in build(1.0).parameters())
    method = METHODS[name](size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = trained(method, build, images)
    before = copy.deepcopy(model.state_dict())
    small = method.small(model, images)
    with torch.no_grad():
        expected, found = model(images), small(images)
    assert (expected - found).abs().max() <= 1e-4 * expected.abs().max()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    left = sum(parameter.numel() for parameter in small.parameters())
    assert left <= size if name == "full" else left < size
    keep = method.keep(model)
    assert all(vector.dtype == torch.bool and vector.dim() == 1 for vector in keep.values())
    assert bool(keep) == name.startswith(("dam", "budgeted", "l1"))
    assert left <= size // 3 or name != "budgeted"
    if name.endswith("by work"):
        assert work(small, images) <= work(build(1.0), images) / 2
    assert not keep or not all(bool(vector.all()) for vector in keep.values())


def test_equal_placement_is_what_the_strength_does_not_change() -> None:
    assert Dam(0.1).placement == Dam(0.5, settle=3).placement
    assert Dam(0.1).placement != Dam(0.1, streams=False).placement
    assert Dam(0.1).placement != Dam(0.1, permutation=0).placement != Dam(0.1, permutation=1).placement


@pytest.mark.parametrize("params", [1_000, 5_000, 61_706])
def test_the_narrower_network_is_the_widest_that_fits(params: int) -> None:
    def size(width: float) -> int:
        return sum(parameter.numel() for parameter in LeNet5(width=width).parameters())

    width = widest(lambda width: LeNet5(width=width), parameters, params)
    assert size(width) <= params
    assert width == 1.0 or size(width + 1 / 1024) > params


def test_a_size_that_no_narrower_network_has_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        widest(lambda width: LeNet5(width=width), parameters, 10)


def test_looking_for_a_width_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    widest(lambda width: LeNet5(width=width), parameters, 5_000)
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(0)))


def test_a_masked_network_takes_the_weights_of_a_bare_one() -> None:
    images = torch.randn(2, 1, 28, 28)
    model, other = L1(1.0).attach(LeNet5(), images), LeNet5()
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(images), other(images))
    again = L1(1.0).attach(LeNet5(), images)
    again.load_state_dict(copy.deepcopy(model).state_dict())
    torch.testing.assert_close(again(images), other(images))
