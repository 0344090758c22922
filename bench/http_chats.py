"""Image chats over HTTP with a real server on this CPU: what the tokenizer process delivers."""

from __future__ import annotations

import base64
import io
import json
import os
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from sglang_photon.server_process import ServerProcess

MODEL = "demo"
SIZE, REQUESTS, AT_ONCE = 1024, 64, 8


def requests_per_second() -> float:
    """Chats per second, each with a picture of its own and a short answer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(
            ["--model-path", MODEL], log=Path(folder) / "server.log", environ=dict(os.environ)
        ) as server,
        ThreadPoolExecutor(AT_ONCE) as clients,
    ):
        bodies = [_body(number) for number in range(REQUESTS + AT_ONCE)]
        url = f"{server.url}/v1/chat/completions"
        list(clients.map(lambda body: _ask(url, body), bodies[:AT_ONCE]))
        began = time.perf_counter()
        list(clients.map(lambda body: _ask(url, body), bodies[AT_ONCE:]))
        return REQUESTS / (time.perf_counter() - began)


def _ask(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()


def _body(number: int) -> bytes:
    image = Image.effect_noise((64, 64), 40 + number).convert("RGB").resize((SIZE, SIZE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Describe the picture."},
    ]
    message = {
        "model": MODEL,
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": content}],
    }
    return json.dumps(message).encode()
