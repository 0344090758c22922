"""A driver that maps nothing and notices every misuse."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import HandleKey, Opened

NBYTES = 10


def key(
    handle: str = "h", *, device: int = 0, producer: str = "worker", generation: int = 1
) -> HandleKey:
    return HandleKey(device, producer, generation, handle.encode())


class Gate:
    """A fence that passes when it is told to."""

    def __init__(self, *, passed: bool = False) -> None:
        self.passed = passed

    def query(self) -> bool:
        return self.passed


@dataclass(eq=False)
class Mapping:
    """What the driver hands out."""

    key: HandleKey
    is_open: bool = True
    readers: int = 0
    fences: list[Gate] = field(default_factory=list)

    @property
    def in_use(self) -> bool:
        return self.readers > 0 or not all(fence.passed for fence in self.fences)


class Driver:
    """Opens handles, and keeps a list of what must never happen.

    `on_open` runs inside every open, without the driver's lock: to block, or to raise.
    """

    def __init__(self, nbytes: Callable[[HandleKey], int] = lambda _: NBYTES) -> None:
        self.nbytes = nbytes
        self.on_open: Callable[[HandleKey], object] = lambda _: None
        self.on_close: Callable[[Mapping], object] = lambda _: None
        self.opens: Counter[HandleKey] = Counter()
        self.violations: list[str] = []
        self.mapped: dict[tuple[int, bytes], Mapping] = {}
        self.lock = threading.RLock()

    def open(self, key: HandleKey) -> Opened[Mapping]:
        mapping = Mapping(key)
        with self.lock:
            self.opens[key] += 1
            if key.place in self.mapped:
                self.violations.append(f"double open of {key}")
            self.mapped[key.place] = mapping
        try:
            self.on_open(key)
        except BaseException:
            with self.lock:
                del self.mapped[key.place]
            raise
        return Opened(mapping, self.nbytes(key))

    def close(self, mapping: Mapping) -> None:
        with self.lock:
            if not mapping.is_open:
                self.violations.append(f"double close of {mapping.key}")
            if mapping.in_use:
                self.violations.append(f"close in use of {mapping.key}")
            mapping.is_open = False
        self.on_close(mapping)
        with self.lock:
            if self.mapped.get(mapping.key.place) is mapping:
                del self.mapped[mapping.key.place]

    def read(self, mapping: Mapping, wanted: HandleKey) -> None:
        with self.lock:
            if not mapping.is_open:
                self.violations.append(f"use after close of {mapping.key}")
            if mapping.key != wanted:
                self.violations.append(f"read of {mapping.key} for {wanted}")

    @contextmanager
    def reading(self, mapping: Mapping, wanted: HandleKey) -> Iterator[None]:
        with self.lock:
            mapping.readers += 1
        self.read(mapping, wanted)
        yield
        self.read(mapping, wanted)
        with self.lock:
            mapping.readers -= 1

    def keys(self) -> set[HandleKey]:
        return {mapping.key for mapping in self.mapped.values()}

    def cache(self, *, max_entries: int = 2, max_bytes: int = 1000) -> HandleCache[Mapping]:
        return HandleCache(opener=self, max_entries=max_entries, max_bytes=max_bytes)


def touch(cache: HandleCache[Mapping], *keys: HandleKey) -> None:
    for each in keys:
        cache.get(each).release()
