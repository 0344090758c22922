"""A job under way: rows are read, made ready, sent and committed, all at once and all bounded.

    read ──▶ make ready ──▶ send ──▶ commit
    1 thread  worker threads  limiter   1 thread, many outcomes per fsync

Each stage waits for the next: what is ready waits for a place in flight, what is read waits for
room among what is ready (`Ahead`), so memory does not grow with the input. Rows end in any order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sglang_photon.batch.answers import Checker
from sglang_photon.batch.client import PATIENCE, Endpoint
from sglang_photon.batch.flow import Ahead
from sglang_photon.batch.lines import Bad, Source
from sglang_photon.batch.ordered import Ordered
from sglang_photon.batch.outcomes import answered_by, refused
from sglang_photon.batch.prepare import Preparer
from sglang_photon.batch.progress import Tally
from sglang_photon.batch.rows import Fate, Outcome, Prepared, Row, RowError
from sglang_photon.batch.store import Span, Store
from sglang_photon.batch.survey import SHOWN, Survey
from sglang_photon.errors import PhotonError

READ_ROWS = 32
READ_BYTES = 4 << 20
AHEAD_ROWS = 32
"""Rows ready or being made ready beyond the number in flight."""
COMMIT_QUEUE = 1024


class Stop(Enum):
    """Why a job ends before its rows do."""

    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"

    @property
    def message(self) -> str:
        """For the error rows of those that were not reached."""
        ends = {Stop.EXPIRED: "the deadline came", Stop.CANCELLED: "the job was stopped"}
        return f"{ends[self]} before this row was answered; the same command runs it"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a run may take.

    Attributes:
        ahead_bytes: of rows read, ready and in flight.
        grace_s: seconds for what is in flight when the job is stopped by hand.
    """

    ahead_bytes: int = 96 << 20
    grace_s: float = 30.0


class Job:
    """One run.

    Args:
        source: the rows.
        survey: what a first look at them has found.
        store: where outcomes go.
        preparer: makes rows ready.
        endpoints: the servers, opened.
        tally: counts, for the display.
        ordered: follows in the order of the input; None where nobody asked.
        checker: looks at answers; None where nobody asked.
        bounds: of memory and time.
        say: tells a person about the first rows that fail, by their numbers.
    """

    def __init__(
        self,
        *,
        source: Source,
        survey: Survey,
        store: Store,
        preparer: Preparer,
        endpoints: Sequence[Endpoint],
        tally: Tally,
        ordered: Ordered | None = None,
        checker: Checker | None = None,
        bounds: Bounds | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._survey = survey
        self._store = store
        self._preparer = preparer
        self._endpoints = list(endpoints)
        self._tally = tally
        self._ordered = ordered
        self._checker = checker
        self._bounds = bounds or Bounds()
        self._say = say
        self.ahead = Ahead(rows=self._rows_ahead, most_bytes=self._bounds.ahead_bytes)
        self._stopped: Stop | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ended: set[str] = set()
        self._told = 0

    def stop(self, why: Stop) -> None:
        """Begin nothing new. By hand, what is in flight gets a while; a second time it does not."""
        if why is Stop.EXPIRED or self._stopped is not None:
            self._hurry.set()
        self._stopped = self._stopped or why
        self._stop.set()

    async def run(self) -> Stop | None:
        """Run all rows that have no result; returns why it ended before they did, if so.

        Raises:
            PhotonError: the disk is full, a server is gone for good, or the input has changed.
        """
        self._ready: asyncio.Queue[tuple[int, Prepared, int]] = asyncio.Queue()
        self._commits: asyncio.Queue[tuple[int, Outcome] | None] = asyncio.Queue(COMMIT_QUEUE)
        self._place_free = asyncio.Event()
        self._left = 0
        self._all_read = False
        self._idle = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        committer = asyncio.create_task(self._commit_all())
        try:
            await self._work(committer)
            await self._close_commits(committer)
            if self._stopped is not None:
                await self._mark_unserved(self._stopped)
            self._finish_order()
        finally:
            await _cancel([*self._tasks, committer])
            self._disk.shutdown()
            self._reader.shutdown(cancel_futures=True)
        return self._stopped

    async def _work(self, committer: asyncio.Task[None]) -> None:
        """Everything until the last row has ended, or the job stops."""
        begin = [self._spawn(self._read_all()), self._spawn(self._send_all())]
        stop = asyncio.create_task(self._stop.wait())
        done = asyncio.create_task(self._idle.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {stop, done, self._failure, committer}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not done.done() and not self._failure.done():
                await _cancel(begin)
                await self._let_end()
            if committer.done():
                await committer
            if self._failure.done():
                await self._close_commits(committer)
                self._failure.result()
        finally:
            await _cancel([stop, done, *begin])

    async def _let_end(self) -> None:
        """Give what is in flight its grace, then cut it off."""
        flying = [task for task in self._tasks if task.get_name() == "send"]
        await _cancel([task for task in self._tasks if task.get_name() != "send"])
        hurry = asyncio.create_task(self._hurry.wait())
        all_ended = asyncio.ensure_future(asyncio.gather(*flying, return_exceptions=True))
        waiting: set[asyncio.Future[Any]] = {hurry, all_ended, self._failure}
        grace_s = self._bounds.grace_s
        await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await _cancel(flying)
        await asyncio.wait({all_ended})

    # ---- read

    async def _read_all(self) -> None:
        loop = asyncio.get_running_loop()
        rows = enumerate(self._source.rows())
        while group := await loop.run_in_executor(self._reader, self._some, rows):
            for place, row, weight in group:
                if isinstance(row, Bad):
                    raise PhotonError(
                        f"Line {row.number} of the input has changed since the start "
                        f"({row.problem})",
                        "Leave the input alone while the job runs, and run the same command again",
                    )
                if self._is_settled(row):
                    self._follow(place, self._span_of(row))
                    continue
                await self.ahead.enter(weight)
                self._left += 1
                self._spawn(self._make_ready(place, row, weight))
        self._all_read = True
        self._check_idle()

    def _is_settled(self, row: Row) -> bool:
        known = row.custom_id in self._store.done or self._store.has_failed(row.custom_id)
        return known and row.custom_id not in self._survey.again

    def _span_of(self, row: Row) -> Span | None:
        known = self._store.done.get(row.custom_id)
        return None if known is None else known.span

    # ---- make ready

    async def _make_ready(self, place: int, row: Row, weight: int) -> None:
        try:
            prepared = await self._preparer.prepare(row)
        except RowError as refusal:
            mark = await self._preparer.mark(row)
            self.ahead.leave()
            self.ahead.release(weight)
            await self._end(place, row, refused(row.custom_id, mark, refusal))
            return
        now = len(prepared.payload)
        self.ahead.weigh(weight, now)
        self._ready.put_nowait((place, prepared, now))

    # ---- send

    async def _send_all(self) -> None:
        while True:
            place, prepared, weight = await self._ready.get()
            endpoint = await self._free_endpoint()
            self.ahead.leave()
            endpoint.limiter.sent()
            self._spawn(self._send(endpoint, place, prepared, weight), name="send")
            del prepared

    async def _free_endpoint(self) -> Endpoint:
        """The server with the most room; waits until one has any."""
        while True:
            free = [one for one in self._endpoints if one.limiter.free and not one.away]
            if free:
                return max(free, key=lambda one: one.limiter.limit - one.limiter.in_flight)
            self._place_free.clear()
            waits = [self._place_free.wait(), *(one.here() for one in self._endpoints if one.away)]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()

    async def _send(self, endpoint: Endpoint, place: int, prepared: Prepared, weight: int) -> None:
        row = prepared.row
        answered = False
        try:
            reply = await endpoint.ask(row.url, prepared.payload)
            answered = reply.status not in PATIENCE
            outcome = answered_by(row.custom_id, prepared.mark, reply, self._checker)
        except RowError as refusal:
            outcome = refused(row.custom_id, prepared.mark, refusal)
        finally:
            endpoint.limiter.came_back(counts=answered)
            self.ahead.release(weight)
            self._place_free.set()
        self._tally.pictures += prepared.pictures
        await self._end(place, row, outcome)

    # ---- commit

    async def _end(self, place: int, row: Row, outcome: Outcome) -> None:
        if outcome.fate is Fate.FAILED and self._told < SHOWN:
            self._told += 1
            self._say(f"line {row.number}, {row.custom_id}: {outcome.code}: {outcome.problem}")
        await self._commits.put((place, outcome))
        self._left -= 1
        self._check_idle()

    async def _commit_all(self) -> None:
        """Everything that has come meanwhile goes to disk with one fsync."""
        loop = asyncio.get_running_loop()
        open_end = True
        while open_end:
            group = [await self._commits.get()]
            while not self._commits.empty():
                group.append(self._commits.get_nowait())
            ended = [item for item in group if item is not None]
            open_end = len(ended) == len(group)
            if not ended:
                continue
            outcomes = [outcome for _, outcome in ended]
            spans = await loop.run_in_executor(self._disk, self._store.commit, outcomes)
            for (place, outcome), span in zip(ended, spans, strict=True):
                self._tally.count(outcome)
                self._ended.add(outcome.custom_id)
                self._follow(place, span)
            if self._ordered is not None:
                self._ordered.flush()

    async def _close_commits(self, committer: asyncio.Task[None]) -> None:
        """What has an outcome is put on disk, whatever happens next."""
        if not committer.done():
            await self._commits.put(None)
        await committer

    def _follow(self, place: int, span: Span | None) -> None:
        if self._ordered is not None:
            self._ordered.add(place, span)

    def _finish_order(self) -> None:
        if self._ordered is not None:
            done = self._store.done
            dropped = sorted(self._survey.dropped & done.keys())
            self._ordered.finish(done[custom_id].span for custom_id in dropped)

    async def _mark_unserved(self, why: Stop) -> None:
        """An error row for every row that was not reached."""
        loop = asyncio.get_running_loop()
        rows = enumerate(self._source.rows())
        while group := await loop.run_in_executor(self._reader, self._some, rows):
            left = [
                row.custom_id
                for _, row, _ in group
                if isinstance(row, Row)
                and not self._is_settled(row)
                and row.custom_id not in self._ended
            ]
            refusal = RowError(why.value, why.message)
            outcomes = [refused(custom_id, None, refusal) for custom_id in left]
            await loop.run_in_executor(self._disk, self._store.commit, outcomes)
            for outcome in outcomes:
                self._tally.count(outcome)

    # ---- all of it

    def _some(self, rows: Iterator[tuple[int, Row | Bad]]) -> list[tuple[int, Row | Bad, int]]:
        """The next rows with their weights, a few or a few megabytes of them; none at the end."""
        group: list[tuple[int, Row | Bad, int]] = []
        size = 0
        for place, row in itertools.islice(rows, READ_ROWS):
            weight = self._preparer.weight(row) if isinstance(row, Row) else 0
            group.append((place, row, weight))
            size += row.size if isinstance(row, Row) else 0
            if size >= READ_BYTES:
                break
        return group

    def _rows_ahead(self) -> int:
        return sum(one.limiter.limit for one in self._endpoints) + AHEAD_ROWS

    def _check_idle(self) -> None:
        if self._all_read and not self._left:
            self._idle.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._failure.done():
            self._failure.set_exception(task.exception() or RuntimeError())


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
