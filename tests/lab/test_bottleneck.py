"""Bottlenecks as few kernels: the kernels' arithmetic, and when they are used. `fake_triton` runs them here."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

import headgate as hg
from headgate_lab.engine.stand_in import stand_in
from headgate_lab.methods.norm_channels import scales
from headgate_lab.methods.slimming import Slimmed
from headgate_lab.models import bottleneck, norm
from headgate_lab.models.preresnet import Bottleneck, PreResNet
from headgate_lab.models.rows import RowsConv2d
from tests import fake_triton


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Everything goes through the kernels, in tiles so small that there are several; what did is returned."""
    tiles = {"MOST": 16, "FEWEST": 8, "FEWEST_ROWS": 2, "ROWS_ADDED": 16, "FEWEST_ADDING": 2, "MOST_ADDING": 3}
    works = ("CONVOLVE", "END", "BACK_THIRD", "BACK_FIRST", "BACK_FIRST_WIDE")
    small = {name: getattr(bottleneck, name)._replace(numbers=128, most_rows=16, programs=6) for name in works}
    for name, value in {**tiles, **small}.items():
        monkeypatch.setattr(bottleneck, name, value)
    return fake_triton.for_preresnets(monkeypatch)


def block(stream: int, first: int, second: int) -> Bottleneck:
    """One whose inner layers have these widths."""
    torch.manual_seed(0)
    made = Bottleneck(stream, stream // 4)
    made.conv1, made.bn2 = nn.Conv2d(stream, first, 1, bias=False), nn.BatchNorm2d(first)
    made.conv2, made.bn3 = nn.Conv2d(first, second, 3, padding=1, bias=False), nn.BatchNorm2d(second)
    made.conv3 = nn.Conv2d(second, stream, 1, bias=False)
    for one in (made.bn1, made.bn2, made.bn3):
        nn.init.normal_(one.weight)
        nn.init.normal_(one.bias)
    return made


# Images, stream, first and second inner width, height, width.
SHAPES = {
    "whole tiles": (2, 32, 8, 8, 4, 4),
    "as many inner channels as there may be": (1, 64, 16, 16, 5, 3),
    "channels that fill no tile": (2, 40, 8, 16, 3, 7),
    "a stream as narrow as the rest": (3, 8, 16, 8, 2, 2),
    "images of one row": (2, 32, 8, 8, 1, 9),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernels_compute_what_torch_computes(
    shape: tuple[int, ...], layout: torch.memory_format, kernels: list[Tensor]
):
    images, stream, first, second, *sides = shape
    ours = block(stream, first, second).to(memory_format=layout)  # type: ignore[call-overload]
    plain = copy.deepcopy(ours).double()
    for _ in range(2):  # the second time the statistics run on
        pixels, slopes = 3 * torch.randn(images, stream, *sides) + 2, torch.randn(images, stream, *sides)
        x, wide = pixels.to(memory_format=torch.channels_last).requires_grad_(), pixels.double().requires_grad_()
        found = ours(x)
        found.backward(slopes)
        assert len(kernels) == 1
        kernels.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bottleneck, "is_fast_for", lambda block, x: False)
            expected = plain(wide)
        expected.backward(slopes.double())
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)
        assert torch.allclose(x.grad.double(), wide.grad, rtol=1e-3, atol=1e-3)
    for name, value in ours.state_dict().items():
        assert torch.allclose(value.double(), plain.state_dict()[name].double(), rtol=1e-4, atol=1e-5), name
    for name, value in ours.named_parameters():
        expected = plain.get_parameter(name).grad
        assert torch.allclose(value.grad.double(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max()), name


def test_images_of_half_precision_and_weights_of_full(kernels: list[Tensor]):
    ours = block(32, 8, 8)
    x = torch.randn(2, 32, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
    expected = plainly(ours, x.float())
    found = ours(x)
    found.sum().backward()
    assert found.dtype == x.grad.dtype == torch.bfloat16 and ours.conv2.weight.grad.dtype == torch.float32
    assert torch.allclose(found.float(), expected, atol=0.1) and kernels


def plainly(model: nn.Module, *inputs: Tensor) -> Tensor:
    """What a copy makes of the inputs without the kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bottleneck, "is_fast_for", lambda block, x: False)
        made: Tensor = copy.deepcopy(model)(*inputs)
    return made


@pytest.mark.parametrize("gated", [False, True])
def test_networks_learn_the_same(
    gated: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, computed: list[Bottleneck]
):
    torch.manual_seed(0)
    network = PreResNet(20, width=0.5)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    if gated:
        hg.insert_gates_(network, x)
    plain = copy.deepcopy(network)
    plain(x).square().sum().backward()
    request.getfixturevalue("kernels")
    monkeypatch.setattr(bottleneck, "MOST", 32)
    network(x).square().sum().backward()
    assert computed == [network.stage1[1], network.stage2[1], network.stage3[1]]
    for name, value in plain.named_parameters():
        mine, scale = network.get_parameter(name).grad, value.grad.abs().max()
        assert torch.allclose(mine, value.grad, rtol=1e-3, atol=1e-4 * float(scale) + 1e-5), name


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Bottleneck]:
    """The blocks that went through the kernels."""
    return fake_triton.blocks_computed(monkeypatch)


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def other(name: str, module: nn.Module) -> Bottleneck:
    made = block(32, 8, 8)
    setattr(made, name, module)
    return made


def watched(name: str) -> Bottleneck:
    made = block(32, 8, 8)
    made.get_submodule(name).register_forward_hook(lambda module, inputs, output: output + 1)
    return made


def watched_backwards(name: str) -> Bottleneck:
    made = block(32, 8, 8)
    made.get_submodule(name).register_full_backward_hook(lambda module, inputs, outputs: None)
    return made


def called_otherwise(name: str) -> Bottleneck:
    made = block(32, 8, 8)
    layer = made.get_submodule(name)
    layer.forward = lambda x: 2 * type(layer).forward(layer, x)  # type: ignore[method-assign]
    return made


OTHERS = {
    "a projection": Bottleneck(16, 8),
    "a stride": Bottleneck(32, 8, stride=2),
    "evaluation": block(32, 8, 8).eval(),
    "one norm at rest": other("bn2", nn.BatchNorm2d(8).eval()),
    "a norm without weight": other("bn2", nn.BatchNorm2d(8, affine=False)),
    "a norm gone": other("bn2", nn.Identity()),
    "a bias": other("conv3", nn.Conv2d(8, 32, 1)),
    "a class of its own": other("conv1", Doubled(32, 8, 1, bias=False)),
    "groups": other("conv1", nn.Conv2d(32, 8, 1, groups=2, bias=False)),
    "another border": other("conv2", nn.Conv2d(8, 8, 3, padding=1, bias=False, padding_mode="circular")),
    "an odd width": block(32, 12, 8),
    "many channels": block(32, 72, 8),
    "a watched norm": watched("bn1"),
    "a watched layer": watched("conv2"),
    "a watched shortcut": watched("shortcut"),
    "a layer watched backwards": watched_backwards("conv3"),
    "a layer that is called otherwise": called_otherwise("conv3"),
    "a norm that is called otherwise": called_otherwise("bn2"),
}


@pytest.mark.parametrize("made", OTHERS.values(), ids=OTHERS)
def test_what_the_kernels_do_not_know_takes_the_plain_way(made: Bottleneck, kernels: list[Tensor]):
    x = torch.randn(2, made.bn1.num_features, 4, 4)
    assert not bottleneck.is_fast_for(made, x)
    assert torch.allclose(copy.deepcopy(made)(x), plainly(made, x), atol=1e-5)


def test_who_watches_all_modules_sees_those_of_a_block(kernels: list[Tensor]):
    seen: list[nn.Module] = []
    watching = register_module_forward_hook(lambda module, inputs, output: seen.append(module))
    made = block(32, 8, 8)
    try:
        made(torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last))
    finally:
        watching.remove()
    assert made.conv1 in seen and made.conv3 in seen


# A batch of one pixel has no variance; and one of none has nothing.
@pytest.mark.parametrize("shape", [(2, 24, 4, 4), (1, 32, 1, 1)], ids=["of another width", "of one pixel"])
def test_images_that_do_not_fit_are_an_error_as_without_the_kernels(shape: tuple[int, ...], kernels: list[Tensor]):
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    with pytest.raises((RuntimeError, ValueError), match=r"running_mean should contain|more than 1 value"):
        block(32, 8, 8)(x)


def test_no_images_make_none(kernels: list[Tensor]):
    assert not bottleneck.is_fast_for(block(32, 8, 8), torch.empty(0, 32, 4, 4))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("bn2", nn.BatchNorm2d(16)),
        ("conv2", nn.Conv2d(16, 8, 3, padding=1, bias=False)),
        ("conv3", nn.Conv2d(8, 64, 1, bias=False)),
    ],
)
def test_layers_that_do_not_fit_each_other_are_not_taken(name: str, layer: nn.Module, kernels: list[Tensor]):
    assert not bottleneck.is_fast_for(other(name, layer), torch.randn(2, 32, 4, 4))


def test_what_is_no_number_stays_so(kernels: list[Tensor]):
    made = block(32, 8, 8)
    with torch.no_grad():
        made.conv1.weight[0, 0] = torch.nan
    x = torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last)
    assert made(x).isnan().all() and kernels


def test_a_gradient_of_a_gradient_is_refused(kernels: list[Tensor]):
    x = torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(block(32, 8, 8)(x).sum(), x, create_graph=True)


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class Spread(nn.Module):
    """The same, with gaps in memory."""

    def forward(self, weight: Tensor) -> Tensor:
        return torch.stack((weight, torch.zeros_like(weight)), dim=1)[:, 0]


@pytest.mark.parametrize(("name", "how"), [("conv1", Half), ("conv2", Half), ("bn2", Half), ("bn2", Spread)])
def test_a_weight_may_be_computed(name: str, how: type[nn.Module], kernels: list[Tensor]):
    made = block(32, 8, 8)
    parametrize.register_parametrization(made.get_submodule(name), "weight", how())
    x = torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last)
    expected = plainly(made, x)
    assert torch.allclose(made(x), expected, atol=1e-4) and kernels


def test_rows_may_be_silent(kernels: list[Tensor]):
    made = block(32, 8, 8)
    silent = RowsConv2d(8, 32, 1, bias=False)
    silent.register_buffer("rows", (torch.arange(32) % 3 > 0).float().view(32, 1, 1, 1))
    made.conv3 = silent
    x = torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last)
    expected = plainly(made, x)
    found = made(x)
    assert torch.allclose(found, expected, atol=1e-4) and kernels
    assert torch.equal(found[:, ::3], x[:, ::3])
    found.square().sum().backward()
    assert not silent.weight.grad[::3].any() and silent.weight.grad[1::3].any()


def test_a_weight_may_lie_anyhow(kernels: list[Tensor]):
    made = block(32, 8, 8)
    made.conv2.weight.data = made.conv2.weight.data.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    x = torch.randn(2, 32, 4, 4).contiguous(memory_format=torch.channels_last)
    expected = plainly(made, x)
    assert torch.allclose(made(x), expected, atol=1e-4) and kernels


def test_blocks_that_were_cut_go_through_the_kernels_as_stand_ins(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    whole, example = PreResNet(20), torch.randn(2, 3, 8, 8)
    for scale in scales(whole).values():
        nn.init.uniform_(scale)
    small = Slimmed(share=0.5).attach(whole, example)
    found = stand_in(small, example)
    assert found is not None
    monkeypatch.setattr(norm, "are_for_kernels", lambda x: True)
    for block, fast in ((small.get_submodule("stage2.1"), False), (found.model.get_submodule("stage2.1"), True)):
        assert bottleneck.is_fast_for(block.train(), torch.empty(2, 128, 4, 4)) == fast


def test_without_a_gpu_nothing_is_fast():
    x = torch.randn(2, 32, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last)
    assert not bottleneck.is_fast_for(block(32, 8, 8), x)
