"""The measurements of `photon bench ipc`: SGLang's reconstruct code, with three ways to a pool."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from sglang.srt.multimodal.transport import cuda_ipc
from sglang.srt.multimodal.transport.cuda_ipc import (
    CudaIpcTensorTransportProxy,
    MmItemMemoryPool,
)

from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.opener import StorageOpener
from sglang_photon.ipc.producers import Producer
from sglang_photon.upstream import fake_device
from sglang_photon.upstream.ipc_binding import IpcBinding
from sglang_photon.upstream.ipc_pools import PRODUCER

POOL_BYTES = 64 << 20
TENSOR_BYTES = 4096
SLOTS = 4096
BATCH = 512
"""Tensors that are sent together: fewer than a pool has slots."""


def driver_name(*, open_us: float, wait_us: float) -> str:
    """What stands under the figures."""
    if torch.cuda.is_available():
        return f"CUDA, {torch.cuda.get_device_name()}, another process's pools"
    return f"a stand-in: {open_us:g} us to open, {wait_us:g} us to wait for a stream"


def measure(
    *, way: str, tensors: int, pools: int, open_us: float, wait_us: float
) -> dict[str, float]:
    """Take that many tensors from that many pools, in turn."""
    opens = _Opens()
    with ExitStack() as stack:
        if torch.cuda.is_available():
            sources = [stack.enter_context(_process()) for _ in range(pools)]
            cuda, new_storage = torch.cuda, torch.UntypedStorage._new_shared_cuda
        else:
            cuda = stack.enter_context(_stand_in(wait_us * 1e-6))
            new_storage = _slow(fake_device.open_storage, open_us * 1e-6)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sources = [_pool(folder / str(number)) for number in range(pools)]
        opens.call = new_storage
        if way == "cache":
            opener = StorageOpener(new_storage=opens)
            cache: HandleCache[Any] = HandleCache(opener=opener, max_entries=64, max_bytes=1 << 40)
            binding = IpcBinding(device=0, cuda=cuda, cache=cache, opener=opener)
            stack.enter_context(binding.bound())
        else:
            _replaced(stack, cuda_ipc, "_open_pooled_storage_uncached", lambda h: opens(*h))
            cuda_ipc._pool_handle_cache_clear()
            stack.callback(cuda_ipc._pool_handle_cache_clear)
        taken = _take(sources, tensors, cached=way != "off")
    return {**taken, "opens": opens.count, "hits": tensors - opens.count}


def _take(
    sources: list[Callable[[int], list[Any]]], tensors: int, *, cached: bool
) -> dict[str, float]:
    seconds, first, done = 0.0, 0.0, 0
    while done < tensors:
        sent = min(BATCH, tensors - done)
        lists = [source(sent // len(sources) + 1) for source in sources]
        proxies = [proxy for group in zip(*lists, strict=True) for proxy in group][:sent]
        for proxy in proxies:
            proxy.proxy_state["ipc_extra"]["use_pool_handle_cache"] = cached
        began = time.perf_counter()
        for number, proxy in enumerate(proxies):
            proxy.reconstruct_on_target_device(0)
            if not done and not number:
                first = time.perf_counter() - began
        seconds += time.perf_counter() - began
        done += sent
    return {"us_per_tensor": seconds / tensors * 1e6, "us_first": first * 1e6}


class _Opens:
    """Counts opens."""

    def __init__(self) -> None:
        self.count = 0
        self.call: Any = None

    def __call__(self, *handle: Any) -> Any:
        self.count += 1
        return self.call(*handle)


def _slow(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return call(*args)

    return slow


@contextmanager
def _stand_in(wait_s: float) -> Iterator[Any]:
    """CUDA's place taken, and put back."""
    with ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            _replaced(stack, owner, name, value)

        cuda = fake_device.replace(replace)
        cuda.usual.synchronize = _slow(lambda: None, wait_s)
        yield cuda


def _replaced(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _pool(path: Path) -> Callable[[int], list[Any]]:
    """A producer in this process: a file, with every tensor at its beginning."""
    memory = fake_device.Memory(path, POOL_BYTES)
    fake_device.word(memory.storage.data_ptr()).value = 1
    data = torch.zeros(TENSOR_BYTES, dtype=torch.uint8)

    def send(count: int) -> list[Any]:
        made = [
            CudaIpcTensorTransportProxy(
                data=data,
                info_data=data,
                pool_ipc_handle=memory.handle(),
                pool_byte_offset=256,
                ready_byte_offset=0,
                ack_byte_offset=4,
                generation=1,
                total_consumer_count=1,
                use_pool_handle_cache=True,
            )
            for _ in range(count)
        ]
        for proxy in made:
            proxy.proxy_state["ipc_extra"][PRODUCER] = tuple(Producer.this_process())
        return made

    return send


@contextmanager
def _process() -> Iterator[Callable[[int], list[Any]]]:
    """A producer in a process of its own, with a real pool."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there,), daemon=True)
    process.start()

    def send(count: int) -> list[Any]:
        here.send(count)
        proxies: list[Any] = here.recv()
        return proxies

    try:
        yield send
    finally:
        here.send(0)
        process.join()


def _serve(connection: Any) -> None:
    pool = MmItemMemoryPool(POOL_BYTES, 0.01, 0, 1, SLOTS)
    tensor = torch.zeros(TENSOR_BYTES, dtype=torch.uint8, device="cuda:0")
    while count := connection.recv():
        proxies: list[Any] = []
        while len(proxies) < count:
            # None while the last ones are not acknowledged yet.
            proxy = pool.wrap_tensor(tensor, use_pool_handle_cache=True)
            if proxy is not None:
                proxy.proxy_state["ipc_extra"][PRODUCER] = tuple(Producer.this_process())
                proxies.append(proxy)
        torch.cuda.synchronize()
        connection.send(proxies)
    pool.shutdown()
