"""The fixed split and the normalisation."""

from __future__ import annotations

import pytest
import torch

from headgate_lab.data import cifar, mnist
from headgate_lab.data.images import split


@pytest.mark.parametrize("n", [50_000, 60_000])
def test_the_split_is_fixed_and_disjoint(n: int) -> None:
    train, validation = split(n)
    assert len(validation) == 5_000 and train.dtype == validation.dtype == torch.int64
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(n))
    state = torch.random.get_rng_state()
    assert all(torch.equal(one, other) for one, other in zip(split(n), (train, validation), strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_split_of_cifar_is_the_papers() -> None:
    """RandomState(43).permutation(50000): numpy promises that this stream never changes."""
    train, validation = split()
    assert validation[:5].tolist() == [7396, 29820, 1987, 20095, 32435]
    assert train[:5].tolist() == [3376, 17197, 11892, 26391, 38958]


def test_a_split_of_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match=r"validation=5000 .* the 10 images"):
        split(10)


def test_normalisation_by_hand() -> None:
    images = torch.tensor([[[[255]], [[0]], [[51]]]], dtype=torch.uint8)
    expected = [(1 - 0.4914) / 0.2470, -0.4822 / 0.2435, (0.2 - 0.4465) / 0.2616]
    torch.testing.assert_close(cifar.NORMALISATION(images).flatten(), torch.tensor(expected))
    assert mnist.NORMALISATION(images[:, :1]).item() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-6)
    assert images.flatten().tolist() == [255, 0, 51]
