"""The two kinds of object in Planetoid's pickles of 2016, rebuilt from plain data.

A pickle is a program: whoever loads one runs it. This reader lends it none of the functions it asks for, only the
stand-ins below, which hold what they are given; everything else is refused by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[np.generic]

KINDS = {"i4": np.dtype("<i4"), "f4": np.dtype("<f4")}


class PickleError(ValueError):
    """The bytes are no pickle of what they should be; the message says why."""


def read_csr(content: bytes) -> Matrix:
    """The `scipy.sparse.csr_matrix` of a pickle, as a dense array.

    Raises:
        PickleError: it is something else, or is not whole.
    """
    found = _load(content)
    if not isinstance(found, _Held) or not isinstance(found.state, dict):
        raise PickleError("it holds no sparse matrix")
    try:
        rows, columns = found.state["_shape"]
        starts, places, values = (_array(found.state[name]) for name in ("indptr", "indices", "data"))
        dense = np.zeros((rows, columns), np.float32)
        dense[np.repeat(np.arange(rows), np.diff(starts.astype(np.int64))), places] = values
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise PickleError(f"its sparse matrix is damaged: {error!r}") from error
    return dense


def read_lists(content: bytes) -> dict[int, list[int]]:
    """The dict of lists of whole numbers of a pickle.

    Raises:
        PickleError: it is something else.
    """
    found = _load(content)
    whole = isinstance(found, dict) and all(
        type(key) is int and type(values) is list and all(type(value) is int for value in values)
        for key, values in found.items()
    )
    if not whole:
        raise PickleError("it holds no dict of lists of whole numbers")
    lists: dict[int, list[int]] = found
    return lists


class _Held:
    """Whatever a pickle makes: the arguments and the state it was given, and no more."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _dict(*_: Any) -> dict[Any, Any]:
    return {}


STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("scipy.sparse.csr", "csr_matrix"): _Held,
    ("numpy.core.multiarray", "_reconstruct"): _Held,
    ("numpy", "ndarray"): _Held,
    ("numpy", "dtype"): _Held,
    ("collections", "defaultdict"): _dict,
    ("__builtin__", "list"): list,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise PickleError(f"it asks for {module}.{name}, which no such file needs") from None


def _load(content: bytes) -> Any:
    try:
        # Python 2 wrote them: its texts, and the bytes of arrays, are latin-1.
        return _Reader(io.BytesIO(content), encoding="latin1").load()
    except PickleError:
        raise
    except Exception as error:  # a damaged pickle may stumble over anything
        raise PickleError(f"it is no whole pickle: {error!r}") from error


def _array(held: Any) -> Numbers:
    """A vector of numbers: its state is (version, shape, type, order, bytes)."""
    _, (length,), kind, _, raw = held.state
    values = np.frombuffer(raw.encode("latin1"), KINDS[kind.arguments[0]])
    if len(values) != length:
        raise ValueError(f"{len(values)} values where {length} should be")
    return values
