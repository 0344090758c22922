"""Rows from a JSON Lines file, plain, gzip or zstd, or from standard input.

A job reads its input twice: once to refuse what is wrong before anything is sent, once to send it.
Standard input is copied beside the output for that.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from sglang_photon.batch.journal import disk_problem
from sglang_photon.batch.rows import METHOD, Row
from sglang_photon.errors import UsageError

LONGEST_LINE = 64 << 20
"""Bytes: far above any request that a server takes, far below what would fill the memory."""
KEYS = ("custom_id", "method", "url", "body")
BOM = b"\xef\xbb\xbf"
STDIN = "-"
MEMORY_PER_BYTE = 2


@dataclass(frozen=True, slots=True)
class Bad:
    """What is wrong with an input line.

    Attributes:
        number: of the line, from 1.
        problem: in words.
    """

    number: int
    problem: str


class Source(Protocol):
    """Where rows come from; can be read several times, with the same rows each time."""

    @property
    def blank(self) -> int:
        """Lines without anything in them that the last reading passed over."""
        ...

    def rows(self) -> Iterator[Row | Bad]:
        """All rows in order, what is wrong in their place."""
        ...


class JsonLines:
    """An OpenAI batch file.

    Args:
        path: the file, or `-` for standard input.
        beside: folder for a copy of standard input.

    Raises:
        UsageError: the file cannot be read.
    """

    def __init__(self, path: str, *, beside: Path) -> None:
        self.blank = 0
        self._name = path
        self._file = _copy_of_stdin(beside) if path == STDIN else _open(path)

    def rows(self) -> Iterator[Row | Bad]:
        """All rows in order.

        Raises:
            UsageError: the file ends in the middle of compressed data, or cannot be read.
        """
        self.blank = 0
        self._file.seek(0)
        try:
            with _plain(self._file) as lines:
                yield from self._parse(lines)
        except (OSError, EOFError, _zstd_error()) as error:
            raise UsageError(
                f"{self._name} cannot be read to its end ({error})",
                "Give a complete file: plain, gzip or zstd",
            ) from None

    def _parse(self, lines: BinaryIO | io.BufferedReader) -> Iterator[Row | Bad]:
        number = 0
        while line := lines.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                _skip_line(lines)
                yield Bad(number, f"longer than {LONGEST_LINE >> 20} MiB")
                continue
            if number == 1:
                line = line.removeprefix(BOM)
                if line.lstrip().startswith(b"["):
                    yield Bad(number, "a JSON array; write one object per line instead")
                    return
            if not line.strip():
                self.blank += 1
                continue
            yield parse_line(line, number)


def parse_line(line: bytes, number: int) -> Row | Bad:
    """One line of a batch file."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; it is the last line: half of it?"
        return Bad(number, f"not JSON ({error.msg}{cut})")
    problem = _problem(value)
    if problem:
        return Bad(number, problem)
    return Row(
        number=number,
        custom_id=value["custom_id"],
        url=value["url"],
        body=value["body"],
        size=len(line) * MEMORY_PER_BYTE,
    )


def _problem(value: Any) -> str:
    if not isinstance(value, dict):
        return f"a JSON {_kind(value)}, not an object"
    unknown = [key for key in value if key not in KEYS]
    missing = [key for key in KEYS if key not in value and key != "method"]
    if unknown:
        return f"unknown key {unknown[0]!r}; known are {', '.join(KEYS)}"
    if missing:
        return f"no {missing[0]}"
    custom_id = value["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        return f"custom_id is {_shown(custom_id)}; it must be a string that is not empty"
    if value.get("method", METHOD) != METHOD:
        return f"method is {_shown(value['method'])}; it must be {METHOD}"
    if not isinstance(value["url"], str):
        return f"url is {_shown(value['url'])}; it must be a string"
    if not isinstance(value["body"], dict):
        return f"body is a JSON {_kind(value['body'])}, not an object"
    return ""


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:37] + "..."


def _skip_line(lines: BinaryIO | io.BufferedReader) -> None:
    while (piece := lines.readline(1 << 20)) and not piece.endswith(b"\n"):
        pass


def _open(path: str) -> BinaryIO:
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - lives as long as the source
        if not file.seekable():
            file.close()
            raise UsageError(f"{path} is a pipe", f"Give a file, or {STDIN} for standard input")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror})", "Give a JSON Lines file"
        ) from None
    return file


def _copy_of_stdin(beside: Path) -> BinaryIO:
    try:
        copy = tempfile.TemporaryFile(dir=beside)  # noqa: SIM115 - lives as long as the source
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
    except OSError as error:
        raise disk_problem(beside, error) from None
    return copy


@contextlib.contextmanager
def _plain(file: BinaryIO) -> Iterator[BinaryIO | io.BufferedReader]:
    """The file's text; how it is compressed is told by its first bytes."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=file) as packed, io.BufferedReader(packed, 1 << 20) as lines:
            yield lines
    elif start == b"\x28\xb5\x2f\xfd":
        with io.BufferedReader(_Zstd(file), 1 << 20) as lines:
            yield lines
    else:
        yield file


class _Zstd(io.RawIOBase):
    """The text of zstd frames; an end in the middle of one is an error, as it is with gzip."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            packed = self._file.read(1 << 17)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a zstd frame")
                return 0
            self._text = self._unpack(packed)
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def _unpack(self, packed: bytes) -> bytes:
        text = b""
        while packed:
            self._frame = self._frame or self._decompressor.decompressobj()
            text += self._frame.decompress(packed)
            packed = b""
            if self._frame.eof:
                packed = self._frame.unused_data
                self._frame = None
        return text


def _zstd_error() -> type[Exception]:
    """zstandard's error if it is loaded; it is only where a file needs it."""
    module = sys.modules.get("zstandard")
    return module.ZstdError if module is not None else EOFError
