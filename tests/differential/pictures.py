"""Pictures in requests: what the tokenizer process would have made of them, made here."""

from __future__ import annotations

import asyncio
import copy
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from sglang.srt.managers.multimodal_processor import get_mm_processor, import_processors
from transformers import AutoProcessor

RANDOM_VLM = "demo:random:qwen2.5-vl,hidden=64,layers=1,vocab=1024,vision_hidden=64,vision_layers=1"
"""As tiny as the text model, and with the same vocabulary."""

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
SIZES = ((56, 56), (84, 56), (112, 84), (140, 112))
"""Width and height in pixels: 4 to 20 tokens."""


def picture(number: int) -> Image.Image:
    """A picture of noise; another number is another one."""
    width, height = SIZES[number % len(SIZES)]
    noise = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def prepared(scheduler: Any, numbers: tuple[int, ...], prompt: tuple[int, ...]) -> Any:
    """SGLang's output for pictures and the prompt after them, to be used once.

    The prompt is shown as text: not every sequence of tokens survives that, but each becomes the
    same one every time.
    """
    path = scheduler.server_args.model_path
    text = PICTURE * len(numbers) + scheduler.tokenizer.decode(prompt)
    # The scheduler pads, moves and releases what it gets.
    return copy.deepcopy(_processed(path, numbers, text, _Where(scheduler)))


class _Where:
    """A scheduler, the same as any other to a cache: the model's path says which it is."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Where)

    def __hash__(self) -> int:
        return 0


@functools.cache
def _processed(path: str, numbers: tuple[int, ...], text: str, where: _Where) -> Any:
    processor = _processor(path, where)
    request = SimpleNamespace(video_data=None, audio_data=None, mm_content_hashes=None)
    return asyncio.run(
        processor.process_mm_data_async(
            image_data=[picture(number) for number in numbers],
            audio_data=None,
            input_text=text,
            request_obj=request,
            max_req_input_len=10**6,
        )
    )


@functools.cache
def _processor(path: str, where: _Where) -> Any:
    import_processors("sglang.srt.multimodal.processors")
    scheduler = where.scheduler
    return get_mm_processor(
        scheduler.model_config.hf_config,
        scheduler.server_args,
        AutoProcessor.from_pretrained(path),
        "default",
    )
