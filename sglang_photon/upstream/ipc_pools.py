"""Pools of device memory in SGLang's tokenizer process.

Every tensor in a pool says whose it is, and the pool is announced to the scheduler before the first
request, which then finds it open.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.multimodal.transport.cuda_ipc import MmItemMemoryPool

from sglang_photon.ipc.producers import PoolAnnouncement, Producer

PRODUCER = "photon_producer"
WRAP_TENSOR = MmItemMemoryPool.wrap_tensor
SET_STARTUP_TIME = TokenizerManager.set_startup_time


def install() -> None:
    """Have this process stamp its tensors and announce its pool."""
    MmItemMemoryPool.wrap_tensor = _wrap_tensor
    TokenizerManager.set_startup_time = _set_startup_time


def _wrap_tensor(pool: Any, tensor: Any, *, use_pool_handle_cache: bool) -> Any:
    proxy = WRAP_TENSOR(pool, tensor, use_pool_handle_cache=use_pool_handle_cache)
    if proxy is not None:
        proxy.proxy_state["ipc_extra"][PRODUCER] = tuple(Producer.this_process())
    return proxy


def _set_startup_time(manager: Any, startup_time: Any) -> None:
    """SGLang calls this once the scheduler is there, in the main process and in each worker."""
    SET_STARTUP_TIME(manager, startup_time)
    pool = getattr(manager.mm_processor, "cudaipc_mmfeature_pool", None)
    # SGLang's other encoding of messages knows only its own.
    if pool is not None and envs.SGLANG_USE_PICKLE_IPC.get():
        manager._dispatch_to_scheduler(
            PoolAnnouncement(Producer.this_process(), tuple(pool._pool_ipc_handle))
        )
