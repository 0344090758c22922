"""Pictures that are broken in every way: refused by a name, never by a crash."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sglang_photon.batch import pictures
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.rows import RowError


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((24, 24), 50).save(buffer, kind)
    return buffer.getvalue()


FILES = {kind: encoded(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")}
MEDIA = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tiff"}


@pytest.mark.parametrize("kind", FILES)
def test_the_type_is_told_by_the_first_bytes(kind: str) -> None:
    url = pictures.data_url(FILES[kind], "any.name", Bounds())
    assert url.startswith(f"data:image/{MEDIA[kind]};base64,")
    assert pictures.checked_data_url(url, Bounds()) == url
    assert pictures.from_data_url(url, Bounds()) == FILES[kind]
    unnamed = url.replace(f"image/{MEDIA[kind]}", "application/octet-stream")
    assert pictures.checked_data_url(unnamed, Bounds()) == url


def code_of(check: Callable[[], object]) -> str:
    """With what a picture is refused; empty if it is not."""
    try:
        check()
    except RowError as error:
        return error.code
    return ""


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.sampled_from(sorted(FILES)), st.data())
@settings(max_examples=300, deadline=None)
def test_broken_files_are_refused_or_taken(kind: str, data: st.DataObject) -> None:
    content = bytearray(FILES[kind])
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(content[: data.draw(st.integers(0, len(content)))])
    codes = (
        code_of(lambda: pictures.kind_of(broken, "x", Bounds())),
        code_of(lambda: pictures.decode(broken, "x")),
    )
    assert set(codes) <= {"", "picture_unreadable", "picture_too_large"}


def test_a_bomb_is_refused_by_its_header() -> None:
    header = bytearray(encoded("PNG"))
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(RowError) as caught:
        pictures.kind_of(bytes(header), "bomb.png", Bounds())
    assert caught.value.code in ("picture_too_large", "picture_unreadable")
