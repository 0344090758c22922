"""Pictures from clients: looked at before they are decoded, and brought into one form.

A picture's header says how large it will be, long before its pixels take memory. What is too large
is refused from there. What cannot be decoded is an error of the client, whatever the decoder
raises. What can be is turned as its EXIF orientation says, laid on white where it is transparent,
and brought from 16 to 8 bits per channel.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

MAX_PIXELS = 89_478_485
"""What Pillow warns about: a quarter of a gigabyte as RGB."""

BACKGROUND = (255, 255, 255)
"""What shows through transparent pixels."""

HEADER_BYTES = 64 * 1024
ORIENTATION = 0x0112
DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")
UNDECODABLE = (
    *(OSError, SyntaxError, ValueError, ArithmeticError, LookupError, TypeError, EOFError),
    *(AttributeError, NotImplementedError, struct.error, zlib.error, Image.DecompressionBombError),
)
"""What Pillow's decoders raise for data that is not what it says."""


class PictureError(ValueError):
    """A picture that cannot be used; SGLang answers a `ValueError` with status 400."""


def opened(data: bytes) -> Image.Image:
    """A picture of which only the header has been read.

    Raises:
        PictureError: there is no picture in the data, or one that is too large.
    """
    try:
        return Image.open(io.BytesIO(data))
    except UNDECODABLE as error:
        raise PictureError(f"Could not decode image: {error}") from error


def check(
    size: tuple[int, int], *, max_pixels: int = MAX_PIXELS, max_ratio: float | None = None
) -> None:
    """Refuse a size that would take too much memory, or that the model cannot see.

    Args:
        size: width and height in pixels, as the header says.
        max_pixels: most pixels that may be decoded.
        max_ratio: longest side over shortest that the model's processor takes; None: any.

    Raises:
        PictureError: with the size and the limit.
    """
    width, height = size
    stated = f"{width} x {height} pixels"
    if not width * height:
        raise PictureError(f"An image of {stated} is empty")
    if width * height > max_pixels:
        raise PictureError(f"An image of {stated} is larger than the limit of {max_pixels} pixels")
    ratio = max(size) / min(size)
    if max_ratio is not None and ratio > max_ratio:
        raise PictureError(
            f"An image of {stated} is too thin: absolute aspect ratio must be smaller than "
            f"{max_ratio:g}, got {ratio:g}"
        )


def upright(image: Image.Image) -> bool:
    """Whether it is stored as it is to be seen. May read the pixels: after `check`."""
    try:
        return image.getexif().get(ORIENTATION, 1) in (0, 1)
    except UNDECODABLE:
        # A damaged EXIF block does not spoil the pixels; damaged pixels show in `decoded`.
        return True


def decoded(image: Image.Image) -> Image.Image:
    """The same picture, its pixels read.

    Raises:
        PictureError: they cannot be.
    """
    try:
        image.load()
    except UNDECODABLE as error:
        raise PictureError(f"Could not decode image: {error}") from error
    return image


def mended(image: Image.Image, *, flat: bool) -> Image.Image:
    """A picture as people see it: upright, with 8 bits, on white.

    Args:
        image: decoded.
        flat: whether transparency is to go; a model may want to see it.

    Raises:
        PictureError: its metadata contradict its pixels.
    """
    try:
        if not upright(image):
            image = ImageOps.exif_transpose(image)
        if image.mode in DEEP_MODES:
            return _shallow(image)
        return _on_background(image) if flat and image.has_transparency_data else image
    except UNDECODABLE as error:
        raise PictureError(f"Could not convert image: {error}") from error


def estimated_pixels(source: object, *, unknown: int) -> int:
    """How many pixels a client's picture will have, from as little of it as possible.

    Args:
        source: what the client sent: a data URL, base64, or anything else.
        unknown: what to expect of what cannot be looked into, such as an address.
    """
    data: bytes | None = None
    if isinstance(source, bytes):
        data = source[:HEADER_BYTES]
    elif isinstance(source, str) and not source.startswith(("http://", "https://", "file://", "/")):
        start = source.find(",", 0, 256) + 1 if source.startswith("data:") else 0
        try:
            data = base64.b64decode(source[start : start + HEADER_BYTES // 3 * 4])
        except (binascii.Error, ValueError):
            return 0
    if data is None:
        return unknown
    try:
        image = opened(data)
    except PictureError:
        # It will be refused; until then it takes no more than it has.
        return 0
    return min(image.width * image.height, MAX_PIXELS)


def _shallow(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, of which Pillow's own conversion keeps the lowest values only."""
    values = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
    if image.mode != "I" or values.max(initial=0) > 0xFF:
        values >>= 8
    return Image.fromarray(values.astype(np.uint8))


def _on_background(image: Image.Image) -> Image.Image:
    translucent = image.convert("RGBA")
    background = Image.new("RGBA", translucent.size, (*BACKGROUND, 255))
    return Image.alpha_composite(background, translucent).convert("RGB")
