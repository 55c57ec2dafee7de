"""Recipes: what was removed, as data that can be applied again, joined, copied and written down."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headgate as hg
from headgate.errors import RecipeError
from headgate.layers import WriteBack
from headgate.surgery.apply import apply_recipe_
from headgate.surgery.recipe import (
    SIZES,
    Cut,
    Recipe,
    Resize,
    count,
    fingerprint,
    indices_of,
    named_tensors,
    ranges_of,
    recipe_on,
)
from tests.small_nets import Residual, Sizes, Tied, channels_last, compacted, image, small_residual, trained


def recipe(model: nn.Module) -> Recipe:
    found = recipe_on(model)
    assert found is not None
    return found


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


def sizes(model: nn.Module) -> dict[str, int]:
    return {f"{path}.{name}": vars(m)[name] for path, m in model.named_modules() for name in SIZES & set(vars(m))}


class TestRanges:
    @given(st.sets(st.integers(0, 40), min_size=1))
    def test_indices_survive(self, chosen: set[int]):
        indices = torch.tensor(sorted(chosen))
        assert torch.equal(indices_of(ranges_of(indices)), indices)
        assert count(ranges_of(indices)) == len(chosen)

    def test_neighbours_are_one_range(self):
        assert ranges_of(torch.tensor([2, 3, 4, 7, 9, 10])) == ((2, 5), (7, 8), (9, 11))
        assert ranges_of(torch.tensor([], dtype=torch.int64)) == ()


class TestWhatIsOnTheSmallModel:
    def test_the_numbers_of_a_chain_by_hand(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        plan = hg.find_groups(model, torch.randn(1, 3))
        small = hg.shrink(model, plan, {"0": torch.tensor([True, False, True, True])})
        kept = ((0, 1), (2, 4))
        found = recipe(small)
        assert dict(found.dense) == {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,)}
        assert set(found.cuts) == {Cut("0.weight", 0, kept), Cut("0.bias", 0, kept), Cut("2.weight", 1, kept)}
        assert set(found.sizes) == {Resize("0", "out_features", 3), Resize("2", "in_features", 3)}
        assert found.writes == () and found.gone == ()

    @pytest.mark.parametrize("make", [Residual, Sizes])
    def test_it_makes_the_same_of_a_fresh_model(self, make: type[nn.Module]):
        small, again = compacted(trained(make()), image()), make()
        apply_recipe_(again, recipe(small))
        assert shapes(again) == shapes(small)
        assert sizes(again) == sizes(small)
        assert repr(again) == repr(small)
        assert recipe(again) == recipe(small)
        again.load_state_dict(small.state_dict())
        x = image(3)
        torch.testing.assert_close(again.eval()(x), small.eval()(x), rtol=0, atol=0)

    def test_it_holds_writes_and_emptied_blocks_and_passing_buffers(self):
        small = small_residual()
        found = recipe(small)
        assert found.gone == ("blocks.1",)
        assert isinstance(small.blocks[0].b, WriteBack) and isinstance(small.blocks[1], nn.Identity)
        assert {"blocks.0.b", "blocks.2.b"} <= {write.path for write in found.writes}
        assert [cut.axis for cut in found.cuts if cut.name == "scale"] == [1]
        assert dict(found.dense)["scale"] == (1, 8, 1, 1)
        assert small.scale.shape[1] == small.stem.out_channels < 8

    def test_nothing_removed_is_a_recipe_too(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        small = hg.shrink(model, hg.find_groups(model, torch.randn(1, 3)), {})
        assert recipe(small).cuts == () and recipe(small).sizes == ()
        assert recipe_on(model) is None

    def test_ties_stay_ties(self):
        small = compacted(Tied(), torch.randn(2, 4))
        names = {cut.name for cut in recipe(small).cuts}
        assert {"first.weight", "second.weight"} <= names
        assert small.first.weight is small.second.weight
        again = Tied()
        apply_recipe_(again, recipe(small))
        assert again.first.weight is again.second.weight and again.first.weight.shape == small.first.weight.shape

    def test_an_attribute_that_is_the_same_tensor_stays_it(self):
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        vars(model[1])["statistics"] = model[1].running_mean
        small = hg.shrink(model, hg.find_groups(model, torch.randn(4, 3)), {"0": torch.arange(8) < 5})
        assert small[1].statistics is small[1].running_mean and len(small[1].statistics) == 5

    def test_a_size_attribute_that_was_wrong_before_is_left_alone(self):
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        model[0].in_features, model[0].out_features = 1, 2
        small = hg.shrink(model, hg.find_groups(model, torch.randn(2, 3)), {"0": torch.arange(8) < 5})
        assert recipe(small).sizes == (Resize("2", "in_features", 5),)

    def test_copies_share_it_and_pickles_keep_it(self):
        small = small_residual()
        assert copy.deepcopy(small).headgate_recipe is small.headgate_recipe
        with pytest.raises(AttributeError):
            small.headgate_recipe.cuts = ()
        buffer = io.BytesIO()
        torch.save(recipe(small), buffer)
        buffer.seek(0)
        assert torch.load(buffer, weights_only=False) == recipe(small)

    def test_it_ends_with_the_model_it_describes(self):
        small = small_residual()
        small.head = nn.Linear(small.head.in_features, 7)
        assert recipe_on(small) is None

    def test_plain_tensor_attributes_are_cut_too(self):
        class Plain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.shift = nn.Parameter(torch.randn(4, 3)), torch.arange(4.0)

        model = Plain()
        kept = ((1, 3),)
        both = (Cut("weight", 0, kept), Cut("shift", 0, kept))
        apply_recipe_(model, Recipe(fingerprint(model, ["shift"]), both))
        assert model.weight.shape == (2, 3) and torch.equal(model.shift, torch.tensor([1.0, 2.0]))


class TestTwice:
    def test_a_chain_cut_twice_has_one_recipe_from_the_beginning(self):
        model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
        x = torch.randn(2, 3)
        once = hg.shrink(model, hg.find_groups(model, x), {"0": torch.tensor([True, False, True, True, False, True])})
        twice = hg.shrink(once, hg.find_groups(once, x), {"0": torch.tensor([False, True, True, False])})
        assert Cut("0.weight", 0, ((2, 4),)) in recipe(twice).cuts
        assert dict(recipe(twice).dense)["0.weight"] == (6, 3)
        again = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
        again.load_state_dict(model.state_dict())
        apply_recipe_(again, recipe(twice))
        assert torch.equal(again(x), twice(x))

    def test_gated_and_compacted_twice_with_layers_that_write_back(self):
        once = small_residual()
        written = {path: module.width for path, module in once.named_modules() if isinstance(module, WriteBack)}
        twice = compacted(copy.deepcopy(once), image(), floor=1)
        assert sum(p.numel() for p in twice.parameters()) < sum(p.numel() for p in once.parameters())
        assert recipe(twice).dense[:3] == recipe(once).dense[:3]
        assert written == {path: m.width for path, m in twice.named_modules() if isinstance(m, WriteBack)}
        again = Residual()
        apply_recipe_(again, recipe(twice))
        again.load_state_dict(twice.state_dict())
        x = image(3)
        assert torch.equal(again.eval()(x), twice.eval()(x))

    def test_a_buffer_cut_only_the_second_time_is_known_in_its_first_size(self):
        model = nn.Linear(3, 6)
        model.register_buffer("extra", torch.arange(6.0), persistent=False)
        apply_recipe_(model, Recipe(fingerprint(model), (Cut("weight", 1, ((0, 2),)),)))
        apply_recipe_(model, Recipe(fingerprint(model, ["extra"]), (Cut("extra", 0, ((4, 6),)),)))
        assert dict(recipe(model).dense)["extra"] == (6,)

    def test_what_is_written_back_cannot_be_cut_again(self):
        small = small_residual()
        before = shapes(small)
        rows = small.blocks[0].b.out_channels
        cuts = (Cut("blocks.0.b.weight", 0, ((0, rows - 1),)), Cut("blocks.0.b.bias", 0, ((0, rows - 1),)))
        with pytest.raises(RecipeError, match=r"blocks\.0\.b: its outputs are written back"):
            apply_recipe_(small, Recipe(fingerprint(small), cuts))
        assert shapes(small) == before

    def test_a_block_in_a_block_that_is_gone_is_gone(self):
        model = nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU()), nn.ReLU())
        apply_recipe_(model, Recipe((), gone=("0.1",)))
        apply_recipe_(model, Recipe((), gone=("0",)))
        assert recipe(model).gone == ("0",)


def test_the_memory_format_and_requires_grad_survive():
    model = channels_last(nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)))
    model[0].weight.requires_grad_(False)
    keep: dict[str, Tensor] = {"0": torch.tensor([True, False, True, True, True, False])}
    small = hg.shrink(model, hg.find_groups(model, torch.randn(1, 2, 8, 8)), keep)
    assert small[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert not small[0].weight.requires_grad and small[2].weight.requires_grad


def test_the_memory_format_of_volumes_survives():
    model = nn.Sequential(nn.Conv3d(2, 6, 3), nn.ReLU(), nn.Conv3d(6, 4, 3))
    model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    keep = {"0": torch.tensor([True, False, True, True, True, False])}
    small = hg.shrink(model, hg.find_groups(model, torch.randn(1, 2, 8, 8, 8)), keep)
    assert all(small[n].weight.is_contiguous(memory_format=torch.channels_last_3d) for n in (0, 2))
    assert small[2].weight.shape[1] == 4
