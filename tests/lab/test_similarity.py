"""CKA by its laws and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headgate_lab.similarity import KERNELS, Kernel, cka, cka_matrix, linear, rbf

both = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def features(seed: int, samples: int = 20, count: int = 6) -> Tensor:
    return torch.randn(samples, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@both
def test_features_are_most_like_themselves(kernel: Kernel) -> None:
    x, y = features(0), features(1)
    assert cka(x, x, kernel) == pytest.approx(1, abs=1e-12)
    assert 0 < cka(x, y, kernel) < 0.9


@both
def test_order_of_the_two_does_not_matter(kernel: Kernel) -> None:
    x, y = features(0), features(1, count=3)
    assert cka(x, y, kernel) == pytest.approx(cka(y, x, kernel).item(), abs=1e-12)


@both
def test_rotation_reflection_scale_and_shift_change_nothing(kernel: Kernel) -> None:
    x, y = features(0), features(1)
    rotation = torch.linalg.qr(features(2, 6)).Q
    reflection = torch.eye(6, dtype=torch.float64)[[1, 0, 2, 3, 4, 5]]
    expected = cka(x, y, kernel).item()
    for changed in (x @ rotation, x @ reflection, 1e3 * x, -x, x + 7.0):
        assert cka(changed, y, kernel) == pytest.approx(expected, abs=1e-10)


@both
def test_stretching_one_feature_does_change_it(kernel: Kernel) -> None:
    x, y = features(0), features(1)
    stretched = x * torch.tensor([9.0, 1, 1, 1, 1, 1])
    assert abs(cka(stretched, y, kernel) - cka(x, y, kernel)) > 1e-3


def test_linear_by_hand() -> None:
    x = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -2.0], [0.0, 2.0]])
    y = torch.tensor([[-1.0], [1.0], [0.0], [0.0]])
    # ‖YᵀX‖² = (2, 0)² = 4, ‖XᵀX‖ = √(2² + 8²), ‖YᵀY‖ = 2.
    assert cka(x, y) == pytest.approx(4 / (math.sqrt(68) * 2))
    # What is not correlated at all is not alike at all.
    assert cka(x, torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])) == pytest.approx(0, abs=1e-7)


def test_rbf_by_hand() -> None:
    x, y = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.0], [3.0], [1.0]])
    # Squared distances 1, 4, 9 with the median 4.
    near, middle, far = (math.exp(-d / 8) for d in (1, 4, 9))
    torch.testing.assert_close(rbf(x), torch.tensor([[1, near, far], [near, 1, middle], [far, middle, 1]]))
    k, flipped = rbf(x).double(), rbf(y).double()
    centre = torch.eye(3, dtype=torch.float64) - 1 / 3
    hsic = (centre @ k @ centre * (centre @ flipped @ centre)).sum()
    own = (centre @ k @ centre).square().sum()  # y is x with two samples exchanged: the same norm
    assert cka(x, y, rbf) == pytest.approx((hsic / own).item(), abs=1e-5)


@both
def test_all_pairs_of_channels(kernel: Kernel) -> None:
    maps = torch.randn(12, 4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    maps[:, 3] = -2 * maps[:, 1]
    found = cka_matrix(maps, kernel)
    assert found.shape == (4, 4)
    for i in range(4):
        for j in range(4):
            alone = cka(maps[:, i].flatten(1), maps[:, j].flatten(1), kernel).item()
            assert found[i, j] == pytest.approx(alone, abs=1e-12)
    assert found[1, 3] == pytest.approx(1, abs=1e-12) and found[0, 1] < 0.95


@both
def test_a_channel_that_never_changes_is_like_nothing(kernel: Kernel) -> None:
    assert cka(torch.ones(4, 2), features(0, 4).float(), kernel).isnan()


def test_linear_is_the_default() -> None:
    x, y = features(0), features(1)
    assert cka(x, y) == cka(x, y, linear) != cka(x, y, rbf)
