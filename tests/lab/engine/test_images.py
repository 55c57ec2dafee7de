"""Batches: every image once an epoch, moved and mirrored as asked, the same again from the same state."""

from __future__ import annotations

import torch

from headgate_lab.data.images import Normalisation
from headgate_lab.engine.images import Batches, Resident, cropped, flipped

AS_IS = Normalisation((0.0,), (1.0,))


def numbered(count: int) -> Resident:
    """Images of one pixel, whose value is their label."""
    values = torch.arange(count)
    return Resident(values.to(torch.uint8).view(count, 1, 1, 1), values, AS_IS)


def batches(count: int, size: int, seed: int = 0) -> Batches:
    return Batches(numbered(count), size, seed, pad=0, flip=False, dtype=torch.float32)


def an_epoch(source: Batches) -> list[int]:
    source.shuffle_()
    return [label for _ in range(source.steps) for label in source.next()[1].tolist()]


def test_an_epoch_has_every_image_once() -> None:
    assert sorted(an_epoch(batches(12, 4))) == list(range(12))


def test_the_last_batch_is_filled_up_from_the_beginning() -> None:
    labels = an_epoch(batches(10, 4))
    assert sorted(labels[:10]) == list(range(10))
    assert labels[10:] == labels[:2]


def test_images_and_labels_stay_together() -> None:
    source = batches(10, 4)
    source.shuffle_()
    images, labels = source.next()
    assert torch.equal((images.flatten() * 255).round().long(), labels)


def test_every_epoch_has_an_order_of_its_own_and_every_seed_too() -> None:
    source = batches(50, 10)
    first, second = an_epoch(source), an_epoch(source)
    assert first != second
    assert an_epoch(batches(50, 10, seed=1)) != first
    assert an_epoch(batches(50, 10)) == first


def test_state_goes_on() -> None:
    source = batches(50, 10)
    an_epoch(source)
    state = source.state_dict()
    expected = an_epoch(source)
    fresh = batches(50, 10)
    fresh.load_state_dict(state)
    assert an_epoch(fresh) == expected


def test_a_crop_is_the_image_moved_with_black_coming_in() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    around = torch.nn.functional.pad(image, (1, 1, 1, 1))
    possible = {tuple(around[0, 0, i : i + 3, j : j + 3].flatten().tolist()) for i in range(3) for j in range(3)}
    many = cropped(image.expand(500, 2, 3, 3), 1, torch.Generator().manual_seed(0))
    assert {tuple(one.flatten().tolist()) for one in many[:, 0]} == possible
    assert torch.equal(many[:, 0], many[:, 1])


def test_a_flip_mirrors_about_half_of_the_images() -> None:
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 1, 2, 2)
    many = flipped(image.expand(400, 1, 2, 2), torch.Generator().manual_seed(0))
    seen = [tuple(one.flatten().tolist()) for one in many]
    assert set(seen) == {(1, 2, 3, 4), (2, 1, 4, 3)}
    assert 150 < seen.count((1, 2, 3, 4)) < 250


def test_normalised_images_are_channels_last() -> None:
    data = Resident(
        torch.full((2, 3, 4, 4), 255, dtype=torch.uint8), torch.zeros(2), Normalisation((0.5,) * 3, (0.25,) * 3)
    )
    images = data.normalised(data.images, torch.bfloat16)
    assert images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.unique().tolist() == [2.0]
