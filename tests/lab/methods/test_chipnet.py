"""ChipNet: formulas by hand, schedules, the budget, an exact cut, and a small network that is the masked one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import headgate as hg
from headgate_lab.methods.chip_masks import Chipped, heaviside, logistic, rounded
from headgate_lab.methods.chipnet import ChipNet
from headgate_lab.methods.narrower import parameters
from headgate_lab.methods.norm_channels import scales
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def chipped(method: ChipNet, network: nn.Module, *, spread: float = 1.0) -> Chipped:
    """With masks, and all that can be learned drawn at random."""
    generator = torch.Generator().manual_seed(1)
    model = method.attach(network, IMAGES.to(next(network.parameters()).dtype))
    assert isinstance(model, Chipped)
    with torch.no_grad():
        for norm in model.network.modules():
            if isinstance(norm, nn.BatchNorm2d):
                for tensor in (norm.weight, norm.bias, norm.running_mean):
                    tensor.copy_(torch.randn(tensor.shape, generator=generator))
        model.psi.copy_(spread * torch.randn(len(model.psi), generator=generator))
    return model.eval()


def small_vgg() -> VGG:
    return VGG(widths=(4, 0, 6))


def test_masks_by_hand() -> None:
    z = logistic(torch.tensor([0.0, math.log(3) / 2], dtype=torch.float64), 2.0)
    assert z.tolist() == pytest.approx([0.5, 0.75])
    after = heaviside(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 2.0)
    assert after.tolist() == pytest.approx([0.0, 1 - math.exp(-1) + 0.5 * math.exp(-2), 1.0])
    assert rounded(torch.tensor([0.5, 0.7]), 10.0).tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-2))])


def test_it_starts_where_the_authors_start() -> None:
    model = ChipNet(0.4, seed=3).attach(PreResNet(164), IMAGES)
    assert isinstance(model, Chipped)
    assert len(model.psi) == 12_112 and model.psi.min() >= 0 and 0.009 < model.psi.max() <= 0.01
    before, after = model.masks()
    assert before.min() >= 0.5 and before.max() <= 0.5025
    assert after.min() > 0.69 and after.max() < 0.703
    assert model.remaining().item() == pytest.approx(0.882, abs=1e-3)


@pytest.mark.parametrize(("epochs", "in_epoch"), [(20, 3), (5, 12), (5, 13), (40, 3)])
def test_schedules_are_the_authors_for_twenty_epochs_and_as_smooth_in_fewer(epochs: int, in_epoch: int) -> None:
    method, steps = ChipNet(0.5, epochs=epochs), epochs * in_epoch
    model = chipped(method, small_vgg())
    companion = method.companion(model, steps)
    for epoch in range(epochs):
        assert method.on_epoch(model, epoch) is False
        for step in range(epoch * in_epoch, (epoch + 1) * in_epoch):
            stage = 20 * step // steps
            assert model.slope.item() == pytest.approx(1 + 0.02 * stage)
            assert model.crispness.item() == pytest.approx(min(256, 2 ** (1 + stage / 2)))
            if step % 5 == 0:  # it may be interrupted anywhere
                state, companion = companion.state_dict(), method.companion(model, steps)
                companion.load_state_dict(state)
            companion.step()


def test_in_fewer_epochs_masks_start_alike_and_move_as_far() -> None:
    """Adam moves what is learned for a channel by its rate, whatever the gradient."""
    starts, ends = [], []
    for epochs in (20, 5):
        method = ChipNet(0.5, epochs=epochs)
        model = method.attach(small_vgg(), IMAGES)
        assert isinstance(model, Chipped)
        starts.append(model.masks()[0].tolist())
        optimizer = torch.optim.AdamW(method.groups(model), lr=1e-3, weight_decay=0.0)
        for _ in range(10 * epochs):
            optimizer.zero_grad()
            model.masks()[0].sum().backward()
            optimizer.step()
        ends.append(model.masks()[0].tolist())
    assert starts[1] == pytest.approx(starts[0], abs=1e-6)
    assert ends[1] == pytest.approx(ends[0], abs=1e-4) and max(ends[0]) < min(starts[0]) - 0.04


def test_counting_gets_sharper_step_by_step_and_no_sharper_than_allowed() -> None:
    method = ChipNet(0.5)
    model = chipped(method, small_vgg())
    companion = method.companion(model, 20 * 8)
    for _ in range(8):
        assert companion.step() is False
    assert model.rounding.item() == pytest.approx(15)
    for _ in range(19 * 8):
        companion.step()
    assert model.rounding.item() == 60


def test_the_penalty_by_hand() -> None:
    method = ChipNet(0.25, budget_weight=30, crispness_weight=10)
    model = chipped(method, small_vgg().double())
    method.on_epoch(model, 4)
    counted, crisp = [], []
    for psi in model.psi.tolist():
        before = 1 / (1 + math.exp(-1.08 * psi))
        after = 1 - math.exp(-8 * before) + before * math.exp(-8)
        counted.append(1 / (1 + math.exp(-10 * (after - 0.5))))
        crisp.append((after - before) ** 2)
    expected = 30 * (sum(counted) / 10 - 0.25) ** 2 + 10 * sum(crisp) / 10
    penalty = method.companion(model, 1).penalty()
    assert penalty.item() == pytest.approx(expected, rel=1e-6)
    penalty.backward()
    assert model.psi.grad is not None and bool((model.psi.grad != 0).all())
    assert all(parameter.grad is None for parameter in model.network.parameters())


def test_a_mask_multiplies_scale_and_shift() -> None:
    method = ChipNet(0.5)
    model = chipped(method, small_vgg().double())
    images, (_, mask) = IMAGES.double(), model.masks()
    first = next(norm for norm in model.network.modules() if isinstance(norm, nn.BatchNorm2d))
    expected = first(images.new_ones(1, 4, 2, 2)) * mask[:4].view(1, 4, 1, 1)
    weights = model.weights()
    found = nn.functional.batch_norm(
        images.new_ones(1, 4, 2, 2), first.running_mean, first.running_var,
        weights["features.1.weight"], weights["features.1.bias"],
    )  # fmt: skip
    torch.testing.assert_close(found, expected)
    alone = model.network(images)
    assert not torch.allclose(model(images), alone)
    with torch.no_grad():
        model.psi.fill_(1e4)
    torch.testing.assert_close(model(images), alone)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9, 1.0])
def test_the_largest_stay_exactly_as_many_as_asked(share: float) -> None:
    model = chipped(ChipNet(share), VGG(widths=(16, 0, 24, 0, 20)))
    kept = torch.cat(list(model.stays(share).values()))
    assert kept.sum() == math.ceil(share * 60 - 1e-9)
    assert model.psi[kept].min() > model.psi[~kept].max() if share < 1 else bool(kept.all())


def test_masks_that_all_round_to_one_are_still_told_apart() -> None:
    model = chipped(ChipNet(0.5), small_vgg())
    with torch.no_grad():
        model.psi.copy_(torch.arange(10.0) + 20)
    model.crispness.fill_(256)
    assert model.masks()[1].unique().numel() == 1
    assert torch.cat(list(model.stays(0.5).values())).tolist() == [False] * 3 + [True] + [False] * 2 + [True] * 4


def test_a_layer_in_no_branch_keeps_its_largest() -> None:
    model = chipped(ChipNet(0.3), small_vgg())
    with torch.no_grad():
        model.psi.copy_(torch.tensor([0.0, 2, 1, 0, 5, 6, 7, 8, 9, 4]))
    first, second = model.stays(0.3).values()
    assert first.tolist() == [False, True, False, False]
    assert second.tolist() == [False, False, False, True, True, False]  # three in all


def test_a_branch_that_loses_a_layer_loses_all_of_it_and_others_come_in() -> None:
    model = chipped(ChipNet(0.5), PreResNet(11))
    with torch.no_grad():
        start = 16  # of the second BatchNorm of the first block
        model.psi[start : start + 16] = -100
    stays = model.stays(0.5)
    assert not any(bool(stays[f"stage1.0.bn{number}.weight"].any()) for number in (1, 2, 3))
    assert sum(int(keep.sum()) for keep in stays.values()) == math.ceil(0.5 * len(model.psi))


def test_a_branch_that_comes_back_does_not_exceed_the_share() -> None:
    model = chipped(ChipNet(0.5), PreResNet(11))
    names = list(model.sizes)
    with torch.no_grad():
        # Of the last block two layers are above everything else, and the third is below.
        start = sum(model.sizes[name] for name in names[: names.index("stage3.0.bn1.weight")])
        model.psi[start : start + 128 + 64] = torch.linspace(50, 60, 192)
        model.psi[start + 192 : start + 256] = torch.linspace(-60, -50, 64)
    for share in (0.2, 0.5, 0.9, 1.0):
        stays = model.stays(share)
        assert sum(int(keep.sum()) for keep in stays.values()) == math.ceil(share * len(model.psi) - 1e-9)
        alive = [bool(stays[f"stage3.0.bn{number}.weight"].any()) for number in (1, 2, 3)]
        assert len(set(alive)) == 1 and alive[0] == (share > 0.5)


@pytest.mark.parametrize("share", [0.7, 0.4, 0.1, 0.02])
@pytest.mark.parametrize("build", [lambda: PreResNet(20), lambda: VGG(widths=(8, 0, 16, 16, 0, 8))], ids=["res", "vgg"])
def test_the_small_network_is_the_masked_one(build: object, share: float) -> None:
    torch.manual_seed(0)
    method = ChipNet(share)
    model = chipped(method, build().double())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = IMAGES.double()
    expected = method.hardened(model).eval()(images)
    small = method.small(model, images)
    assert (small(images) - expected).abs().max() <= 1e-9 * expected.abs().max()
    assert parameters(small) < parameters(model.network)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_silent_branches_leave() -> None:
    method = ChipNet(0.5)
    model = chipped(method, PreResNet(20).double())
    names = list(model.sizes)
    with torch.no_grad():
        for norm in ("stage1.1.bn3.weight", "stage2.0.bn1.weight"):  # with an identity beside it, and a projection
            start = sum(model.sizes[name] for name in names[: names.index(norm)])
            model.psi[start : start + model.sizes[norm]] = -100
    small, images = method.small(model, IMAGES.double()), IMAGES.double()
    expected = method.hardened(model).eval()(images)
    assert (small(images) - expected).abs().max() <= 1e-9 * expected.abs().max()
    left = set(scales(small))
    assert not any(name.startswith(("stage1.1.", "stage2.0.bn")) for name in left) and "stage2.1.bn1.weight" in left


def test_what_stays_is_told_by_site() -> None:
    method = ChipNet(0.4)
    model = chipped(method, PreResNet(20))
    keep = method.keep(model)
    assert set(keep) <= {group.name for group in model.plan.groups} | {reader.name for reader in model.plan.readers}
    small = hg.shrink(model.network, model.plan, {name: vector for name, vector in keep.items() if vector.any()})
    assert parameters(small) < parameters(model.network)


def test_weights_and_masks_learn_and_only_weights_decay() -> None:
    method = ChipNet(0.5, seed=1)
    model = method.attach(small_vgg(), IMAGES).train()
    assert isinstance(model, Chipped)
    groups = method.groups(model)
    groups[1]["lr"] = 0.3  # as far in 60 steps as in the thousands of a real training
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=1.0)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1.0, 0.0]
    companion = method.companion(model, 60)
    start, losses = model.psi.detach().clone(), []
    for step in range(60):
        if step % 3 == 0:
            method.on_epoch(model, step // 3)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(IMAGES), torch.arange(4)) + companion.penalty()
        loss.backward()
        optimizer.step()
        companion.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.equal(model.psi, start)
    assert abs(companion.metrics()["remaining"] - 0.5) < 0.2


def test_the_seed_alone_decides_where_masks_start() -> None:
    one, other, again = (ChipNet(0.5, seed=seed).attach(small_vgg(), IMAGES) for seed in (0, 1, 0))
    assert torch.equal(one.psi, again.psi) and not torch.equal(one.psi, other.psi)
