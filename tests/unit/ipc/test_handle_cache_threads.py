"""The handle cache under threads: barriers and events decide who comes first."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sglang_photon.ipc import mappings
from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import (
    HandleBusyError,
    HandleKey,
    HandleOpenError,
    StaleHandleError,
)
from tests.unit.ipc.driver import Driver, Gate, Mapping, key

LIMIT_S = 10.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts the threads that wait for another thread's open or close."""
    waiting = threading.Semaphore(0)

    class CountedEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()
            return super().wait(timeout)

    monkeypatch.setattr(mappings, "Event", CountedEvent)
    return waiting


class Stop:
    """Where a thread stops inside the driver until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, _: object = None) -> None:
        self.reached.set()
        assert self.go.wait(LIMIT_S)


def acquire(semaphore: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        assert semaphore.acquire(timeout=LIMIT_S)


def only_for(wanted: HandleKey, action: Callable[[], object]) -> Callable[[HandleKey], object]:
    return lambda key: action() if key == wanted else None


def read(cache: HandleCache[Mapping], driver: Driver, wanted: HandleKey) -> Mapping:
    with cache.get(wanted) as lease, driver.reading(lease.mapping, wanted):
        return lease.mapping


def test_eight_threads_that_want_one_key_open_it_once(
    driver: Driver, pool: ThreadPoolExecutor, waiting: threading.Semaphore
) -> None:
    cache = driver.cache()
    driver.on_open = lambda _: acquire(waiting, 7)  # opened when all others wait
    reads = [pool.submit(read, cache, driver, key()) for _ in range(8)]
    assert len({id(each.result(LIMIT_S)) for each in reads}) == 1
    assert driver.opens == {key(): 1}
    assert cache.counters().misses == 8


def test_eight_threads_get_the_error_of_one_failed_open_and_the_next_call_tries_again(
    driver: Driver, pool: ThreadPoolExecutor, waiting: threading.Semaphore
) -> None:
    cache = driver.cache()

    def fail(_: HandleKey) -> None:
        acquire(waiting, 7)
        raise OSError("refused")

    driver.on_open = fail
    reads = [pool.submit(read, cache, driver, key()) for _ in range(8)]
    errors = [each.exception(LIMIT_S) for each in reads]
    assert all(isinstance(error, HandleOpenError) for error in errors)
    assert len({id(error) for error in errors}) == 8
    assert len({id(error.__cause__) for error in errors if error}) == 1
    assert cache.counters().failed_opens == 1
    driver.on_open = lambda _: None
    assert read(cache, driver, key()).is_open


def test_a_slow_open_blocks_neither_hits_nor_opens_of_others(
    driver: Driver, pool: ThreadPoolExecutor
) -> None:
    cache = driver.cache(max_entries=4)
    stop = Stop()
    read(cache, driver, key("hit"))
    driver.on_open = only_for(key("slow"), stop)
    slow = pool.submit(read, cache, driver, key("slow"))
    assert stop.reached.wait(LIMIT_S)
    read(cache, driver, key("hit"))
    read(cache, driver, key("opened"))
    read(cache, driver, key("slow", device=1))
    cache.invalidate("nobody", 1)
    assert cache.counters().opens == 3
    assert not slow.done()
    stop.go.set()
    assert slow.result(LIMIT_S).is_open


def test_a_slow_close_blocks_only_who_wants_that_place(
    driver: Driver, pool: ThreadPoolExecutor, waiting: threading.Semaphore
) -> None:
    cache = driver.cache(max_entries=1)
    stop = Stop()
    read(cache, driver, key("a"))
    driver.on_close = stop
    evictor = pool.submit(read, cache, driver, key("b"))  # closes a
    assert stop.reached.wait(LIMIT_S)
    again = pool.submit(read, cache, driver, key("a"))
    acquire(waiting, 1)
    assert driver.opens[key("a")] == 1
    read(cache, driver, key("b"))
    driver.on_close = lambda _: None
    stop.go.set()
    assert again.result(LIMIT_S).is_open
    evictor.result(LIMIT_S)
    assert driver.opens[key("a")] == 2


@pytest.mark.parametrize("newer", [False, True])
def test_an_open_that_its_producer_does_not_survive_reaches_nobody(
    driver: Driver, pool: ThreadPoolExecutor, waiting: threading.Semaphore, newer: bool
) -> None:
    """The opener and who waits for it are refused; the new life opens the same bytes anew."""
    cache = driver.cache()
    stop = Stop()
    driver.on_open = only_for(key(), stop)
    reads = [pool.submit(read, cache, driver, key())]
    assert stop.reached.wait(LIMIT_S)
    reads.append(pool.submit(read, cache, driver, key()))
    acquire(waiting, 1)
    after: list[Future[Mapping]] = []
    if newer:
        after = [pool.submit(read, cache, driver, key(generation=2))]
        acquire(waiting, 1)
    else:
        cache.invalidate("worker", 1)
    with pytest.raises(StaleHandleError):
        cache.get(key())
    stop.go.set()
    assert all(isinstance(each.exception(LIMIT_S), StaleHandleError) for each in reads)
    assert [each.result(LIMIT_S).key.generation for each in after] == [2] * newer
    assert driver.keys() == {key(generation=2)} if newer else not driver.mapped
    assert cache.counters().discarded == 1


def test_readers_restarts_and_eviction_at_once(driver: Driver, pool: ThreadPoolExecutor) -> None:
    """Threads that switch as often as they can; the driver notices every misuse."""
    cache = driver.cache(max_entries=2)
    barrier = threading.Barrier(4)
    lives = {"p": 1, "q": 1}

    def reader(seed: int) -> int:
        chance = random.Random(seed)
        served = 0
        barrier.wait(LIMIT_S)
        for _ in range(1500):
            producer = chance.choice("pq")
            wanted = key(
                chance.choice("abc"),
                device=chance.randrange(2),
                producer=producer,
                generation=lives[producer],
            )
            try:
                served += visit(wanted, chance.random() < 0.2)
            except (StaleHandleError, HandleBusyError):
                continue
        return served

    def visit(wanted: HandleKey, guarded: bool) -> int:
        with cache.get(wanted) as lease, driver.reading(lease.mapping, wanted):
            if guarded:
                fence = Gate()
                lease.mapping.fences.append(fence)
                lease.guard(fence)
        if guarded:
            fence.passed = True
        return 1

    def killer() -> int:
        chance = random.Random(99)
        barrier.wait(LIMIT_S)
        for _ in range(150):
            producer = chance.choice("pq")
            dead = lives[producer]
            lives[producer] = dead + 1
            cache.invalidate(producer, dead)
        return 0

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        work = [pool.submit(reader, 1), pool.submit(reader, 2), pool.submit(reader, 3)]
        work.append(pool.submit(killer))
        served = sum(each.result(LIMIT_S) for each in work)
    finally:
        sys.setswitchinterval(before)
    counters = cache.counters()
    assert counters.hits + counters.misses + counters.refused == 4500
    assert served <= counters.hits + counters.misses
    assert counters.opens == driver.opens.total()
    cache.poll()
    assert len(driver.mapped) <= 2
    cache.close()
    assert driver.keys() == set()
    assert cache.counters().mapped_bytes == 0
