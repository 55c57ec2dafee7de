"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.files import why_not_writable, write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def full(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_writable_is_found_out_without_a_trace(tmp_path: Path) -> None:
    assert why_not_writable(tmp_path / "a.txt") is None
    assert list(tmp_path.iterdir()) == []
    assert "is a folder" in (why_not_writable(tmp_path) or "")
    assert "does not exist" in (why_not_writable(tmp_path / "b" / "a.txt") or "")
    assert "cannot write" in (why_not_writable(tmp_path / ("a" * 300)) or "")
