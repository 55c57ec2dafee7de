"""Gather layers are the full layer with zeros in the weights of all other inputs, or only their channels of a norm."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headgate.layers import Gather, can_gather, gather_, mixed_class
from headgate.layers.gather import chosen

WIDE, PICKED = 6, [0, 2, 5]

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(WIDE, 4), (3, WIDE), 1),
    "linear on tokens": (lambda: nn.Linear(WIDE, 4, bias=False), (2, 5, WIDE), 2),
    "conv1d": (lambda: nn.Conv1d(WIDE, 4, 3), (2, WIDE, 7), 1),
    "conv2d": (lambda: nn.Conv2d(WIDE, 4, 3, padding=1), (2, WIDE, 5, 5), 1),
    "conv2d without batch": (lambda: nn.Conv2d(WIDE, 4, 3), (WIDE, 5, 5), 0),
    "conv3d": (lambda: nn.Conv3d(WIDE, 4, 2), (2, WIDE, 3, 3, 3), 1),
    "batchnorm1d": (lambda: nn.BatchNorm1d(WIDE), (4, WIDE), 1),
    "batchnorm1d on rows": (lambda: nn.BatchNorm1d(WIDE), (4, WIDE, 5), 1),
    "batchnorm2d": (lambda: nn.BatchNorm2d(WIDE, affine=False), (4, WIDE, 3, 3), 1),
    "batchnorm3d": (lambda: nn.BatchNorm3d(WIDE), (2, WIDE, 3, 3, 3), 1),
}


@torch.no_grad()
def narrowed(layer: nn.Module) -> nn.Module:
    small = copy.deepcopy(layer)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        for name in ("weight", "bias", "running_mean", "running_var"):
            if (tensor := getattr(small, name)) is not None:
                tensor.data = tensor.data[PICKED]
        small.num_features = len(PICKED)
    else:
        small.weight.data = small.weight.data[:, PICKED]
    gather_(small, torch.tensor(PICKED), WIDE)
    return small


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("shape", [(2, WIDE, 5, 5), (2, WIDE, 3, 4, 5), (2, WIDE, 1, 1), (1, WIDE, 5, 5)])
def test_channels_stay_where_they_lie_in_memory(shape: tuple[int, ...]) -> None:
    x, picked = torch.randn(shape), torch.tensor(PICKED)
    for memory_format in (torch.contiguous_format, FORMATS[len(shape)]):
        given = x.contiguous(memory_format=memory_format).requires_grad_()
        for dim in (1, 1 - len(shape)):
            found = chosen(given, dim, picked)
            assert torch.equal(found, x[:, PICKED])
            assert found.is_contiguous(memory_format=memory_format)
            (gradient,) = torch.autograd.grad(found.sum(), given)
            assert torch.equal(gradient, torch.zeros_like(x).index_fill(1, picked, 1.0))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_full_layer_on_the_picked_channels(name: str, training: bool) -> None:
    make, shape, dim = LAYERS[name]
    layer, x = make().double().train(training), torch.randn(*shape, dtype=torch.float64)
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
        with torch.no_grad():
            layer.weight[:, [1, 3, 4]] = 0
    elif layer.affine:
        nn.init.uniform_(layer.weight)
    small = narrowed(layer)
    expected: Tensor = layer(x)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        expected = expected.index_select(dim, torch.tensor(PICKED))
    torch.testing.assert_close(small(x), expected, rtol=1e-12, atol=1e-12)
    assert type(small).__name__ == f"Gather{type(layer).__name__}" and isinstance(small, type(layer))
    assert list(small.state_dict()) == list(layer.state_dict())
    assert "picked from 6 channels" in repr(small)
    again = pickle.loads(pickle.dumps(copy.deepcopy(small.eval())))
    assert torch.equal(again(x), small(x))


def test_a_class_of_the_users_own() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layer = Doubled(WIDE, 2)
    small = narrowed(layer)
    x = torch.randn(3, WIDE)
    torch.testing.assert_close(small(x), 2 * (x[:, PICKED] @ layer.weight[:, PICKED].T + layer.bias))
    assert type(small) is mixed_class(Gather, Doubled)


def test_which_layers_can() -> None:
    assert can_gather(nn.Linear(2, 2)) and can_gather(nn.BatchNorm2d(2))
    for other in (
        nn.ReLU(),
        nn.LayerNorm(2),
        nn.ConvTranspose2d(2, 2, 1),
        nn.InstanceNorm2d(2),
        narrowed(nn.Linear(WIDE, 2)),
    ):
        assert not can_gather(other)
    assert issubclass(mixed_class(Gather, nn.Conv2d), Gather)
