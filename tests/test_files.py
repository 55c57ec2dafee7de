"""Small models on disk: what is saved comes back, for the network it was saved from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from headgate.errors import ArgumentError, FileError, GateError, RecipeError
from headgate.layers import WriteBack
from tests.note_files import file_contents, forge
from tests.small_nets import Residual, Sizes, Tied, channels_last, compacted, image, same, small_residual, trained


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.safetensors"


class TestRoundTrip:
    @pytest.mark.parametrize("make", [Residual, Sizes])
    def test_the_loaded_model_computes_the_same_bits(self, make: type[nn.Module], path: Path):
        small = compacted(trained(make()), image())
        hg.save(small, path)
        loaded = hg.load(path, make)
        assert type(loaded) is make
        assert repr(loaded) == repr(small)
        assert [*loaded.state_dict()] == [*small.state_dict()]
        assert same(loaded, small, image(3))

    def test_layers_that_write_back_and_emptied_blocks(self, path: Path):
        small = small_residual()
        hg.save(small, path)
        loaded = hg.load(path, Residual)
        assert isinstance(loaded.blocks[0].b, WriteBack) and isinstance(loaded.blocks[1], nn.Identity)
        assert torch.equal(loaded.scale, small.scale)
        assert same(loaded, small, image(3))

    def test_a_model_that_was_cut_twice(self, path: Path):
        twice = compacted(small_residual(), image(), floor=1)
        hg.save(twice, path)
        assert same(hg.load(path, Residual), twice, image(3))

    def test_loaded_models_are_saved_trained_and_cut_again(self, path: Path):
        hg.save(small_residual(), path)
        loaded = hg.load(path, Residual)
        loaded(image()).sum().backward()
        assert loaded.blocks[0].b.weight.grad is not None
        twice = compacted(loaded, image(), floor=1)
        hg.save(twice, path)
        assert same(hg.load(path, Residual), twice, image(3))

    def test_tied_tensors_are_saved_once_and_stay_tied(self, path: Path):
        small = compacted(Tied(), torch.randn(2, 4))
        hg.save(small, path)
        note, weights = file_contents(path)
        assert note["ties"] == {"second.weight": "first.weight"} and "second.weight" not in weights
        loaded = hg.load(path, Tied)
        assert loaded.first.weight is loaded.second.weight
        assert same(loaded, small, torch.randn(3, 4))

    def test_strided_and_shared_memory(self, path: Path):
        small = channels_last(small_residual())
        flat = torch.randn(14)
        small.stem.bias.data, small.head.bias.data = flat[:7], flat[7:10]
        hg.save(small, path)
        loaded = hg.load(path, Residual).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in small.state_dict().items())
        strided = hg.load(path, lambda: channels_last(Residual()))
        assert strided.stem.weight.is_contiguous(memory_format=torch.channels_last)

    def test_wrapped_models(self, path: Path):
        hg.save(nn.DataParallel(small_residual()), path)
        assert type(hg.load(path, Residual)) is Residual

    @pytest.mark.parametrize("saved", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("built", [torch.float64, torch.float16])
    def test_dtypes_are_the_saved_ones(self, saved: torch.dtype, built: torch.dtype, path: Path):
        small = small_residual().to(saved)
        hg.save(small, path)
        loaded = hg.load(path, lambda: Residual().to(built))
        assert {tensor.dtype for tensor in (*loaded.parameters(), loaded.scale)} == {saved}
        assert loaded.blocks[0].n.num_batches_tracked.dtype == torch.int64
        assert loaded.eval()(image().to(saved)).dtype == saved

    def test_train_flags_are_the_saved_ones_and_requires_grad_the_factorys(self, path: Path):
        small = small_residual().train()
        small.blocks[0].n.eval()
        hg.save(small, path)

        def factory() -> nn.Module:
            model = Residual().eval()
            model.stem.weight.requires_grad_(False)
            return model

        loaded = hg.load(path, factory)
        flags = {name: module.training for name, module in loaded.named_modules()}
        assert flags == {name: module.training for name, module in small.named_modules()}
        assert not loaded.stem.weight.requires_grad and loaded.head.weight.requires_grad

    def test_the_file_is_smaller_and_other_programs_read_it(self, path: Path):
        small = small_residual()
        hg.save(small, path)
        _, weights = file_contents(path)
        assert set(weights) == set(small.state_dict())
        assert path.stat().st_size < sum(t.nbytes for t in Residual().state_dict().values()) + 8000


class TestWriting:
    def test_it_replaces_in_one_step_and_leaves_nothing_else(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        path.write_bytes(b"old")
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(FileError, match="disk full"):
            hg.save(small_residual(), path)
        assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
        monkeypatch.undo()
        hg.save(small_residual(), path)
        assert list(path.parent.iterdir()) == [path]

    def test_a_folder_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(FileError, match="cannot write"):
            hg.save(small_residual(), tmp_path / "no" / "small.safetensors")

    def test_models_that_cannot_be_saved(self, path: Path):
        dense, gated, changed, meta = Residual(), Residual(), small_residual(), small_residual().to("meta")
        hg.insert_gates_(gated, image())
        changed.head = nn.Linear(changed.head.in_features, 9)
        for model, error, words in [
            (dense, RecipeError, "carries no recipe"),
            (gated, GateError, "still has gates"),
            (changed, RecipeError, r"was changed after .*head\.weight has shape \[9, 7\]"),
            (meta, RecipeError, "only plain tensors"),
        ]:
            with pytest.raises(error, match=words):
                hg.save(model, path)
        assert not path.exists()

    def test_state_that_is_no_tensor_is_refused_by_name(self, path: Path):
        class Extra(nn.Linear):
            def get_extra_state(self) -> Any:
                return {"anything": 1}

        model = nn.Sequential(Extra(3, 8), nn.ReLU(), nn.Linear(8, 2))
        small = compacted(model, torch.randn(2, 3))
        with pytest.raises(RecipeError, match=r"0\._extra_state in the state dict"):
            hg.save(small, path)


class TestWrongFactory:
    @pytest.mark.parametrize(
        ("factory", "error", "words"),
        [
            (lambda: Residual(width=10), RecipeError, r"stem\.weight has shape \[10, 2, 3, 3\] instead of"),
            (lambda: Residual(classes=4), RecipeError, r"head\.weight has shape \[4, 8\] instead of"),
            (lambda: nn.Linear(2, 2), RecipeError, r"stem\.weight .* is missing"),
            (small_residual, RecipeError, r"stem\.weight has shape \[7, "),
            (lambda: Residual().to("meta"), RecipeError, "meta device"),
            (lambda: "Residual", ArgumentError, "must return a module, got str"),
        ],
    )
    def test_it_is_refused(self, factory: Callable, error: type[Exception], words: str, path: Path):
        hg.save(small_residual(), path)
        with pytest.raises(error, match=words):
            hg.load(path, factory)

    def test_a_gated_factory(self, path: Path):
        hg.save(small_residual(), path)
        model = Residual()
        hg.insert_gates_(model, image())
        with pytest.raises(GateError, match="must build the plain network"):
            hg.load(path, lambda: model)

    def test_other_ties(self, path: Path):
        hg.save(compacted(Tied(), torch.randn(2, 4)), path)

        def untied() -> nn.Module:
            model = Tied()
            model.second.weight = nn.Parameter(model.first.weight.clone())
            return model

        with pytest.raises(RecipeError, match=r"second\.weight is tied to first\.weight in the file, to None"):
            hg.load(path, untied)

    def test_a_refused_file_leaves_the_factorys_model_as_it_was(self, path: Path):
        hg.save(small_residual(), path)
        note, weights = file_contents(path)
        model = Residual()
        before = copy.deepcopy(model.state_dict())
        for changed in (
            {**weights, "stem.bias": torch.zeros(9)},
            {k: v for k, v in weights.items() if k != "stem.bias"},
        ):
            forge(path, note, changed)
            with pytest.raises(RecipeError, match=r"stem\.bias"):
                hg.load(path, lambda: model)
        assert not hasattr(model, "headgate_recipe")
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
