"""Downloads that are whole and checked, or not there."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError

from headgate_lab.data.places import VARIABLE, DataError
from headgate_lab.files import why_not_writable, write_whole

CHUNK = 1 << 20
SECONDS_WITHOUT_A_BYTE = 30


@dataclass(frozen=True)
class Remote:
    """A file in its canonical place, and the md5 its makers give for it."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Its name on disk."""
        return self.url.rpartition("/")[2]


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def fetch(remote: Remote, folder: Path, holding: str) -> Path:
    """The checked file in `folder`, downloaded if it is not there. One that was put there by hand is checked, too.

    Args:
        remote: what to fetch.
        folder: where it is kept; made if need be.
        holding: what a folder must hold to do without the download, for the message.

    Raises:
        DataError: it cannot be fetched or written, or is not the file it should be. Nothing is left behind then.
    """
    path = folder / remote.name
    if path.exists():
        if (found := _md5(path.read_bytes())) != remote.md5:
            raise DataError(f"{path} has md5 {found}, not {remote.md5}: delete it, and it is fetched again")
        return path
    instead = f"put that file into {folder} yourself, or set {VARIABLE} to a folder that holds {holding}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {folder} for {remote.url}: {error}; set XDG_CACHE_HOME or {VARIABLE}") from error
    if (obstacle := why_not_writable(path)) is not None:
        raise DataError(f"no place for {remote.url}: {obstacle}; set XDG_CACHE_HOME or {VARIABLE}")
    try:
        content = _read(remote.url)
    except (OSError, HTTPException) as error:
        raise DataError(f"cannot fetch {remote.url}: {error}; {instead}") from error
    if (found := _md5(content)) != remote.md5:
        raise DataError(f"{remote.url} has md5 {found}, not {remote.md5}, so it was not kept; {instead}")
    try:
        write_whole(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}; set XDG_CACHE_HOME or {VARIABLE}") from error
    return path


def extract(archive: Path, folder: str, files: Sequence[str]) -> Path:
    """Those files of the tar archive's `folder`, and nothing else of it, in a folder of that name beside the archive.

    Raises:
        DataError: the archive is damaged or lacks a file, or there is no room. Nothing is left behind then.
    """
    with _unpacking(archive, folder) as part, tarfile.open(archive) as tar:
        for file in files:
            tar.extract(_regular(tar, f"{folder}/{file}"), part, filter="data")
    return archive.parent / folder


def unzip(archive: Path, folder: str, wanted: Sequence[str]) -> Path:
    """As `extract`, of a zip archive; in `wanted` a name that ends in a slash stands for all files below it."""
    inside = tuple(f"{folder}/{name}" for name in wanted)
    with _unpacking(archive, folder) as part, zipfile.ZipFile(archive) as zipped:
        names = [name for name in zipped.namelist() if not name.endswith("/")]
        for prefix in inside:
            chosen = [name for name in names if name == prefix or (prefix[-1] == "/" and name.startswith(prefix))]
            if not chosen:
                raise KeyError(f"there is no {prefix} in it")
            # Leaves out whatever would lead to a place outside; links become plain files.
            zipped.extractall(part, chosen)
    return archive.parent / folder


@contextmanager
def _unpacking(archive: Path, folder: str) -> Iterator[str]:
    """A place to unpack to; what lies in `folder` there in the end moves beside the archive in one step."""
    target = archive.parent / folder
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder}.", dir=archive.parent) as part:
            yield part
            try:
                os.rename(Path(part, folder), target)
            except OSError:
                # Another process was faster, with the same files.
                if not target.is_dir():
                    raise
    except KeyError as error:
        raise DataError(f"{archive}: {error.args[0]}") from error
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{archive}: cannot extract {folder}: {error}") from error


def _regular(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    member = tar.getmember(name)
    if not member.isreg():
        raise KeyError(f"{name} in it is not a regular file")
    return member


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _read(url: str) -> bytes:
    """All of it; OSError if it breaks off."""
    try:
        response = urllib.request.urlopen(url, timeout=SECONDS_WITHOUT_A_BYTE)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise OSError(f"the server answers {error.code} {error.reason}") from None
    with response:
        length = response.headers.get("Content-Length")
        total = int(length) if length is not None and length.isdecimal() else None
        with _watching(url, total) as advance:
            chunks = list(_chunks(response, advance))
    content = b"".join(chunks)
    if total is not None and len(content) < total:
        raise OSError(f"it broke off after {len(content):,} of {total:,} bytes")
    return content


def _chunks(stream: _Stream, advance: Callable[[int], object]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        advance(len(chunk))
        yield chunk


@contextmanager
def _watching(url: str, total: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal, one line elsewhere; on standard error, since other things are printed for programs."""
    if not sys.stderr.isatty():
        size = "" if total is None else f" ({total / 1e6:.1f} MB)"
        print(f"fetching {url}{size}", file=sys.stderr, flush=True)
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=total)
        yield lambda size: progress.advance(task, size)
