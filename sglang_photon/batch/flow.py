"""How much is under way: requests in flight, and rows made ready ahead of them.

Too few requests in flight leave the server's pipeline empty; too many only wait in its queue, where
they keep other people's requests waiting too. The right number depends on the model, the machine
and the pictures, so it is found by measuring: `Limiter` compares the rows per second of successive
spans of time at different limits, and settles on the smallest limit that gives the best rate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_LIMIT = 16
GROWTH = 1.5
GAIN = 1.05
"""A rate must be this much better to be worth a larger limit."""
SPAN_ROWS = 32
SPAN_LIMITS = 2
"""A span of time ends when so many times the limit have come back, and at least SPAN_ROWS."""
SPANS_AT_REST = 12
"""Spans between two looks whether the limit is still right."""
FULL = 0.75
"""Share of a span with the limit used up, for the span to say anything about the limit."""
BACK_OFF = 0.7


@dataclass(slots=True)
class _Span:
    """What is counted from one judgement to the next."""

    began: float
    rows: int = 0
    full_s: float = 0.0
    pushed_back: bool = False


class Limiter:
    """Requests in flight at one server.

    The limit climbs while the rate does. When it has stopped to help, the limit goes back one step
    and rests; now and then a step down and a step up are tried. A server that pushes back (429,
    503) gets fewer at once, and more again when that proves good.

    Args:
        most: never more than this.
        clock: seconds; for tests.
    """

    def __init__(self, *, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.limit = min(most, FIRST_LIMIT)
        self.in_flight = 0
        self._clock = clock
        self._span = _Span(began=clock())
        self._full_since: float | None = None
        # The last limit that was worth it, and its rate; None while nothing is known.
        self._best: tuple[int, float] | None = None
        self._rest = 0
        self._trying = 0

    @property
    def free(self) -> bool:
        """Whether one more may be sent."""
        return self.in_flight < self.limit

    def sent(self) -> None:
        """One more is under way."""
        self.in_flight += 1
        if self.in_flight >= self.limit and self._full_since is None:
            self._full_since = self._clock()

    def came_back(self, *, counts: bool = True) -> None:
        """One has ended.

        Args:
            counts: it was answered, so that it says something about the server's rate.
        """
        self.in_flight -= 1
        if self.in_flight < self.limit and self._full_since is not None:
            self._span.full_s += self._clock() - self._full_since
            self._full_since = None
        self._span.rows += counts
        if self._span.rows >= max(SPAN_ROWS, SPAN_LIMITS * self.limit):
            self._judge()

    def pushed_back(self) -> None:
        """The server asked for patience: fewer from now on, once per span."""
        if not self._span.pushed_back:
            self._span.pushed_back = True
            self._set(int(self.limit * BACK_OFF))

    def _judge(self) -> None:
        now = self._clock()
        span, self._span = self._span, _Span(began=now)
        if self._full_since is not None:
            span.full_s += now - self._full_since
            self._full_since = now
        elapsed = max(now - span.began, 1e-9)
        if span.pushed_back or span.full_s < FULL * elapsed:
            return
        self._move(span.rows / elapsed)

    def _move(self, rate: float) -> None:
        if self._rest:
            self._rest -= 1
            if not self._rest:
                # Look again: first whether fewer do, then whether more would.
                self._best = (self.limit, rate)
                self._trying = -1
                self._set(int(self.limit / GROWTH))
        elif self._best is None:
            self._best = (self.limit, rate)
            self._trying = 1
            self._set(int(self.limit * GROWTH) + 1)
        elif self._trying > 0:
            self._after_more(rate)
        else:
            self._after_fewer(rate)

    def _after_more(self, rate: float) -> None:
        assert self._best is not None
        limit, best = self._best
        if rate > best * GAIN and self.limit < self.most:
            self._best = (self.limit, rate)
            self._set(int(self.limit * GROWTH) + 1)
            return
        if rate <= best * GAIN:
            self._set(limit)
        self._rest = SPANS_AT_REST

    def _after_fewer(self, rate: float) -> None:
        assert self._best is not None
        limit, best = self._best
        if rate * GAIN < best:
            self._trying = 1
            self._set(int(limit * GROWTH) + 1)
        else:
            self._rest = SPANS_AT_REST

    def _set(self, limit: int) -> None:
        self.limit = max(1, min(limit, self.most))


class Ahead:
    """Rows that are being made ready or wait to be sent, bounded by number and by bytes.

    The bytes of a row are held until its answer is there. One row is always let in, however large.

    Args:
        rows: how many may be ahead of the requests in flight.
        most_bytes: of all rows together.
    """

    def __init__(self, *, rows: Callable[[], int], most_bytes: int) -> None:
        self._rows = rows
        self._most_bytes = most_bytes
        self._changed = asyncio.Event()
        self.waiting = 0
        self.bytes = 0
        self.peak_bytes = 0

    async def enter(self, weight: int) -> None:
        """Wait until the row may be made ready."""
        while not self._fits(weight):
            self._changed.clear()
            await self._changed.wait()
        self.waiting += 1
        self._hold(weight)

    def weigh(self, before: int, now: int) -> None:
        """The row turned out to weigh something else."""
        self._hold(now - before)

    def leave(self) -> None:
        """The row is not ahead any more: it is in flight, or will never be."""
        self.waiting -= 1
        self._changed.set()

    def release(self, weight: int) -> None:
        """The row's memory is free again."""
        self._hold(-weight)

    def _hold(self, weight: int) -> None:
        self.bytes += weight
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        if weight < 0:
            self._changed.set()

    def _fits(self, weight: int) -> bool:
        if self.waiting >= self._rows():
            return False
        return self.bytes == 0 or self.bytes + weight <= self._most_bytes
