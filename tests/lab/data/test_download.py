"""Downloads are whole and checked, or not there."""

from __future__ import annotations

import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headgate_lab.data.download import Remote, extract, fetch, unzip
from headgate_lab.data.places import DataError

CONTENT = bytes(range(256)) * 9000
MD5 = md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing.bin":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized.bin":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:-1000] if self.path == "/short.bin" else CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize("name", ["whole.bin", "unsized.bin"])
def test_a_file_is_fetched_once(name: str, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote = Remote(f"{server}/{name}", MD5)
    folder = tmp_path / "a" / "b"
    path = fetch(remote, folder, "b/")
    assert path == folder / name and path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"fetching {server}/{name}") and ("(2.3 MB)" in err) == (name == "whole.bin")
    assert fetch(remote, folder, "b/") == path
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    fetch(Remote(f"{server}/whole.bin", MD5), tmp_path, "b/")
    assert "whole.bin" in terminal.getvalue() and "2.3/2.3 MB" in terminal.getvalue()


@pytest.mark.parametrize(
    ("name", "checksum", "complaint"),
    [
        ("missing.bin", MD5, "cannot fetch .*404"),
        ("short.bin", MD5, "cannot fetch .*broke off after 2,303,000 of 2,304,000 bytes"),
        ("whole.bin", "0" * 32, f"has md5 {MD5}, not {'0' * 32}, so it was not kept"),
    ],
)
def test_a_failure_says_what_to_do_and_leaves_nothing(
    name: str, checksum: str, complaint: str, server: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=complaint) as raised:
        fetch(Remote(f"{server}/{name}", checksum), tmp_path, "some-folder/")
    message = str(raised.value)
    assert f"{server}/{name}" in message and f"put that file into {tmp_path} yourself" in message
    assert "set HEADGATE_DATA to a folder that holds some-folder/" in message
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/a.bin"  # the discard port: nobody listens
    with pytest.raises(DataError, match=rf"cannot fetch {url}: .*; put that file into .* HEADGATE_DATA"):
        fetch(Remote(url, MD5), tmp_path, "b/")


def test_a_wrong_file_in_the_cache_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"wrong")
    with pytest.raises(DataError, match=r"a.bin has md5 .*: delete it, and it is fetched again"):
        fetch(Remote("http://127.0.0.1:9/a.bin", MD5), tmp_path, "b/")


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot make .*file/cache for .*; set XDG_CACHE_HOME or HEADGATE_DATA"):
        fetch(Remote("http://127.0.0.1:9/a.bin", MD5), tmp_path / "file" / "cache", "b/")


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, **attributes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = 4
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def test_only_named_files_are_extracted(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", member("d/one"), member("d/two"), member("../evil"), member("d/three"))
    folder = extract(path, "d", ["one", "two"])
    assert folder == tmp_path / "d"
    assert sorted(file.name for file in folder.iterdir()) == ["one", "two"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tar.gz", "d"]
    assert extract(path, "d", ["one", "two"]) == folder


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([member("d/one")], "'d/two' not found"),
        (
            [member("d/one"), member("d/two", type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0)],
            "d/two in it is not",
        ),
    ],
)
def test_an_archive_without_a_file_leaves_nothing(
    members: list[tarfile.TarInfo], complaint: str, tmp_path: Path
) -> None:
    path = archive(tmp_path / "a.tar.gz", *members)
    with pytest.raises(DataError, match=rf"a.tar.gz: .*{complaint}"):
        extract(path, "d", ["one", "two"])
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", member("d/one"), member("d/two"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a.tar.gz: cannot extract d: "):
        extract(path, "d", ["one", "two"])
    assert list(tmp_path.iterdir()) == [path]


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x" * 100)
    return path


def test_only_wanted_files_are_unzipped(tmp_path: Path) -> None:
    names = ("d/", "d/in/", "d/in/one", "d/in/deep/two", "d/three", "d/four", "evil", "../evil", "d/in/../../../evil")
    folder = unzip(zipped(tmp_path / "a.zip", *names), "d", ["in/", "three"])
    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    # What would lead outside stays inside.
    assert folder == tmp_path / "d" and found == ["a.zip", "d/in/deep/two", "d/in/evil", "d/in/one", "d/three"]
    assert unzip(tmp_path / "a.zip", "d", ["in/", "three"]) == folder


@pytest.mark.parametrize("wanted", [["two"], ["one", "in/"], ["on"]])
def test_a_zip_without_a_file_leaves_nothing(wanted: list[str], tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", "d/one", "d/in")
    with pytest.raises(DataError, match=rf"a.zip: there is no d/{wanted[-1]} in it"):
        unzip(path, "d", wanted)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", [lambda whole: whole[:-30], lambda whole: whole.replace(b"xxxx", b"xxyx")])
def test_a_damaged_zip_leaves_nothing(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", "d/one")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"a.zip: cannot extract d: "):
        unzip(path, "d", ["one"])
    assert list(tmp_path.iterdir()) == [path]
