"""`StorageOpener`: opens a pool's handle by PyTorch, and lets its mapping go in another thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from sglang_photon.ipc.handles import HandleKey, Opened

HANDLE, SIZE = 1, 2
"""Places in the tuple that `UntypedStorage._share_cuda_` returns: driver's handle, bytes."""


class StorageOpener:
    """The driver, as PyTorch shows it.

    Args:
        new_storage: `UntypedStorage._new_shared_cuda`, called with a handle's parts.

    What the driver opens are 64 bytes; PyTorch wants more beside them (sizes, a file in which it
    counts references), which `describe` remembers.
    """

    def __init__(self, *, new_storage: Callable[..., Any]) -> None:
        self._new_storage = new_storage
        self._parts: dict[tuple[int, bytes], tuple[Any, ...]] = {}
        self._dropped: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._let_go, name="photon-unmap", daemon=True)
        self._thread.start()

    def describe(self, device: int, handle: tuple[Any, ...]) -> bytes:
        """Remember a handle's parts, for a device; the bytes that name it."""
        name = bytes(handle[HANDLE])
        # The first part is the device on which the driver opens.
        self._parts[device, name] = (device, *handle[1:])
        return name

    def open(self, key: HandleKey) -> Opened[Any]:
        """Map a handle that was described."""
        parts = self._parts[key.device, key.handle]
        return Opened(self._new_storage(*parts), int(parts[SIZE]))

    def close(self, mapping: Any) -> None:
        """Drop the mapping in a thread: the driver may wait for the device."""
        self._dropped.put([mapping])

    def shut_down(self) -> None:
        """End the thread when everything is dropped."""
        self._dropped.put(None)
        self._thread.join()

    def _let_go(self) -> None:
        while (mapping := self._dropped.get()) is not None:
            mapping.clear()
