"""WriteBack layers are the full layer with zeros in all other places, for every class of layer and any places."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate import layers
from headgate.layers import Gather, WriteBack, can_write_back, gather_, mixed_class, write_back_, written_back
from tests.small_nets import small_residual

WIDTH = 6
PLACES = {"block at the start": [0, 1, 2], "block inside": [2, 3], "block at the end": [4, 5], "scattered": [0, 2, 5]}


def batch(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "linear": (lambda: nn.Linear(4, WIDTH), lambda: batch(3, 4), 1),
    "linear without batch": (lambda: nn.Linear(4, WIDTH), lambda: batch(4), 0),
    "linear on tokens": (lambda: nn.Linear(4, WIDTH), lambda: batch(2, 5, 4), 2),
    "linear without bias": (lambda: nn.Linear(4, WIDTH, bias=False), lambda: batch(2, 5, 3, 4), 3),
    "conv1d": (lambda: nn.Conv1d(4, WIDTH, 3), lambda: batch(2, 4, 7), 1),
    "conv2d": (lambda: nn.Conv2d(4, WIDTH, 3, padding=1, stride=2), lambda: batch(2, 4, 6, 6), 1),
    "conv2d without batch": (lambda: nn.Conv2d(4, WIDTH, 3), lambda: batch(4, 6, 6), 0),
    "conv1d without batch": (lambda: nn.Conv1d(4, WIDTH, 3), lambda: batch(4, 7), 0),
    "conv3d": (lambda: nn.Conv3d(4, WIDTH, 2), lambda: batch(2, 4, 3, 3, 3), 1),
    "batchnorm1d": (lambda: nn.BatchNorm1d(WIDTH), lambda: batch(4, WIDTH), 1),
    "batchnorm1d on rows": (lambda: nn.BatchNorm1d(WIDTH), lambda: batch(4, WIDTH, 5), 1),
    "batchnorm2d": (lambda: nn.BatchNorm2d(WIDTH), lambda: batch(4, WIDTH, 3, 3), 1),
    "batchnorm3d": (lambda: nn.BatchNorm3d(WIDTH), lambda: batch(2, WIDTH, 3, 3, 3), 1),
    "instancenorm1d": (lambda: nn.InstanceNorm1d(WIDTH, affine=True), lambda: batch(2, WIDTH, 5), 1),
    "instancenorm2d without batch": (lambda: nn.InstanceNorm2d(WIDTH, affine=True), lambda: batch(WIDTH, 3, 3), 0),
    "instancenorm2d": (lambda: nn.InstanceNorm2d(WIDTH, affine=True), lambda: batch(2, WIDTH, 3, 3), 1),
    "instancenorm3d": (lambda: nn.InstanceNorm3d(WIDTH, affine=True), lambda: batch(2, WIDTH, 3, 3, 3), 1),
}


def narrowed(full: nn.Module, places: Tensor) -> nn.Module:
    """The rows at `places` alone, written back."""
    small = copy.deepcopy(full)
    for name, tensor in [*small.named_parameters(), *small.named_buffers()]:
        if tensor.dim():
            table = small._parameters if name in small._parameters else small._buffers
            cut = tensor.detach()[places]
            table[name] = nn.Parameter(cut) if name in small._parameters else cut
    for name in ("out_features", "out_channels", "num_features"):
        if hasattr(small, name):
            setattr(small, name, len(places))
    write_back_(small, places, WIDTH)
    return small


@pytest.mark.parametrize("chosen", PLACES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_equal_to_the_full_layer_with_zeros(name: str, chosen: str, training: bool):
    build, example, dim = LAYERS[name]
    full, x, places = build().double().train(training), example(), torch.tensor(PLACES[chosen])
    with torch.no_grad():
        for tensor in [*full.parameters(), *full.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    small = narrowed(full, places)
    given = x.index_select(dim, places) if "norm" in name else x
    given.requires_grad_()
    before = given.detach().clone()
    got, all_of_it = small(given), full(x)
    mask = torch.zeros(WIDTH, dtype=torch.float64).index_fill(0, places, 1.0)
    shape = [1] * all_of_it.dim()
    shape[dim] = WIDTH
    assert torch.allclose(got, all_of_it * mask.view(shape), rtol=1e-12, atol=1e-12)
    assert torch.equal(given, before) and got.data_ptr() != given.data_ptr()
    got.square().sum().backward()
    (all_of_it * mask.view(shape)).square().sum().backward()
    for one, other in zip(small.parameters(), full.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad[places], rtol=1e-10, atol=1e-12)
    for one, other in zip(small.buffers(), full.buffers(), strict=False):
        if one is not small.places and one.dim():
            assert torch.allclose(one, other[places])


@pytest.mark.parametrize("name", LAYERS)
def test_names_classes_and_words(name: str):
    build, _, _ = LAYERS[name]
    full = build().double()
    small = narrowed(full, torch.tensor([1, 4]))
    assert isinstance(small, WriteBack) and isinstance(small, type(full))
    assert type(small) is getattr(layers, type(small).__name__) and type(small).__doc__
    assert list(small.state_dict()) == list(full.state_dict()), "places are not part of the state"
    assert f"written into {WIDTH} channels" in repr(small)
    assert can_write_back(full) and not can_write_back(small)


def test_what_cannot_write_back():
    assert not can_write_back(nn.ReLU()) and not can_write_back(nn.LayerNorm(4)) and not can_write_back(nn.Sequential())


class Mine(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_class_of_the_users_own():
    full, x = Mine(4, WIDTH, 3).double(), batch(2, 4, 6, 6)
    small = narrowed(full, torch.tensor([0, 5]))
    assert isinstance(small, Mine) and type(small) is mixed_class(WriteBack, Mine)
    assert torch.allclose(small(x)[:, [0, 5]], full(x)[:, [0, 5]]) and not small(x)[:, 1:5].any()
    assert mixed_class(WriteBack, Mine).__name__ == "WriteBackMine"


def test_the_output_is_fresh_even_where_nothing_is_added():
    narrow = batch(2, WIDTH, 3)
    for first in (0, None):
        wide = written_back(narrow, torch.arange(WIDTH), WIDTH, 1, first)
        assert torch.equal(wide, narrow)
        wide += 1
        assert not torch.equal(wide, narrow)


def test_memory_format_and_moves():
    small = narrowed(nn.Conv2d(4, WIDTH, 3).double(), torch.tensor([0, 2, 5]))
    x = batch(2, 4, 6, 6)
    expected = small(x)
    small.float().half().double()
    assert small.places.dtype == torch.int64 and small(x).shape == expected.shape
    assert copy.deepcopy(small)(x).equal(small(x))


def test_a_compacted_model_is_saved_whole_and_read_again():
    """torch.save of a whole module is pickle: the layers are found again under their own names."""
    small, x = small_residual().eval(), torch.randn(2, 2, 6, 6)
    assert any(isinstance(module, WriteBack) for module in small.modules())
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert type(other) is type(small) and torch.equal(other(x), small(x))
    twin = copy.deepcopy(small)
    twin.load_state_dict(small.state_dict(), strict=True)


class Picky(nn.Linear):
    pass


@pytest.mark.parametrize("layer", [nn.Linear(WIDTH, WIDTH), Picky(WIDTH, WIDTH)], ids=lambda one: type(one).__name__)
def test_a_class_made_on_the_spot_is_pickled_and_copied(layer: nn.Module):
    """One that picks and writes back, for instance: it cannot be found anywhere."""
    places, x = torch.tensor([0, 2, 5]), torch.randn(4, WIDTH)
    small = copy.deepcopy(layer)
    small.weight = nn.Parameter(layer.weight.detach()[places][:, places])
    small.bias = nn.Parameter(layer.bias.detach()[places])
    gather_(small, places, WIDTH)
    write_back_(small, places, WIDTH)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for other in (pickle.loads(pickle.dumps(small, protocol)), copy.deepcopy(small), copy.copy(small)):
            assert type(other) is type(small) is mixed_class(WriteBack, mixed_class(Gather, type(layer)))
            assert torch.equal(other(x), small(x)) and list(other.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_a_compacted_model_is_exported(strict: bool):
    small, x = small_residual().eval(), torch.randn(2, 2, 6, 6)
    with warnings.catch_warnings(action="error"):
        program = torch.export.export(small, (x,), strict=strict)
    assert torch.allclose(program.module()(x), small(x), atol=1e-6)


def test_a_compacted_model_is_compiled():
    small, x = small_residual(), torch.randn(2, 2, 6, 6)
    torch.compiler.reset()
    compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
    twin = copy.deepcopy(small)
    compiled(x).sum().backward()
    twin(x).sum().backward()
    for one, other in zip(small.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5)


def test_a_narrow_layer_can_be_gated_before_but_not_written_back_twice():
    small, x = small_residual().eval(), torch.randn(2, 2, 6, 6)
    found = hg.insert_gates_(small, x, floor=1)
    assert not any(name.endswith(":write") for name in found)


@pytest.mark.parametrize(
    "name", ["WriteBackLinear", "WriteBackBatchNorm2d", "GatherConv2d", "Scale", "Zeros", "Window"]
)
def test_models_that_were_pickled_by_the_old_path_find_their_classes(name: str):
    assert pickle.loads(f"cheadgate.layers\n{name}\n.".encode()).__name__ == name
