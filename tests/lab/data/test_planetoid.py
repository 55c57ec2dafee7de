"""Planetoid's files: tiny ones in the format of 2016, hostile ones, the real ones where they are present."""

from __future__ import annotations

import pickle
from collections import defaultdict
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headgate_lab.data import planetoid as module
from headgate_lab.data.old_pickles import PickleError, read_csr, read_lists
from headgate_lab.data.places import DataError, cache
from headgate_lab.data.planetoid import FILES, planetoid, read


def array(values: np.ndarray) -> bytes:
    """The opcodes by which Python 2 rebuilt an array of numpy."""
    raw, kind = values.tobytes(), values.dtype.str[1:].encode()
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02%sI0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntb" % kind
    return made + b"(I1\n(I%d\nt%sI00\nT" % (len(values), dtype) + len(raw).to_bytes(4, "little") + raw + b"tb"


def csr(dense: np.ndarray) -> bytes:
    """A sparse matrix as scipy pickled it then."""
    rows, columns = dense.nonzero()
    starts = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int32)
    parts = {b"indptr": starts, b"indices": columns.astype(np.int32), b"data": dense[rows, columns]}
    body = b"".join(b"U%c%s" % (len(name), name) + array(values) + b"s" for name, values in parts.items())
    shape = b"U\x06_shape(I%d\nI%d\nts" % dense.shape
    return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81}" + body + shape + b"b."


def lists(neighbours: dict[Any, list[Any]]) -> bytes:
    return pickle.dumps(defaultdict(list, neighbours), protocol=2)


KNOWN = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
OTHERS = np.array([[0, 5, 0], [7, 0, 0]], np.float32)
# Node 3 is missing from the list: it has no words.
PLACES = b"4\n2\n"
EDGES = {0: [1, 2, 2, 0], 1: [0], 2: [0, 4], 3: [], 4: [2]}


def write(folder: Path, name: str = "toy", **instead: bytes) -> dict[str, str]:
    """The four files, and their checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"allx": csr(KNOWN), "tx": csr(OTHERS), "graph": lists(EDGES), "test.index": PLACES} | instead
    for end, content in contents.items():
        (folder / f"ind.{name}.{end}").write_bytes(content)
    return {end: md5(content).hexdigest() for end, content in contents.items()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    graph = read(tmp_path, "toy", write(tmp_path))
    assert graph.features.tolist() == [[1, 0, 2], [0, 0, 3], [7, 0, 0], [0, 0, 0], [0, 5, 0]]
    assert graph.features.dtype == torch.float32 and graph.nodes == 5
    assert graph.edges.tolist() == [[0, 0, 2], [1, 2, 4]]


def test_a_file_that_is_not_the_published_one_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "planetoid" / "raw"
    checksums = write(folder, "cora")
    with pytest.raises(DataError, match=r"ind.cora.allx has md5 \w+, not c9083193a57057dd1238321e140194d7: it is not"):
        planetoid("cora", tmp_path)
    (folder / "ind.cora.graph").unlink()
    with pytest.raises(DataError, match=r"ind.cora.graph cannot be read: No such file"):
        read(folder, "cora", checksums)


def test_unknown_names_and_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'Cora' is no dataset of Planetoid; they are cora, citeseer, pubmed"):
        planetoid("Cora")
    with pytest.raises(DataError, match="holds no planetoid/raw"):
        planetoid("cora", tmp_path)


def test_what_is_missing_is_fetched(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    monkeypatch.setattr(module, "SOURCE", source.as_uri() + "/")
    monkeypatch.setitem(FILES, "cora", write(source, "cora"))
    assert planetoid("cora").nodes == 5
    assert (cache() / "planetoid" / "raw" / "ind.cora.tx").exists()
    (source / "ind.cora.tx").unlink()
    assert planetoid("cora").nodes == 5


class Hostile:
    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> Any:
        return Path.touch, (self.touched,)


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_cannot_call_what_it_likes(protocol: int, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    for parse in (read_csr, read_lists):
        with pytest.raises(PickleError, match=r"it asks for .*, which no such file needs"):
            parse(pickle.dumps({1: [Hostile(touched)]}, protocol=protocol))
    assert not touched.exists()


@pytest.mark.parametrize(
    "name",
    ["os\nsystem", "builtins\neval", "__builtin__\neval", "builtins\ngetattr", "numpy\nload", "numpy\nndarray.x"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(PickleError, match="which no such file needs"):
        read_lists(f"c{name}\n(S'1'\ntR.".encode())


@pytest.mark.parametrize("content", [b"", b"junk", b"}.", csr(KNOWN)[:-40], csr(KNOWN)[:30], lists(EDGES)])
def test_what_is_no_matrix_is_refused(content: bytes) -> None:
    with pytest.raises(PickleError):
        read_csr(content)


@pytest.mark.parametrize(
    "content", [b"", b"I1\n.", csr(KNOWN), lists({0: [1.5]}), lists({"a": [1]}), lists(EDGES)[:-9]]
)
def test_what_is_no_dict_of_lists_is_refused(content: bytes) -> None:
    with pytest.raises(PickleError):
        read_lists(content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(I2\nI3\nt", b"(I2\nI2\nt"),
        (b"(I2\nI3\nt", b"(I9\nI3\nt"),
        (b"U\x02f4", b"U\x02O8"),
        (b"indices", b"indicex"),
    ],
)
def test_damage_is_said(old: bytes, new: bytes, tmp_path: Path) -> None:
    assert old in csr(KNOWN)
    checksums = write(tmp_path, allx=csr(KNOWN).replace(old, new))
    with pytest.raises(DataError, match=r"ind.toy.allx: its sparse matrix is damaged"):
        read(tmp_path, "toy", checksums)


@pytest.mark.parametrize(
    ("name", "shape", "edges", "without_words"),
    [
        ("cora", (2708, 1433), 5278, 0),
        ("citeseer", (3327, 3703), 4552, 15),
        ("pubmed", (19717, 500), 44324, 0),
    ],
)
def test_the_real_graphs(
    name: str, shape: tuple[int, int], edges: int, without_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "download", lambda name: pytest.skip("Planetoid's files are not on this machine"))
    graph = planetoid(name)
    assert graph.features.shape == shape and graph.edges.shape == (2, edges)
    assert int((graph.features.sum(1) == 0).sum()) == without_words
    keys = graph.edges[0] * graph.nodes + graph.edges[1]
    assert bool((keys.diff() > 0).all()) and bool((graph.edges[0] < graph.edges[1]).all())
