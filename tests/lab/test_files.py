"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate_lab.files import remove, why_not_writable, write_whole


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


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.txt'$"):
        write_whole(tmp_path / "a.txt", b"new")


def test_a_file_is_removed_with_what_a_kill_left_beside_it(tmp_path: Path) -> None:
    for name in ("a.txt", ".a.txt.12.part", ".b.txt.12.part", "b.txt"):
        (tmp_path / name).touch()
    remove(tmp_path / "a.txt")
    remove(tmp_path / "a.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"b.txt", ".b.txt.12.part"}


def test_writable_is_found_out_without_a_trace(tmp_path: Path) -> None:
    assert why_not_writable(tmp_path / "a.txt") is None
    assert list(tmp_path.iterdir()) == []
    assert "is a folder" in (why_not_writable(tmp_path) or "")
    assert "does not exist" in (why_not_writable(tmp_path / "b" / "a.txt") or "")
    assert "cannot write" in (why_not_writable(tmp_path / ("a" * 300)) or "")


@pytest.fixture(params=["fifo", "socket", "circle", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Something that stands for a device: it is there, and a file must not take its place."""
    path = tmp_path / request.param
    listening = socket.socket(socket.AF_UNIX)
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "socket":
        folder = os.open(tmp_path, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{folder}/socket")  # the whole path may be too long for a socket
        os.close(folder)
    elif request.param == "circle":
        path.symlink_to(path)
    else:
        path.mkdir()
    yield path
    listening.close()


@pytest.mark.parametrize("linked", [False, True])
def test_only_regular_files_are_replaced(no_file: Path, linked: bool) -> None:
    path = no_file
    if linked:
        path = no_file.with_name("link")
        path.symlink_to(no_file)
    before = {each: os.lstat(each).st_ino for each in no_file.parent.iterdir()}
    assert str(path) in (why_not_writable(path) or "")
    with pytest.raises(OSError, match="is not a regular file"):
        write_whole(path, b"new")
    assert {each: os.lstat(each).st_ino for each in no_file.parent.iterdir()} == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(exists: bool, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to("there/target")
    assert why_not_writable(link) is None
    write_whole(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_a_link_into_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing/target")
    assert f"{tmp_path}/missing does not exist" in (why_not_writable(tmp_path / "link") or "")


def test_it_needs_the_standard_library_only() -> None:
    """The benchmarks use it where the lab's packages are not installed."""
    program = (
        "import sys; before = set(sys.modules); import headgate_lab.files\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["headgate_lab"]
