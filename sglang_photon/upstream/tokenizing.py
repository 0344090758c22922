"""What a picture costs the tokenizer process, and what it must not cost the scheduler.

- The content hash is computed here, while the pixels are still an ordinary tensor: on the host in
  the thread that prepared them, on a device before the tensor is handed over. It is the number that
  the scheduler would compute, from the same bytes, so cache keys are the same.
- Pixels are copied into shared memory in a thread. On the event loop, the copy of one picture would
  stall the streams of all other clients of this process.

Installed in the process of SGLang's tokenizer manager: the main one, or each tokenizer worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.mm_utils import discard_shm_features, wrap_shm_features
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.multimodal.cache import resolve_multimodal_item_hash
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from sglang.srt.runtime_context import get_mm

from sglang_photon.config import PhotonConfig
from sglang_photon.upstream import admission, ipc_pools, pictures
from sglang_photon.upstream.signatures import TOKENIZER, check_signatures

PRECOMPUTE_HASHES = BaseMultimodalProcessor._precompute_hashes_before_cpu_transfer
SEND_ONE_REQUEST = TokenizerManager._send_one_request
HASH_IN_TOKENIZER = "SGLANG_MM_PRECOMPUTE_HASH"


def install(config: PhotonConfig) -> None:
    """Change SGLang's tokenizer in this process; again changes nothing more.

    Args:
        config: of this server.

    Raises:
        PhotonError: SGLang's internals have moved.
    """
    if TokenizerManager._send_one_request is _send_one_request:
        return
    check_signatures(TOKENIZER)
    admission.install(config)
    ipc_pools.install()
    pictures.install(config)
    os.environ.setdefault(HASH_IN_TOKENIZER, "1")
    BaseMultimodalProcessor._precompute_hashes_before_cpu_transfer = _precompute_hashes
    TokenizerManager._send_one_request = _send_one_request


def _precompute_hashes(processor: Any, items: list[Any]) -> None:
    """Hash what is where it will be transported from.

    Only the hash: pad values follow from it, and SGLang sets them where it always does.
    """
    PRECOMPUTE_HASHES(processor, items)
    if envs.SGLANG_MM_SKIP_COMPUTE_HASH.get() or not envs.SGLANG_MM_PRECOMPUTE_HASH.get():
        return
    beside_the_loop = processor.mm_processor_executor is not None
    for item in items:
        feature = item.feature if item.feature is not None else item.precomputed_embeddings
        if item.hash is None and _is_tensor(feature, on_host=beside_the_loop):
            item.hash = resolve_multimodal_item_hash(feature=feature)


def _is_tensor(feature: Any, *, on_host: bool) -> bool:
    """Whether to hash it now: on a device always, on the host where that is beside the loop."""
    if isinstance(feature, list | tuple):
        return bool(feature) and all(_is_tensor(part, on_host=on_host) for part in feature)
    return isinstance(feature, torch.Tensor) and (on_host or not feature.is_cpu)


async def _send_one_request(manager: Any, request: Any) -> None:
    """Copy the pixels in a thread, then send; what was not sent leaves no shared memory."""
    if not _has_pixels(request) or get_mm().mm_feature_transport == "cuda_vmm":
        await SEND_ONE_REQUEST(manager, request)
        return
    try:
        await _to_the_end(asyncio.to_thread(wrap_shm_features, request))
        await SEND_ONE_REQUEST(manager, request)
    except BaseException:
        state = manager.rid_to_state.get(request.rid)
        if state is None or not state.dispatched:
            discard_shm_features(request)
        raise


def _has_pixels(request: Any) -> bool:
    inputs = request.mm_inputs
    return inputs is not None and any(
        _is_tensor(part, on_host=True)
        for item in inputs.mm_items
        for part in (item.feature, item.precomputed_embeddings)
    )


async def _to_the_end(work: Awaitable[Any]) -> None:
    """Wait for work in a thread, which cannot be cancelled, then be cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Its own failure matters no more, but must be asked for.
        task.exception()
        raise cancelled
    task.result()
