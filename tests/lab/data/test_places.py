"""Datasets are looked for in a fixed order of places."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.data.places import DataError, cache, find


def folder_with_it(folder: Path) -> Path:
    (folder / "it").mkdir(parents=True)
    return folder


def test_the_order_of_places(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(["it"], None) is None
    cached = folder_with_it(cache())
    assert find(["it"], None) == cached / "it"
    shared = folder_with_it(alone / "shared" / "data")
    assert find(["it"], None) == shared / "it"
    named = folder_with_it(tmp_path / "named")
    monkeypatch.setenv("HEADGATE_DATA", str(named))
    assert find(["it"], None) == named / "it"
    root = folder_with_it(tmp_path / "root")
    assert find(["it"], root) == find(["it"], str(root)) == root / "it"


def test_a_named_folder_without_it_is_passed_over(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = folder_with_it(alone / "shared" / "data")
    monkeypatch.setenv("HEADGATE_DATA", str(tmp_path))
    assert find(["it"], None) == shared / "it"


def test_a_root_is_the_only_place(alone: Path, tmp_path: Path) -> None:
    folder_with_it(alone / "shared" / "data")
    with pytest.raises(DataError, match=f"{tmp_path} holds no it"):
        find(["it"], tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path} holds neither it nor that"):
        find(["it", "that"], tmp_path)


def test_a_variable_that_names_no_folder_is_refused(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_DATA", "/no/such/folder")
    with pytest.raises(DataError, match="HEADGATE_DATA is /no/such/folder, which is not a folder"):
        find(["it"], None)


def test_a_relative_cache_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert cache() == Path.home() / ".cache" / "headgate"
