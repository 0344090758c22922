"""Requests with pictures take a share of a budget of host memory before anything is decoded.

The share is first what the pictures will take at most while they are decoded, judged by their
headers, and then what their tensors take on the host. It is given back when the request ends, in
whatever way. Requests without pictures are not touched.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch
from fastapi import HTTPException
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.runtime_context import get_serving
from sglang.srt.utils import ImageData

from sglang_photon.config import PhotonConfig
from sglang_photon.ingest.budget import (
    RETRY_AFTER_S,
    BudgetExceededError,
    ByteBudget,
    Share,
)
from sglang_photon.ingest.pictures import estimated_pixels

logger = logging.getLogger(__name__)

GENERATE_REQUEST = TokenizerManager.generate_request

DECODED_BYTES = 6
"""Per pixel: as decoded, and once more as the processor's input."""
PROCESSED_BYTES = 24
"""Per pixel that the model sees: three channels of float32, twice as Qwen's patches have them."""
UNKNOWN_PIXELS = 4_000_000
"""Expected of pictures behind an address."""
AUTOMATIC_SHARE = 4
"""Without a setting: one part in so many of the machine's memory."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SHARE = "photon_share"


def install(config: PhotonConfig) -> None:
    """Bound the memory of pictures in this process, one of possibly several tokenizer workers."""

    @functools.cache
    def budget() -> ByteBudget:
        # With the first picture: SGLang has published its settings by then.
        total = config.mm_budget_mb * 1_000_000 or _memory() // AUTOMATIC_SHARE
        made = ByteBudget(limit=total // max(1, get_serving().tokenizer_worker_num))
        logger.info("sglang-photon: %d MB of host memory for images", made.limit // 1_000_000)
        return made

    async def generate_request(
        manager: Any, obj: Any, request: Any = None
    ) -> AsyncIterator[dict[str, Any]]:
        share = await _admit(budget, manager, obj)
        try:
            async with aclosing(GENERATE_REQUEST(manager, obj, request)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            if share is not None:
                share.release()

    TokenizerManager.generate_request = generate_request


def tensors_made(obj: Any, mm_inputs: Any) -> None:
    """The pictures of a request are tensors now: that is what they take from here on."""
    share = getattr(obj, SHARE, None)
    if share is not None and mm_inputs is not None:
        share.shrink(sum(_host_bytes(item) for item in mm_inputs.mm_items))


async def _admit(budget: Callable[[], ByteBudget], manager: Any, obj: Any) -> Share | None:
    sources = list(_sources(getattr(obj, "image_data", None)))
    if not sources or manager.mm_processor is None:
        return None
    most = _seen_pixels(manager.mm_processor)
    wanted = 0
    for source in sources:
        pixels = estimated_pixels(source, unknown=UNKNOWN_PIXELS)
        wanted += pixels * DECODED_BYTES + min(pixels, most) * PROCESSED_BYTES
        wanted += len(source) if isinstance(source, str | bytes) else 0
    try:
        share = await budget().take(wanted)
    except BudgetExceededError as error:
        raise HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE,
            detail=str(error),
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from error
    if getattr(obj, "batch_size", 1) in (None, 1):
        setattr(obj, SHARE, share)
    return share


def _sources(image_data: Any) -> Iterator[Any]:
    """Everything that is one picture, in whatever lists."""
    if isinstance(image_data, list | tuple):
        for part in image_data:
            yield from _sources(part)
    elif image_data is not None:
        yield image_data.url if isinstance(image_data, ImageData) else image_data


def _seen_pixels(processor: Any) -> int:
    """How many pixels of a picture reach the model, at most."""
    image_processor = getattr(processor._processor, "image_processor", None)
    size = getattr(image_processor, "size", None) or {}
    found = processor.image_config.get("max_pixels") or getattr(image_processor, "max_pixels", None)
    if not found and "shortest_edge" in size:
        found = size.get("longest_edge")
    return int(found) if found else 1 << 62


def _host_bytes(item: Any) -> int:
    parts = (item.feature, item.precomputed_embeddings)
    flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    return sum(one.nbytes for one in flat if isinstance(one, torch.Tensor) and one.is_cpu)


def _memory() -> int:
    """Bytes of memory that this container or machine has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


class RetryAfter:
    """ASGI middleware: an overloaded server says when to come back.

    SGLang's OpenAI handlers keep the status of an error and drop its headers.

    Args:
        app: the application.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""

        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == (
                HTTPStatus.SERVICE_UNAVAILABLE
            ):
                names = {name.lower() for name, _ in message["headers"]}
                if b"retry-after" not in names:
                    header = (b"retry-after", str(RETRY_AFTER_S).encode())
                    message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await self._app(scope, receive, send_with_header)


def add_middleware(app: Any) -> None:
    """Once per application."""
    if all(entry.cls is not RetryAfter for entry in app.user_middleware):
        app.add_middleware(RetryAfter)
