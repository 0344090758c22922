"""The limit that is found by measuring, on servers whose rate is known."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

import pytest

from sglang_photon.batch.flow import FIRST_LIMIT, Ahead, Limiter


class Server:
    """Answers one row in `seconds(rows in flight)`, on a clock of its own."""

    def __init__(self, seconds: Callable[[int], float], *, most: int = 256) -> None:
        self.now = 0.0
        self.limiter = Limiter(most=most, clock=lambda: self.now)
        self.seconds = seconds
        self._ends: list[tuple[float, int]] = []
        self._serial = itertools.count()

    def serve(self, rows: int) -> float:
        """Keep the limit used up until so many rows are answered; rows per second."""
        began = self.now
        for _ in range(rows):
            while self.limiter.free:
                self.limiter.sent()
                end = self.now + self.seconds(self.limiter.in_flight)
                heapq.heappush(self._ends, (end, next(self._serial)))
            self.now = max(self.now, heapq.heappop(self._ends)[0])
            self.limiter.came_back()
        return rows / (self.now - began)


def capacity(best: int, *, row_s: float = 0.1) -> Callable[[int], float]:
    """A server whose rate grows until `best` rows are in flight, and queues beyond."""
    return lambda in_flight: row_s * max(1.0, in_flight / best)


@pytest.mark.parametrize("best", [1, 4, 16, 40, 120])
def test_the_limit_settles_where_the_rate_stops_to_grow(best: int) -> None:
    server = Server(capacity(best))
    server.serve(20_000)
    rate = server.serve(4_000)
    assert rate >= 0.85 * best / 0.1
    assert server.limiter.limit <= max(4 * best, 8)


def test_it_never_goes_beyond_the_most() -> None:
    server = Server(capacity(200), most=30)
    for _ in range(200):
        server.serve(50)
        assert server.limiter.limit <= 30
    assert server.limiter.limit >= 20


def test_it_follows_a_server_that_becomes_faster() -> None:
    server = Server(capacity(8))
    server.serve(5_000)
    server.seconds = capacity(64)
    server.serve(40_000)
    assert server.serve(4_000) >= 0.8 * 64 / 0.1


def test_a_server_that_pushes_back_gets_fewer_once_per_span() -> None:
    server = Server(capacity(64))
    server.serve(5_000)
    before = server.limiter.limit
    server.limiter.pushed_back()
    after = server.limiter.limit
    assert 0.6 * before <= after < before
    server.limiter.pushed_back()
    assert server.limiter.limit == after


def test_rows_that_do_not_come_fast_enough_say_nothing_about_the_limit() -> None:
    now = 0.0
    limiter = Limiter(most=256, clock=lambda: now)
    for _ in range(2_000):
        limiter.sent()
        now += 0.1
        limiter.came_back()
    assert limiter.limit == FIRST_LIMIT


def test_bytes_ahead_are_bounded_but_one_row_always_fits() -> None:
    async def run() -> None:
        ahead = Ahead(rows=lambda: 10, most_bytes=100)
        await ahead.enter(1000)
        second = asyncio.create_task(ahead.enter(50))
        await asyncio.sleep(0)
        assert not second.done()
        ahead.leave()
        ahead.release(1000)
        await second
        ahead.weigh(50, 90)
        third = asyncio.create_task(ahead.enter(20))
        await asyncio.sleep(0)
        assert not third.done()
        ahead.weigh(90, 80)
        await third
        assert (ahead.waiting, ahead.bytes, ahead.peak_bytes) == (2, 100, 1000)
        ahead.leave()
        ahead.leave()
        ahead.release(100)

    asyncio.run(run())


def test_rows_ahead_are_bounded() -> None:
    async def run() -> None:
        ahead = Ahead(rows=lambda: 2, most_bytes=1 << 30)
        await ahead.enter(1)
        await ahead.enter(1)
        third = asyncio.create_task(ahead.enter(1))
        await asyncio.sleep(0)
        assert not third.done()
        ahead.leave()
        await third

    asyncio.run(run())
