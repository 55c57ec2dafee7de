"""`Zeros` stands in for any layer it may: the same shape and dtype, fresh, without parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headgate.layers import Scale, Zeros, can_be_empty, empty_, outputs_of

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 6), (3, 4)),
    "linear on tokens": (lambda: nn.Linear(4, 6), (3, 5, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 4, 11, 12)),
    "conv2d same": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same", dilation=2), (2, 4, 9, 7)),
    "conv2d valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), (2, 4, 9, 7)),
    "conv2d reflected": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 9, 7)),
    "conv2d without batch": (lambda: nn.Conv2d(4, 6, 3), (4, 9, 7)),
    "conv2d in groups": (lambda: nn.Conv2d(4, 8, 2, groups=4), (2, 4, 9, 7)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2, stride=3), (2, 4, 5, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=3, dilation=2), (2, 4, 5)),
    "batchnorm": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "instancenorm": (lambda: nn.InstanceNorm1d(4), (2, 4, 3)),
    "groupnorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    "layernorm": (lambda: nn.LayerNorm(4), (2, 5, 4)),
    "prelu": (lambda: nn.PReLU(4), (2, 4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_shape_of_the_layer_and_nothing_else(name: str) -> None:
    build, shape = LAYERS[name]
    model = nn.Sequential(build().double())
    x = torch.randn(shape, dtype=torch.float64)
    expected = model(x)
    assert can_be_empty(model[0])
    empty_(model, "0", outputs_of(model[0]))
    got = model(x)
    assert isinstance(model[0], Zeros)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert not got.any()
    assert not model.state_dict()
    assert got.data_ptr() != x.data_ptr()
    got.relu_().add_(1.0)  # in-place code may write into it, and the next call is not touched
    assert not model(x).any()


class Own(nn.Linear):
    """A layer of the user's own that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Named(nn.Linear):
    """A layer of the user's own that is a linear layer."""


def test_what_may_not_be_emptied() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert not can_be_empty(hooked)
    assert not can_be_empty(Own(2, 2))
    assert not can_be_empty(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert not can_be_empty(nn.LSTM(2, 2))
    assert not can_be_empty(nn.ReLU())
    assert can_be_empty(Named(2, 2))


def test_the_train_flag_and_the_dtype_are_the_layers() -> None:
    model = nn.Sequential(nn.Linear(2, 3).half().eval())
    empty_(model, "0", 3)
    assert not model[0].training
    assert model[0].zeros.dtype == torch.float16


@pytest.mark.parametrize("dim", [1, -1])
def test_a_scale_multiplies_along_its_axis(dim: int) -> None:
    x = torch.ones(2, 3, 3, dtype=torch.bfloat16)
    got = Scale(torch.tensor([0.0, 1.0, 2.0]), dim)(x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.sum((0, 3 - dim % 3)), torch.tensor([0.0, 6.0, 12.0], dtype=torch.bfloat16))
