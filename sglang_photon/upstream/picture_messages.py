"""Messages of the tokenizer process about pictures, recorded: made by SGLang's own processor.

What the tokenizer process does with a picture (resize, normalise, cut into patches, find positions,
hash) is done once per kind of request. Each message then gets its own id, its own segments in
shared memory and its own content hash.
"""

from __future__ import annotations

import array
import asyncio
import copy
import hashlib
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from sglang.srt.managers.mm_utils import ShmPointerMMData
from sglang.srt.managers.multimodal_processor import get_mm_processor, import_processors
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils.hf_transformers_utils import get_processor
from sglang.srt.utils.stale_shm_cleanup import make_shm_name

from sglang_photon.bench.feeder import Message, Segment
from sglang_photon.upstream.requests import tokenized


class PictureMessages:
    """Makes messages for a scheduler in this process.

    Args:
        scheduler: whose model the messages are for.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        args = scheduler.server_args
        import_processors("sglang.srt.multimodal.processors")
        self._processor = get_mm_processor(
            scheduler.model_config.hf_config, args, get_processor(args.model_path), "default"
        )
        self._outputs: dict[tuple[int, int], Any] = {}
        self._serial = 0

    def close(self) -> None:
        """End the processor's threads."""
        self._processor.shutdown()

    def text(self, *, due: float, prompt: int, tokens: int) -> Message:
        """A streaming text request of that many prompt and answer tokens."""
        self._serial += 1
        ids = array.array("q", range(self._serial, self._serial + prompt))
        frame = self._frame(f"text-{self._serial}", ids, None, tokens)
        return Message(due=due, frame=frame)

    def pictures(self, *, due: float, count: int, size: int, tokens: int, hashed: bool) -> Message:
        """A streaming request with `count` square pictures of `size` pixels.

        Args:
            due: seconds after the start.
            count: pictures.
            size: of one side, in pixels.
            tokens: of the answer.
            hashed: whether the tokenizer process has hashed the pixels.
        """
        self._serial += 1
        output = copy.copy(self._output(count, size))
        output.mm_items = [copy.copy(item) for item in output.mm_items]
        segments = []
        for item in output.mm_items:
            item.model_specific_data = dict(item.model_specific_data)
            feature, stamp = item.feature, self._serial * 100 + len(segments)
            if hashed:
                item.set_hash(int.from_bytes(hashlib.sha256(str(stamp).encode()).digest()[:8]))
            name = make_shm_name("mm")
            segments.append(Segment(name=name, nbytes=feature.nbytes, stamp=stamp))
            item.feature = _pointer(name, feature, item.hash)
        ids = array.array("q", output.input_ids)
        frame = self._frame(f"pictures-{self._serial}", ids, output, tokens)
        return Message(due=due, frame=frame, segments=tuple(segments))

    def _output(self, count: int, size: int) -> Any:
        if (count, size) not in self._outputs:
            generator = np.random.default_rng(size)
            images = [
                Image.fromarray(generator.integers(0, 256, (size, size, 3), dtype=np.uint8))
                for _ in range(count)
            ]
            token = self._processor.mm_tokens.image_token
            request = SimpleNamespace(video_data=None, audio_data=None, rid="recorded")
            self._outputs[count, size] = asyncio.run(
                self._processor.process_mm_data_async(
                    image_data=images,
                    input_text=f"{token * count} what is it?",
                    request_obj=request,
                )
            )
        return self._outputs[count, size]

    def _frame(self, rid: str, ids: Any, mm_inputs: Any, tokens: int) -> bytes:
        params = SamplingParams(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)
        params.normalize(self._scheduler.tokenizer)
        message = tokenized(rid=rid, ids=ids, params=params, mm_inputs=mm_inputs)
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _pointer(name: str, feature: Any, item_hash: int | None) -> ShmPointerMMData:
    """What the tokenizer process sends of a tensor; the segment itself is written later."""
    pointer = ShmPointerMMData.__new__(ShmPointerMMData)
    pointer._shm_handle = pointer.tensor = pointer._materialization_error = None
    pointer.shm_name, pointer.precomputed_hash = name, item_hash
    pointer.shape, pointer.dtype = feature.shape, feature.dtype
    return pointer
