"""Files that are damaged, foreign or hostile: an error of ours, and nothing is executed or half-applied."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import headgate as hg
from headgate.errors import FileError, HeadgateError, RecipeError
from tests.note_files import file_contents, forge
from tests.small_nets import Residual, same, small_residual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.safetensors"


class TestBadFiles:
    def test_not_there(self, tmp_path: Path):
        with pytest.raises(FileError, match="cannot read"):
            hg.load(tmp_path / "nothing", Residual)
        with pytest.raises(HeadgateError):
            hg.load(tmp_path, Residual)

    def test_other_files(self, path: Path):
        path.write_bytes(b"")
        with pytest.raises(RecipeError, match="damaged or no safetensors"):
            hg.load(path, Residual)
        torch.save({"weight": torch.ones(2)}, path)
        with pytest.raises(RecipeError, match="damaged or no safetensors"):
            hg.load(path, Residual)
        save_file({"weight": torch.ones(2)}, path)
        with pytest.raises(RecipeError, match="holds no recipe"):
            hg.load(path, Residual)

    def test_a_newer_format_says_so(self, path: Path):
        hg.save(small_residual(), path)
        _, weights = file_contents(path)
        forge(path, {"version": 2, "whatever": []}, weights)
        with pytest.raises(RecipeError, match="format 2, and this Headgate reads up to 1"):
            hg.load(path, Residual)

    @pytest.mark.parametrize(
        "text",
        [
            "", "{", "null", "[]", "1", '{"version": 1}', '{"version": true}', '{"version": 0}', '{"version": 1e999}',
            '{"version": NaN}', '{"version": ' + "9" * 5000 + "}", "[" * 100_000, '{"version": ' * 50_000,
            '{"version": 1, "recipe": {"__class__": 1}, "ties": {}, "training": true, "unlike": [], "buffers": {}}',
        ],
        ids=range(14),
    )  # fmt: skip
    def test_json_that_is_no_note(self, text: str, path: Path):
        hg.save(small_residual(), path)
        _, weights = file_contents(path)
        forge(path, text, weights)
        with pytest.raises(RecipeError) as caught:
            hg.load(path, Residual)
        assert len(str(caught.value)) < 1000

    HOSTILE: tuple[tuple[tuple[str, ...], Any], ...] = (
        (("recipe", "cuts", "stem.weight", "0"), [0, 2**60]),
        (("recipe", "cuts", "stem.weight", "0"), [5, 2]),
        (("recipe", "cuts", "stem.weight", "0"), [-2, 2]),
        (("recipe", "cuts", "stem.weight", "0"), [0, 1] * 100_000),
        (("recipe", "cuts", "stem.weight", "00"), [0, 1]),
        (("recipe", "cuts", "stem.weight", "-1"), [0, 1]),
        (("recipe", "cuts", "__init__.__globals__"), {"0": [0, 1]}),
        (("recipe", "cuts", "stem.weight"), {"0": [0, 3]}),
        (("recipe", "dense", "stem.weight"), [2**60, 2**60, 3, 3]),
        (("recipe", "dense", "bomb"), [2**40]),
        (("recipe", "sizes", "stem"), {"__class__": 1}),
        (("recipe", "sizes", "stem"), {"forward": 1}),
        (("recipe", "sizes", "stem"), {"out_channels": 2**50}),
        (("recipe", "sizes", "stem.__class__"), {"out_channels": 1}),
        (("recipe", "writes", "blocks.0.b", "width"), 2**50),
        (("recipe", "writes", "blocks.0.b", "channel_dim"), 1),
        (("recipe", "writes", "blocks.0.b", "places"), [0, 2**50]),
        (("recipe", "writes", "head.__init__"), {"places": [0, 1], "width": 1}),
        (("recipe", "gone"), ["", "blocks"]),
        (("recipe", "gone"), ["__class__"]),
        (("ties",), {"stem.bias": "head.bias"}),
        (("ties",), {"a": "b"}),
        (("unlike",), ["__class__"]),
        (("buffers",), {"scale": "torch.load"}),
        (("training",), 1),
        (("unknown",), 1),
    )

    @pytest.mark.parametrize(("keys", "value"), HOSTILE, ids=lambda part: str(part)[:60])
    def test_hostile_notes(self, keys: tuple[str, ...], value: Any, path: Path):
        """Well-formed files, right checksum, one malicious entry: nothing large is allocated, nothing is applied."""
        hg.save(small_residual(), path)
        note, weights = file_contents(path)
        inner = note
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        forge(path, note, weights)
        model = Residual()
        with pytest.raises(RecipeError):
            hg.load(path, lambda: model)
        assert repr(model) == repr(Residual()) and not hasattr(model, "headgate_recipe")

    def test_weights_of_another_kind(self, path: Path):
        hg.save(small_residual(), path)
        note, weights = file_contents(path)
        forge(path, note, {**weights, "stem.bias": weights["stem.bias"].long()})
        with pytest.raises(RecipeError, match=r"stem\.bias is torch\.int64"):
            hg.load(path, Residual)
        forge(path, note, {**weights, "stranger": torch.ones(1)})
        with pytest.raises(RecipeError, match="stranger is only in the file"):
            hg.load(path, Residual)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, nn.Module]:
    """A file, its bytes and its model; tests write over the file."""
    path, small = tmp_path_factory.mktemp("damage") / "small.safetensors", small_residual()
    hg.save(small, path)
    return path, path.read_bytes(), small


class TestDamage:
    """Whatever is done to the bytes of a file, the same model comes back or an error of ours."""

    def harmless(self, path: Path, small: nn.Module) -> bool:
        try:
            loaded = hg.load(path, Residual)
        except HeadgateError as error:
            assert len(str(error)) < 2000
            return False
        assert same(loaded, small, torch.ones(1, 2, 4, 4))
        return True

    @settings(max_examples=150)
    @given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), inside=st.booleans())
    def test_flipped_bytes(self, whole: tuple[Path, bytes, nn.Module], place: float, flip: int, inside: bool):
        path, data, small = whole
        header = 8 + struct.unpack("<Q", data[:8])[0]
        damaged = bytearray(data)
        damaged[int(place * (header if inside else len(data)))] ^= flip
        path.write_bytes(damaged)
        self.harmless(path, small)

    @settings(max_examples=150)
    @given(place=st.floats(0, 1, exclude_max=True))
    def test_every_flipped_bit_of_a_weight_is_noticed(self, whole: tuple[Path, bytes, nn.Module], place: float):
        path, data, _ = whole
        header = 8 + struct.unpack("<Q", data[:8])[0]
        damaged = bytearray(data)
        damaged[header + int(place * (len(data) - header))] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(RecipeError, match="checksum is wrong"):
            hg.load(path, Residual)

    @given(length=st.floats(0, 1, exclude_max=True))
    def test_truncated(self, whole: tuple[Path, bytes, nn.Module], length: float):
        path, data, small = whole
        path.write_bytes(data[: int(length * len(data))])
        assert not self.harmless(path, small)

    @given(junk=st.binary(min_size=1, max_size=64), at_end=st.booleans())
    def test_added_bytes(self, whole: tuple[Path, bytes, nn.Module], junk: bytes, at_end: bool):
        path, data, small = whole
        path.write_bytes(data + junk if at_end else junk + data)
        assert not self.harmless(path, small)

    @given(data=st.data())
    def test_random_values_anywhere_in_the_note(self, whole: tuple[Path, bytes, nn.Module], data: st.DataObject):
        """The checksum is right, as a forger's would be: only the checks of each value stand in the way."""
        path, written, _ = whole
        path.write_bytes(written)
        note, weights = file_contents(path)
        inner: Any = note
        while True:
            key = data.draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
            if not isinstance(inner[key], (dict, list)) or not inner[key] or data.draw(st.booleans()):
                break
            inner = inner[key]
        inner[key] = data.draw(
            st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(0, 9) | st.text(max_size=5)
            | st.lists(st.integers(-1, 9), max_size=4) | st.dictionaries(st.text(max_size=3), st.integers(0, 9))
        )  # fmt: skip
        forge(path, note, weights)
        try:
            loaded = hg.load(path, Residual)
        except HeadgateError as error:
            assert len(str(error)) < 2000
        else:
            assert {n: t.shape for n, t in loaded.state_dict().items()} == {n: t.shape for n, t in weights.items()}
