"""Cora, CiteSeer and PubMed: papers that cite each other, with the words they use, from Planetoid's files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from headgate_lab.data.download import Remote, fetch
from headgate_lab.data.old_pickles import read_csr, read_lists
from headgate_lab.data.places import DataError, cache, find

T = TypeVar("T")

FOLDER = "planetoid/raw"
SOURCE = "https://github.com/kimiyoung/planetoid/raw/master/data/"
# The md5 of each file that is read, by dataset and by the end of the file's name.
FILES: dict[str, dict[str, str]] = {
    "cora": {
        "allx": "c9083193a57057dd1238321e140194d7",
        "tx": "b29c36916768e1d2f55391c1aa9317ac",
        "graph": "b37c419cec179f45834467630c278e4c",
        "test.index": "9b822cae1d01f41e8bf8782e20367c0e",
    },
    "citeseer": {
        "allx": "28486b4b9c4ee076b4eee2febd89ba86",
        "tx": "c25ab826a7e95c0922ab625de705f7df",
        "graph": "5f88483d5f5cc2b26b987bbbfb695005",
        "test.index": "70af39d4dff8aaa5c63f8dc526b16534",
    },
    "pubmed": {
        "allx": "d6ecf5ffbdc9f8b181962d6829c7a8ac",
        "tx": "30d5abd15cf10e46ebd9514b256e0347",
        "graph": "601ee2ffa59197989ff7267383a4ea46",
        "test.index": "57cdfacfa20179b9b92e077fba394d1c",
    },
}


@dataclass(frozen=True)
class Graph:
    """An undirected graph.

    Attributes:
        features: of each node, float32 of shape (nodes, features).
        edges: each once, the smaller node first, in ascending order: int64 of shape (2, edges). No loops.
    """

    features: Tensor
    edges: Tensor

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.features)


def planetoid(name: str, root: str | Path | None = None) -> Graph:
    """A graph of papers by its name: "cora", "citeseer" or "pubmed".

    Args:
        name: of the dataset.
        root: a folder that holds `planetoid/raw/ind.*`. Without it HEADGATE_DATA is looked in, then shared/data beside
            the checkout, then the cache, which is filled from the canonical place.

    Raises:
        DataError: a file is missing or cannot be fetched, or is not the published one.
    """
    if name not in FILES:
        raise DataError(f"{name!r} is no dataset of Planetoid; they are {', '.join(FILES)}")
    folder = find([FOLDER], root)
    if folder is None or folder == cache() / FOLDER:
        folder = download(name)
    return read(folder, name, FILES[name])


def download(name: str) -> Path:
    """The cache's folder, with what it lacks of the dataset's files fetched."""
    folder = cache() / FOLDER
    for end, md5 in FILES[name].items():
        remote = Remote(f"{SOURCE}ind.{name}.{end}", md5)
        fetch(remote, folder, f"{FOLDER}/{remote.name}")
    return folder


def read(folder: Path, name: str, checksums: Mapping[str, str]) -> Graph:
    """The graph in the files of a folder, which must have these checksums: nothing else is unpickled.

    The rows of `allx` are the first nodes, row i of `tx` is the node that line i of `test.index` names; nodes between
    them that it does not name have no words (CiteSeer has 15).
    """
    contents = {end: _checked(folder / f"ind.{name}.{end}", md5) for end, md5 in checksums.items()}

    def parsed(end: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(contents[end])
        except ValueError as error:
            raise DataError(f"{folder / f'ind.{name}.{end}'}: {error}") from error

    known, others = parsed("allx", read_csr), parsed("tx", read_csr)
    places = parsed("test.index", lambda content: np.array(content.split(), np.int64))
    features = np.zeros((int(places.max()) + 1, known.shape[1]), np.float32)
    features[: len(known)] = known
    features[places] = others
    return Graph(torch.from_numpy(features), _edges(parsed("graph", read_lists)))


def _checked(path: Path, md5: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise DataError(f"{path} has md5 {found}, not {md5}: it is not the published file, and was not opened")
    return content


def _edges(neighbours: Mapping[int, Sequence[int]]) -> Tensor:
    """Every edge once, loops and repetitions left out."""
    pairs = [(min(a, b), max(a, b)) for a, others in neighbours.items() for b in others if a != b]
    return torch.tensor(sorted(set(pairs))).T.contiguous()
