"""The pictures that a request names: where they stand in its body, and which files it may read.

A row is text that somebody else may have written. A picture may be a data URL, a web address, or a
file below the media root; whatever else a server could be made to fetch or open is refused here.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_photon.batch.rows import URLS, Mark, Row, RowError, digest, request_bytes

WEB = ("http://", "https://")
DATA = "data:"
FILE = "file://"
OTHER_MEDIA = ("video_url", "audio_url", "input_audio", "video", "audio")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a picture stands in a request: `holder[key]` is its address."""

    holder: dict[str, Any]
    key: str

    @property
    def address(self) -> str:
        """As the row gives it."""
        value: str = self.holder[self.key]
        return value

    @property
    def local(self) -> bool:
        """Whether it is a file."""
        return not self.address.startswith((*WEB, DATA))


def check(row: Row) -> None:
    """Refuse a request that no answer line could come of.

    Raises:
        RowError: an endpoint that batches do not serve, or a streamed answer.
    """
    if row.url not in URLS:
        raise RowError("unknown_url", f"url is {row.url!r}; a batch serves {', '.join(URLS)}")
    if row.body.get("stream"):
        raise RowError("stream_not_supported", "stream is set; an answer of a batch is one line")


def places(row: Row) -> list[Place]:
    """Every picture of a request.

    Raises:
        RowError: a picture without an address, or media of another kind.
    """
    found = []
    for part in _parts(row.body):
        place = _place(part)
        if place is not None:
            if not isinstance(place.holder.get(place.key), str):
                raise RowError("picture_unreadable", "a picture has no address")
            found.append(place)
    return found


def _parts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pieces of a chat's messages, or the inputs of an embedding request."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))
    inputs = body.get("input")
    if isinstance(inputs, list):
        yield from (part for part in inputs if isinstance(part, dict))


def _place(part: dict[str, Any]) -> Place | None:
    for key in OTHER_MEDIA:
        if part.get(key) is not None:
            raise RowError("unsupported_media", f"{key} is not supported in a batch, pictures are")
    if part.get("image") is not None:
        return Place(part, "image")
    if part.get("image_url") is not None:
        inner = part["image_url"]
        return Place(inner, "url") if isinstance(inner, dict) else Place(part, "image_url")
    return None


class MediaRoot:
    """The one folder whose files a row may name.

    Args:
        folder: None allows no file at all.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    def path(self, address: str) -> Path:
        """The file behind a `file://` or relative address; links are followed before it is judged.

        Raises:
            RowError: it lies outside, or no folder is allowed.
        """
        if self._folder is None:
            raise RowError("picture_forbidden", f"{_short(address)}: no --media-root is given")
        text = address
        if address.startswith(FILE):
            parts = urllib.parse.urlsplit(address)
            if parts.netloc not in ("", "localhost"):
                raise RowError("picture_forbidden", f"{_short(address)} is on another machine")
            text = urllib.parse.unquote(parts.path)
        elif "://" in address:
            raise RowError("picture_forbidden", f"{_short(address)} is no address of a picture")
        try:
            path = (self._folder / text).resolve()
        except (OSError, ValueError) as error:
            raise RowError("picture_unreadable", f"{_short(address)}: {error}") from None
        if not path.is_relative_to(self._folder):
            raise RowError("picture_forbidden", f"{_short(address)} is outside the media root")
        return path


def quick_mark(row: Row, found: list[Place], root: MediaRoot) -> str:
    """`Mark.quick` of a row, before its body is changed."""
    parts = [request_bytes(row)]
    for place in found:
        if place.local:
            try:
                status = root.path(place.address).stat()
                parts.append(f"{status.st_size} {status.st_mtime_ns}".encode())
            except (RowError, OSError, ValueError):
                parts.append(b"unreadable")
    return digest(*parts)


def fingerprint(request: bytes, contents: list[bytes]) -> str:
    """`Mark.fingerprint` of a row with these local pictures, in order."""
    return digest(request, *(hashlib.blake2b(c, digest_size=16).digest() for c in contents))


def mark_of(row: Row, root: MediaRoot) -> Mark:
    """The mark of a row, its local pictures read; what cannot be read counts as empty.

    For rows whose quick mark is not known to be unchanged.
    """
    try:
        found = places(row)
    except RowError:
        found = []
    contents = []
    for place in found:
        if place.local:
            try:
                contents.append(root.path(place.address).read_bytes())
            except (RowError, OSError, ValueError):
                contents.append(b"")
    quick = quick_mark(row, found, root)
    return Mark(fingerprint=fingerprint(request_bytes(row), contents), quick=quick)


def _short(address: str) -> str:
    return address if len(address) <= 100 else address[:97] + "..."
