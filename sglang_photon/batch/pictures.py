"""One picture: bounded, recognised by its header, and as the data URL that travels.

Headers are read, pixels are not: decoding is the server's work, and it answers for a picture that
is cut off in the middle with a 4xx that names it.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path

import pybase64

from sglang_photon.batch.rows import RowError

DATA_URL = re.compile(r"data:([\w.+/-]*)((?:;[\w=.+-]+)*),")
HEAD = 400
"""Characters in which the header of a data URL must end."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a picture may be.

    Attributes:
        file_bytes: of its file.
        pixels: of the decoded picture.
    """

    file_bytes: int = 32 << 20
    pixels: int = 64_000_000


def read_file(path: Path, bounds: Bounds) -> bytes:
    """A picture's file.

    Raises:
        RowError: it cannot be read, is no file, or is too large.
    """
    try:
        if not path.is_file():
            problem = "is no file" if path.exists() else "does not exist"
            raise RowError("picture_unreadable", f"{path.name} {problem}")
        with path.open("rb") as file:
            content = file.read(bounds.file_bytes + 1)
    except OSError as error:
        raise RowError("picture_unreadable", f"{path.name}: {error.strerror}") from None
    check_size(len(content), path.name, bounds)
    return content


def check_size(size: int, name: str, bounds: Bounds) -> None:
    """Refuse a file that is too large.

    Raises:
        RowError: it is.
    """
    if size > bounds.file_bytes:
        raise RowError("picture_too_large", f"{name} is larger than {bounds.file_bytes >> 20} MiB")


def data_url(content: bytes, name: str, bounds: Bounds) -> str:
    """A picture as a data URL, with the type that its first bytes tell.

    Raises:
        RowError: it is no picture, or too large.
    """
    kind = kind_of(content, name, bounds)
    return f"data:{kind};base64,{pybase64.b64encode(content).decode('ascii')}"


def checked_data_url(url: str, bounds: Bounds) -> str:
    """A data URL that holds a picture, and says so.

    Raises:
        RowError: it is not base64, no picture, or too large.
    """
    kind = kind_of(from_data_url(url, bounds), "a data URL's picture", bounds)
    if url.startswith("data:image/"):
        return url
    return f"data:{kind};base64,{url.partition(',')[2]}"


def from_data_url(url: str, bounds: Bounds) -> bytes:
    """The content of a data URL.

    Raises:
        RowError: it is not base64, or too large.
    """
    head = DATA_URL.match(url[:HEAD])
    if head is None or ";base64" not in head[2]:
        raise RowError("picture_unreadable", "a data URL is not data:image/...;base64,...")
    check_size((len(url) - head.end()) * 3 // 4, "a data URL's picture", bounds)
    try:
        return pybase64.b64decode(url[head.end() :], validate=True)
    except ValueError as error:
        raise RowError("picture_unreadable", f"a data URL is not base64 ({error})") from None


def kind_of(content: bytes, name: str, bounds: Bounds) -> str:
    """The media type of a picture, from its header.

    Raises:
        RowError: it is no picture that can be read, or has too many pixels.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            kind = Image.MIME.get(image.format or "", "application/octet-stream")
    except Exception as error:  # noqa: BLE001 - decoders raise anything for broken files
        problem = "is empty" if not content else f"is no picture ({type(error).__name__})"
        if isinstance(error, Image.DecompressionBombError):
            problem = "has far too many pixels"
        raise RowError("picture_unreadable", f"{name} {problem}") from None
    if width * height > bounds.pixels:
        limit = f"{bounds.pixels / 1e6:g} megapixels"
        raise RowError("picture_too_large", f"{name} is {width} x {height}, above {limit}")
    return kind


def decode(content: bytes, name: str) -> None:
    """Decode a whole picture, to know that it is one.

    Raises:
        RowError: it is cut off or broken.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    except Exception as error:  # noqa: BLE001 - decoders raise anything for broken files
        raise RowError("picture_unreadable", f"{name} is broken ({error})") from None
