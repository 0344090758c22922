"""Pictures that cannot be used: the client's error, which names the picture, before the scheduler.

The public reports that ask for it are named by their ids.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from sglang_photon.demo import data_url
from tests.server.asking import Ask, answer
from tests.server.servers import Running
from tests.server.test_bad_pictures import GOOD, MESSAGE_LIMIT, PICTURE, as_url, encoded

PLACE = "<|vision_start|><|image_pad|><|vision_end|>"


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG file that would be enormous."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b""))


REFUSED = {
    "mm-03 JPEG minus 128 bytes": as_url(encoded("JPEG")[:-128], "jpeg"),
    "mm-03 zero bytes": as_url(b""),
    "mm-03 text": as_url(b"This is not a picture."),
    "bomb": as_url(png_header(60_000, 60_000)),
    "above the limit": as_url(png_header(10_000, 9_000)),
    "thin": data_url(Image.new("RGB", (1, 10_000))),
    "missing file": "file:///no/such/picture.png",
    "missing path": "/no/such/picture.png",
    "a folder": "file:///",
    "not base64 in a data URL": "data:image/png,<svg/>",
    "line breaks in base64": GOOD[:200] + "\n" + GOOD[200:],
    "a number": "1234567",
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
def test_the_error_names_the_picture(auto: Running, bad: str) -> None:
    before = auto.log
    ask = Ask(text="Describe the pictures.", images=(GOOD, bad, GOOD))
    with pytest.raises(openai.BadRequestError, match="index 1") as caught:
        answer(auto.client, ask)
    assert len(str(caught.value)) < MESSAGE_LIMIT
    new = auto.log.removeprefix(before)
    assert "Traceback" not in new
    assert not [line for line in new.splitlines() if len(line) > 2 * MESSAGE_LIMIT]


def test_a_small_picture_and_a_wrong_mime_type_are_served(client: openai.OpenAI) -> None:
    for url in (data_url(Image.new("RGB", (1, 1))), as_url(encoded("JPEG"), "gif")):
        ask = Ask(text="Describe the picture.", images=(url,), options={"max_tokens": 2})
        assert answer(client, ask).completion_tokens


class _Site(BaseHTTPRequestHandler):
    """A web site that is slow, or sends elsewhere."""

    released = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.released.wait(30)
            return
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:9/private.png")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Tests read no log of the site."""


@pytest.fixture
def site() -> Iterator[str]:
    _Site.released.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    _Site.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("path", ["/slow", "/elsewhere"])
def test_an_address_that_leads_nowhere_is_the_clients_error(
    client: openai.OpenAI, site: str, path: str
) -> None:
    ask = Ask(text="Describe the pictures.", images=(GOOD, f"{site}{path}"))
    with pytest.raises(openai.BadRequestError, match="index 1"):
        answer(client, ask)


def generate(url: str, text: str, images: list[str]) -> httpx.Response:
    body: dict[str, Any] = {
        "text": text,
        "sampling_params": {"max_new_tokens": 2, "temperature": 0},
    }
    if images:
        body["image_data"] = images
    return httpx.post(f"{url}/generate", json=body, timeout=60)


@pytest.mark.parametrize(("places", "pictures"), [(2, 1), (0, 1), (1, 0), (1, 2)], ids=str)
def test_mm_22_places_and_pictures_must_match(auto: Running, places: int, pictures: int) -> None:
    reply = generate(auto.url, f"{PLACE * places} what is it?", [GOOD] * pictures)
    assert reply.status_code == 400, reply.text
    assert "image" in json.dumps(reply.json())
    assert generate(auto.url, f"{PLACE} what is it?", [GOOD]).status_code == 200


def jpeg_turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", exif=exif.tobytes(), quality=95)
    return buffer.getvalue()


def test_mm_05_orientation_changes_the_prompt_as_the_turned_picture_does(auto: Running) -> None:
    wide = PICTURE.resize((240, 160))
    upright = Image.open(io.BytesIO(jpeg_turned(wide, 1)))
    upright.load()
    counts = {}
    for name, url in (
        ("turned by EXIF", as_url(jpeg_turned(wide, 6), "jpeg")),
        ("turned pixels", data_url(upright.rotate(270, expand=True))),
    ):
        reply = generate(auto.url, f"{PLACE} Describe the picture.", [url])
        counts[name] = (reply.json()["meta_info"]["prompt_tokens"], reply.json()["text"])
    assert counts["turned by EXIF"] == counts["turned pixels"]


def test_a_file_is_served(auto: Running, tmp_path: Path) -> None:
    path = tmp_path / "a picture.png"
    path.write_bytes(base64.b64decode(GOOD.partition(",")[2]))
    reply = generate(auto.url, f"{PLACE} Describe the picture.", [path.as_uri()])
    assert reply.status_code == 200, reply.text
