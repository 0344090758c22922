"""`make demo`: a real server, one question about a picture, one for a JSON box.

Starts the launcher with the embedded demo model, asks through the `openai` client as any user
would, and prints each question with its answer and where the time went.
"""

from __future__ import annotations

import base64
import io
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
from openai.types.chat import ChatCompletionContentPartParam
from PIL import Image

from sglang_photon.errors import PhotonError, report
from sglang_photon.reference.models import pictures
from sglang_photon.server_process import ServerProcess

MODEL = "demo"
PICTURE_SIZE = 448
SCENE = (
    pictures.Shape(shape="circle", colour="red", column=2, row=0),
    pictures.Shape(shape="square", colour="blue", column=1, row=3),
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer as it arrived.

    Attributes:
        text: the whole answer.
        first_token_s: seconds from sending to the first piece of text.
        total_s: seconds from sending to the end.
        tokens: generated tokens, as the server counts them.
    """

    text: str
    first_token_s: float
    total_s: float
    tokens: int

    def timing(self) -> str:
        """Where the time went, in words."""
        return (
            f"{self.total_s * 1e3:.0f} ms: {self.first_token_s * 1e3:.0f} ms until the first text "
            f"(image processing, prefill), {(self.total_s - self.first_token_s) * 1e3:.0f} ms more "
            f"until the end; {self.tokens} tokens"
        )


def main() -> int:
    """Run the demo; returns 0 when both questions were answered."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Leave the block that stops the server.
    folder = Path(tempfile.mkdtemp(prefix="sglang-photon-demo-"))
    picture = folder / "picture.png"
    image = pictures.render(SCENE, size=PICTURE_SIZE, rng=np.random.default_rng(0))
    image.save(picture)
    print(f"Starting SGLang with Photon's scheduler and the demo model (log: {folder}/server.log)")
    try:
        with ServerProcess(["--model-path", MODEL], log=folder / "server.log") as server:
            print(f"Ready after {server.start_s:.1f} s at {server.url}\n")
            _show(server.url, picture, image)
    except PhotonError as error:
        return report(error)
    except openai.OpenAIError as error:
        return report(PhotonError(f"The demo server did not answer ({error})", f"See {folder}"))
    print("Server stopped. `make serve` keeps one running.")
    return 0


def ask(url: str, image: Image.Image, question: str, **options: Any) -> Answer:
    """Ask one question about a picture over HTTP, streaming.

    Args:
        url: the server's root.
        image: the picture; travels as a PNG data URL.
        question: plain text.
        options: further fields of the chat completion request.
    """
    content: list[ChatCompletionContentPartParam] = [
        {"type": "image_url", "image_url": {"url": data_url(image)}},
        {"type": "text", "text": question},
    ]
    sent = time.perf_counter()
    first = None
    pieces: list[str] = []
    tokens = 0
    direct = httpx.Client(trust_env=False)  # A proxy has no part in this.
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=direct) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                first = first or time.perf_counter()
                pieces.append(chunk.choices[0].delta.content)
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
    ended = time.perf_counter()
    return Answer(
        text="".join(pieces),
        first_token_s=(first or ended) - sent,
        total_s=ended - sent,
        tokens=tokens,
    )


def data_url(image: Image.Image) -> str:
    """The picture as a PNG in a `data:` URL."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _show(url: str, picture: Path, image: Image.Image) -> None:
    schema = {"name": "box", "schema": pictures.SCHEMAS["box"], "strict": True}
    constrained = {"response_format": {"type": "json_schema", "json_schema": schema}}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("What is in the picture?", {}),
        ("Give the bounding box of the red circle.", constrained),
    ]
    for text, options in questions:
        answer = ask(url, image, text, **options)
        print(f"picture   {picture}")
        print(f"question  {text}{'  (answer constrained by a JSON schema)' if options else ''}")
        print(f"answer    {answer.text}")
        print(f"time      {answer.timing()}\n")


if __name__ == "__main__":
    sys.exit(main())
