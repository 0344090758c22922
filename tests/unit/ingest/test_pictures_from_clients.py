"""Pictures of every kind that clients send: refused from the header, or seen as people see them."""

from __future__ import annotations

import base64
import io
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sglang_photon.ingest import pictures
from sglang_photon.ingest.pictures import BACKGROUND, PictureError

RED = (200, 30, 20)


def saved(image: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format, **options)
    return buffer.getvalue()


def seen(data: bytes, *, flat: bool = True) -> np.ndarray:
    """What the model's processor gets, as RGB."""
    image = pictures.mended(pictures.decoded(pictures.opened(data)), flat=flat)
    return np.asarray(image.convert("RGB"))


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.stack([rows * 12, columns * 9, rows + columns], axis=-1)
    return Image.fromarray(values.astype(np.uint8))


TURNS: dict[int, Callable[[Any], Any]] = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, k=-1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels, k=1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_mm_05_a_picture_is_turned_as_exif_says(orientation: int, image_format: str) -> None:
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = orientation
    data = saved(gradient(), image_format, exif=exif.tobytes())
    stored = np.asarray(pictures.decoded(pictures.opened(data)))
    assert stored.shape == (16, 24, 3)
    assert (seen(data) == TURNS[orientation](stored)).all()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_exif_block_does_not_spoil_the_picture() -> None:
    data = saved(gradient(), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff garbage")
    assert seen(data).shape == (16, 24, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_mm_06_transparent_pixels_show_the_background(mode: str) -> None:
    image = Image.new("RGBA", (2, 1))
    image.putpixel((0, 0), (*RED, 255))
    image.putpixel((1, 0), (*RED, 0))
    pixels = seen(saved(image.convert(mode)))
    assert tuple(pixels[0, 1]) == BACKGROUND
    assert tuple(pixels[0, 0]) != BACKGROUND


def test_mm_06_half_transparent_is_half_background() -> None:
    pixels = seen(saved(Image.new("RGBA", (1, 1), (0, 0, 0, 128))))
    assert pixels[0, 0] == pytest.approx([127, 127, 127], abs=1)


def test_mm_06_a_palette_with_a_transparent_entry() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, 10, 20, 30])
    image.putpixel((1, 0), 1)
    pixels = seen(saved(image, transparency=1))
    assert tuple(pixels[0, 0]) == RED
    assert tuple(pixels[0, 1]) == BACKGROUND


def test_mm_06_a_palette_without_transparency() -> None:
    image = Image.new("P", (1, 1))
    image.putpalette(RED)
    assert tuple(seen(saved(image))[0, 0]) == RED


def test_mm_06_one_bit() -> None:
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    assert seen(saved(image)).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_mm_06_grey_of_16_bits_keeps_its_shades() -> None:
    values = np.array([[0, 0x4000, 0x8000, 0xFFFF]], dtype=np.uint16)
    for image_format in ("PNG", "TIFF"):
        pixels = seen(saved(Image.fromarray(values), image_format))
        assert pixels[0, :, 0].tolist() == [0, 0x40, 0x80, 0xFF]


def test_mm_06_cmyk() -> None:
    pixels = seen(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = pixels[4, 4].astype(int)
    assert red > 200 > green
    assert red > 200 > blue


def test_a_model_that_wants_transparency_gets_it() -> None:
    image = pictures.opened(saved(Image.new("RGBA", (1, 1), (*RED, 7))))
    assert pictures.mended(pictures.decoded(image), flat=False).mode == "RGBA"


def bomb(width: int, height: int) -> bytes:
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, content in ((b"IHDR", size), (b"IDAT", zlib.compress(b""))):
        body = kind + content
        parts.append(struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body)))
    return b"".join(parts)


@pytest.mark.parametrize("size", [(60_000, 60_000), (9_460, 9_460)])
def test_a_bomb_is_refused_from_its_header(size: tuple[int, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(PictureError, match=r"limit|decompression bomb"):
            pictures.check(pictures.opened(bomb(*size)).size)


@pytest.mark.parametrize("data", [b"", b"text", saved(gradient())[:30]])
def test_what_is_no_picture_is_an_error_of_the_client(data: bytes) -> None:
    with pytest.raises(PictureError):
        pictures.decoded(pictures.opened(data))


def test_mm_03_a_cut_picture_is_an_error_of_the_client() -> None:
    for image_format in ("JPEG", "PNG", "GIF", "WEBP", "TIFF"):
        data = saved(gradient(200, 200), image_format)
        with pytest.raises(PictureError):
            pictures.decoded(pictures.opened(data[: len(data) // 2]))


def test_a_size_that_the_model_cannot_see_is_named() -> None:
    pictures.check((200, 1), max_ratio=200)
    with pytest.raises(PictureError, match="1 x 10000 pixels is too thin"):
        pictures.check((1, 10_000), max_ratio=200)
    with pytest.raises(PictureError, match="empty"):
        pictures.check((0, 7))


def test_sizes_are_estimated_from_headers() -> None:
    data = saved(gradient(30, 20))
    text = base64.b64encode(data).decode()
    for source in (data, text, f"data:image/png;base64,{text}"):
        assert pictures.estimated_pixels(source, unknown=7) == 600
    for address in ("http://host/picture.png", "file:///picture.png", "/picture.png"):
        assert pictures.estimated_pixels(address, unknown=7) == 7
    for broken in (b"", "data:image/png;base64,@@@", "picture"):
        assert pictures.estimated_pixels(broken, unknown=7) == 0


def test_the_estimate_reads_the_beginning_only() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    text = base64.b64encode(saved(Image.fromarray(noise))).decode()
    assert len(text) > 4 * pictures.HEADER_BYTES
    assert pictures.estimated_pixels(text, unknown=0) == 360_000
