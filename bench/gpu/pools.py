"""A memory pool in one process and what opens it in another: CUDA IPC, or shared memory without.

`serve` is the producer's process; the part itself is the consumer. Without CUDA a segment of shared
memory takes the pool's place, so that the processes, the cache and the killing are rehearsed.
"""

from __future__ import annotations

import os
import pickle
import struct
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

import torch

from sglang_photon.bench.gpu.driver import wait_word, write_word
from sglang_photon.ipc.handles import HandleKey, Opened

READY, ACK, DATA = 0, 4, 256
"""Byte offsets in the pool: the two words of the protocol, then the data."""


class CudaPool:
    """The producer's side."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()

    def handle(self) -> bytes:
        """What another process opens."""
        return pickle.dumps(self._bytes.untyped_storage()._share_cuda_())

    def fill(self, value: int, *, announce: bool) -> None:
        """Write the data, and the ready word behind it."""
        stream = torch.cuda.current_stream()
        self._bytes[DATA:].fill_(value)
        if announce:
            write_word(self._bytes.data_ptr() + READY, value, stream)

    def await_acknowledgement(self, value: int) -> None:
        """Wait on the stream, then on the host, for the consumer's word."""
        stream = torch.cuda.current_stream()
        wait_word(self._bytes.data_ptr() + ACK, value, stream)
        stream.synchronize()


class CudaOpener:
    """Opens a pool's handle with torch, as SGLang's transport does."""

    def open(self, key: HandleKey) -> Opened[Any]:
        """Map the pool."""
        # The handle comes from our own child process.
        storage = torch.UntypedStorage._new_shared_cuda(*pickle.loads(key.handle))
        return Opened(storage, storage.nbytes())

    def close(self, mapping: Any) -> None:
        """Nothing: torch unmaps when the last reference has gone."""


class HostPool:
    """The producer's side without CUDA."""

    def __init__(self, nbytes: int) -> None:
        self._segment = shared_memory.SharedMemory(create=True, size=nbytes)
        self._bytes: Any = self._segment.buf

    def handle(self) -> bytes:
        """The segment's name."""
        return self._segment.name.encode()

    def fill(self, value: int, *, announce: bool) -> None:
        """Write the data, and the ready word behind it."""
        self._bytes[DATA:] = bytes([value]) * (len(self._bytes) - DATA)
        if announce:
            struct.pack_into("<I", self._bytes, READY, value)

    def await_acknowledgement(self, value: int) -> None:
        """Spin on the consumer's word."""
        while struct.unpack_from("<I", self._bytes, ACK)[0] < value:
            os.sched_yield()


class HostOpener:
    """Opens a segment of shared memory."""

    def open(self, key: HandleKey) -> Opened[Any]:
        """Map the segment; who made it removes it."""
        segment = shared_memory.SharedMemory(name=key.handle.decode())
        return Opened(segment, segment.size)

    def close(self, mapping: Any) -> None:
        """Unmap."""
        mapping.close()


def serve(connection: Connection, *, device: str, nbytes: int) -> None:
    """The producer: makes a pool and does what it is told until it is told to end.

    Args:
        connection: answers each message (a word and a number).
        device: `cuda` or `cpu`.
        nbytes: of the pool.
    """
    pool = CudaPool(nbytes) if device == "cuda" else HostPool(nbytes)
    connection.send(pool.handle())
    while True:
        word, value = connection.recv()
        if word == "end":
            return
        if word in ("fill", "fill silently"):
            pool.fill(value, announce=word == "fill")
        elif word == "await":
            pool.await_acknowledgement(value)
        connection.send(word)
