"""Output of many rows in one message: columns that repeat are pickled once, tokens are bytes.

A streaming step tells the same forty facts of each row that the last one told, and one new token.
What repeats is the *header*: pickled when the rows change, sent as it is with every step, and read
back once by a receiver that sees it again. A message carries everything, so it does not matter who
receives it, or whether the one before was lost.
"""

from __future__ import annotations

import functools
import pickle
from array import array
from collections.abc import Sequence
from typing import Any

Columns = dict[str, list[Any]]

HEADERS_KEPT = 64
ROWS_KEPT = 4096


def pack_row(values: Sequence[Any]) -> bytes:
    """What repeats of one row, in the order of the columns' names."""
    return pickle.dumps(tuple(values), protocol=pickle.HIGHEST_PROTOCOL)


def pack_header(names: tuple[str, ...], rows: Sequence[bytes]) -> bytes:
    """The header of a message with these rows, each from `pack_row`."""
    return pickle.dumps((names, tuple(rows)), protocol=pickle.HIGHEST_PROTOCOL)


def columns(header: bytes) -> Columns:
    """The columns of a header; lists of the caller's own."""
    return {name: list(values) for name, values in _columns(header)}


def tokens_of(data: bytes) -> list[int]:
    """Tokens, or counts, from their bytes: int64 in the machine's order."""
    values = array("q")
    values.frombytes(data)
    return values.tolist()


def each_alone(tokens: Sequence[int]) -> list[array[int]]:
    """One array for each token, as SGLang sends the new tokens of a request."""
    return [array("q", (token,)) for token in tokens]


@functools.lru_cache(maxsize=HEADERS_KEPT)
def _columns(header: bytes) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    names, rows = pickle.loads(header)
    return tuple(zip(names, zip(*map(_row, rows), strict=True), strict=True))


@functools.lru_cache(maxsize=ROWS_KEPT)
def _row(packed: bytes) -> tuple[Any, ...]:
    values: tuple[Any, ...] = pickle.loads(packed)
    return values
