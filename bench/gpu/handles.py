"""Part c: one process opens another's memory pool: what it costs, and what happens at a death.

The pool is opened with torch's own calls, as SGLang's transport opens it, and through our
`HandleCache`. Then the protocol of ready and acknowledged words, and a producer that is killed:
before its ready word, and with its pool mapped here.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from sglang_photon.bench.gpu import pools
from sglang_photon.bench.gpu.driver import wait_word, write_word
from sglang_photon.bench.gpu.journal import NO_CUDA, Journal, Value
from sglang_photon.bench.gpu.pools import ACK, DATA, READY, CudaOpener, HostOpener
from sglang_photon.bench.gpu.settings import Settings
from sglang_photon.errors import PhotonError
from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import HandleKey, StaleHandleError

PART = "c"
POOL_BYTES = 1 << 30
SMALL_POOL_BYTES = 1 << 20
FEATURE_BYTES = 23 << 20
"""About the features of a 1024 x 1024 picture for Qwen2.5-VL, float32."""
REPEATS = 200
PRODUCER = "producer"
ANSWER_S = 60.0
HANG_S = 2.0


def run(settings: Settings, journal: Journal) -> None:
    """Opens, the protocol, deaths."""
    _Consumer(settings, journal).run()


class _Producer:
    """The other process, and what is said to it."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self.handle: bytes = self._heard()

    def tell(self, word: str, value: int = 0) -> None:
        """Say something; returns when it has been done."""
        self.ask(word, value)
        self._heard()

    def ask(self, word: str, value: int = 0) -> None:
        """Say something and go on; `answered` waits."""
        self._connection.send((word, value))

    def answered(self) -> None:
        """Wait for the answer."""
        self._heard()

    def kill(self) -> None:
        """End it as the kernel would."""
        self._process.kill()
        self._process.join()

    def _heard(self) -> Any:
        if not self._connection.poll(ANSWER_S):
            raise PhotonError("The producer process does not answer", "See what it printed")
        return self._connection.recv()


@contextmanager
def _producer(*, device: str, nbytes: int) -> Iterator[_Producer]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=pools.serve, args=(theirs,), kwargs={"device": device, "nbytes": nbytes}
    )
    process.start()
    handle = b""
    try:
        producer = _Producer(process, ours)
        handle = producer.handle
        yield producer
        if process.is_alive():
            producer.ask("end")
            process.join(ANSWER_S)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        if device != "cuda" and handle:
            segment = shared_memory.SharedMemory(name=handle.decode())
            segment.close()
            segment.unlink()


class _Consumer:
    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._cuda = settings.device == "cuda"
        self._device = settings.device
        self._nbytes = POOL_BYTES if self._cuda else SMALL_POOL_BYTES
        self._journal = journal
        self._opener: CudaOpener | HostOpener = CudaOpener() if self._cuda else HostOpener()

    def run(self) -> None:
        """One producer that lives, then two that die."""
        if self._cuda:
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        with _producer(device=self._device, nbytes=self._nbytes) as producer:
            self._opens(producer)
            self._protocol(producer)
        self._dies_before_ready()
        self._dies_mapped()

    def _opens(self, producer: _Producer) -> None:
        key = self._key(producer, 1)
        first, opened = _timed(lambda: self._opener.open(key))
        self._say("first open", first * 1e6, "µs", f"pool of {self._nbytes >> 20} MiB")

        def again() -> None:
            self._opener.close(self._opener.open(key).mapping)

        self._say("open again, mapping alive", _median_us(again), "µs", f"median of {REPEATS}")
        self._opener.close(opened.mapping)
        del opened
        self._say("open again, mapping gone", _median_us(again), "µs", f"median of {REPEATS}")
        cache = self._cache()
        cache.get(key).release()
        cached = _median_us(lambda: cache.get(key).release())
        self._say("lookup in the handle cache", cached, "µs", f"median of {REPEATS}")
        cache.close()

    def _protocol(self, producer: _Producer) -> None:
        names = (
            "ready, copy, acknowledge: host time to queue",
            "ready, copy, acknowledge: until the producer knows",
        )
        opened = self._opener.open(self._key(producer, 1))
        if not self._cuda:
            producer.tell("fill", 7)
            mapping = opened.mapping
            self._say("data after the ready word is the producer's", mapping.buf[DATA] == 7)
            producer.ask("await", 7)
            mapping.buf[ACK] = 7
            producer.answered()
            for name in names:
                self._say(name, None, note=NO_CUDA)
            self._opener.close(mapping)
            return
        feature = torch.empty(FEATURE_BYTES, dtype=torch.uint8, device="cuda")
        queued, known, good = [], [], True
        for value in range(1, 11):
            producer.ask("fill", value)
            began = time.perf_counter()
            self._consume(opened.mapping, feature, value)
            queued.append(time.perf_counter() - began)
            producer.answered()
            producer.tell("await", value)
            known.append(time.perf_counter() - began)
            good = good and bool((feature == value).all())
        self._say("data after the ready word is the producer's", good)
        size = f"{FEATURE_BYTES >> 20} MiB, median of {len(queued)}"
        self._say(names[0], statistics.median(queued) * 1e6, "µs", size)
        self._say(names[1], statistics.median(known) * 1e6, "µs", size)

    def _consume(self, storage: Any, feature: torch.Tensor, value: int) -> None:
        stream, base = torch.cuda.current_stream(), storage.data_ptr()
        wait_word(base + READY, value, stream)
        source = torch.empty(0, dtype=torch.uint8, device="cuda").set_(
            storage, DATA, (FEATURE_BYTES,), (1,)
        )
        feature.copy_(source, non_blocking=True)
        write_word(base + ACK, value, stream)

    def _dies_before_ready(self) -> None:
        names = (
            "a stream still waits for the ready word of a killed producer",
            "it goes on when the reader writes that word itself",
        )
        if not self._cuda:
            for name in names:
                self._say(name, None, note=NO_CUDA)
            return
        with _producer(device=self._device, nbytes=self._nbytes) as producer:
            storage = self._opener.open(self._key(producer, 1)).mapping
            waiting, rescuing = torch.cuda.Stream(), torch.cuda.Stream()
            wait_word(storage.data_ptr() + READY, 5, waiting)
            producer.tell("fill silently", 5)
            producer.kill()
            time.sleep(HANG_S)
            self._say(names[0], not waiting.query(), note=f"after {HANG_S:g} s")
            write_word(storage.data_ptr() + READY, 5, rescuing)
            rescuing.synchronize()
            self._say(names[1], _passes(waiting))

    def _dies_mapped(self) -> None:
        cache = self._cache()
        with _producer(device=self._device, nbytes=self._nbytes) as producer:
            key = self._key(producer, 1)
            producer.tell("fill", 9)
            lease = cache.get(key)
            producer.kill()
            self._say("a killed producer's memory can still be read", self._reads(lease.mapping, 9))
            before = self._free()
            cache.invalidate(PRODUCER, 1)
            lease.release()
            del lease
            cache.poll()
            entries = cache.counters()
            self._say(
                "its mapping is closed at the last release", not entries.entries + entries.waiting
            )
            freed = (self._free() - before) / 2**20 if self._cuda else None
            self._say("memory that comes back with it", freed, "MiB", "" if self._cuda else NO_CUDA)
            try:
                cache.get(key)
                refused = False
            except StaleHandleError:
                refused = True
            self._say("its handle is refused from then on", refused)
        with _producer(device=self._device, nbytes=self._nbytes) as heir:
            heir.tell("fill", 3)
            with cache.get(self._key(heir, 2)) as lease:
                self._say("the next generation is served", self._reads(lease.mapping, 3))
            cache.close()

    def _cache(self) -> HandleCache[Any]:
        return HandleCache(opener=self._opener, max_entries=4, max_bytes=8 * self._nbytes)

    def _key(self, producer: _Producer, generation: int) -> HandleKey:
        return HandleKey(device=0, producer=PRODUCER, generation=generation, handle=producer.handle)

    def _reads(self, mapping: Any, value: int) -> bool:
        if not self._cuda:
            return bool(mapping.buf[DATA] == value)
        one = torch.empty(0, dtype=torch.uint8, device="cuda").set_(mapping, DATA, (1,), (1,))
        return int(one.item()) == value

    def _free(self) -> int:
        return int(torch.cuda.mem_get_info()[0]) if self._cuda else 0

    def _say(self, name: str, value: Value, unit: str = "", note: str = "") -> None:
        self._journal.figure(PART, name, value, unit, note)


def _passes(stream: torch.cuda.Stream) -> bool:
    deadline = time.monotonic() + HANG_S
    while not stream.query():
        if time.monotonic() > deadline:
            return False
    return True


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _median_us(work: Callable[[], object]) -> float:
    return statistics.median(_timed(work)[0] for _ in range(REPEATS)) * 1e6
