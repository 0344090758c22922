"""A bad picture is the client's error, says which picture it is, and harms nobody else."""

from __future__ import annotations

import base64
import io

import numpy as np
import openai
import pytest
from PIL import Image

from sglang_photon.demo import data_url
from sglang_photon.reference.models import pictures
from tests.server.asking import Ask, answer

SCENE = pictures.random_scene(np.random.default_rng(0), count=2)
PICTURE = pictures.render(SCENE, rng=np.random.default_rng(1))
GOOD = data_url(PICTURE)
MESSAGE_LIMIT = 600
"""Characters: a message may show the beginning of an address, never a whole picture."""


def encoded(image_format: str) -> bytes:
    buffer = io.BytesIO()
    PICTURE.save(buffer, format=image_format)
    return buffer.getvalue()


def as_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


BAD = {
    "truncated PNG": as_url(cut(encoded("PNG"))),
    "PNG without data": as_url(encoded("PNG")[:40]),
    "truncated JPEG": as_url(cut(encoded("JPEG")), "jpeg"),
    "zero bytes": as_url(b""),
    "text as PNG": as_url(b"This is not a picture. " * 100),
    "no comma": GOOD.replace(",", ""),
    "bad base64": "data:image/png;base64,@@@@not-base64@@@@",
    "bad padding": GOOD[:-3],
    "unknown scheme": "gopher://example/picture.png",
    "no scheme": "picture",
    "empty": "",
    "nobody listens": "http://127.0.0.1:9/picture.png",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_error_names_the_picture(client: openai.OpenAI, bad: str, stream: bool) -> None:
    ask = Ask(text="Describe the pictures.", images=(GOOD, bad, GOOD))
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**ask.request(), stream=stream)
    message = str(caught.value)
    assert 400 <= caught.value.status_code < 500, message
    # Counted from 0.
    assert "index 1" in message
    assert len(message) < MESSAGE_LIMIT
    good = Ask(text="Describe the picture.", images=(GOOD,), options={"max_tokens": 2})
    assert answer(client, good).completion_tokens


def test_a_bad_picture_does_not_disturb_a_request_in_flight(client: openai.OpenAI) -> None:
    options = {"max_tokens": 60, "extra_body": {"ignore_eos": True}}
    ask = Ask(text="Describe the picture.", images=(GOOD,), options=options)
    alone = answer(client, ask)
    with client.chat.completions.create(**ask.request(), stream=True) as stream:
        first = next(iter(stream))
        with pytest.raises(openai.BadRequestError):
            answer(client, Ask(text="And this?", images=(BAD["truncated PNG"],)))
        rest = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in (first, *rest) if chunk.choices]
    assert "".join(pieces) == alone.texts[0]


def test_an_unusable_size_is_the_clients_error(client: openai.OpenAI) -> None:
    sliver = data_url(Image.new("RGB", (1, 1000)))
    with pytest.raises(openai.BadRequestError, match="aspect ratio"):
        answer(client, Ask(text="Describe the picture.", images=(sliver,)))
