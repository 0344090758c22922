"""A run with all that belongs to it: servers, signals, the deadline, what is shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from sglang_photon.batch.answers import Checker
from sglang_photon.batch.client import Endpoint
from sglang_photon.batch.fetch import Fetcher
from sglang_photon.batch.flow import Limiter
from sglang_photon.batch.idle import IdleMeter
from sglang_photon.batch.job import Bounds as JobBounds
from sglang_photon.batch.job import Job, Stop
from sglang_photon.batch.lines import Source
from sglang_photon.batch.media import MediaRoot
from sglang_photon.batch.ordered import Ordered
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.prepare import Preparer
from sglang_photon.batch.priority import below_others
from sglang_photon.batch.progress import REFRESH_S, Display, Tally
from sglang_photon.batch.replicas import Replica, Replicas
from sglang_photon.batch.store import Store
from sglang_photon.batch.survey import Survey
from sglang_photon.errors import UsageError

IDLE_EVERY = 4
"""Refreshes between two looks at the server's bubble meter."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Where a run sends its rows, and how.

    Attributes:
        urls: running servers; none starts servers.
        arguments: of servers to start.
        replicas: how many to start.
        api_key: for running servers.
        below: ask for a priority below everybody else's.
        in_flight: most requests at one server.
        timeout_s: for one answer.
        wait_s: for a server that is away.
        allow_private: fetch pictures from private addresses.
    """

    urls: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    replicas: int = 1
    api_key: str | None = None
    below: bool = True
    in_flight: int = 256
    timeout_s: float = 600.0
    wait_s: float = 300.0
    allow_private: bool = False


@dataclass(kw_only=True)
class Running:
    """One run.

    Attributes:
        source, survey, store: the rows, what they are, and what is on disk.
        service: the servers.
        root, pictures: which pictures may be sent.
        tally, shown: counts, and who sees them.
        ordered, checker: where asked for.
        bounds: of the job.
        deadline_s: seconds from now; None is never.
        began: when the command was given, by `time.monotonic`.
    """

    source: Source
    survey: Survey
    store: Store
    service: Service
    root: MediaRoot
    pictures: Bounds
    tally: Tally
    shown: Display
    ordered: Ordered | None = None
    checker: Checker | None = None
    bounds: JobBounds = field(default_factory=JobBounds)
    deadline_s: float | None = None
    began: float = field(default_factory=time.monotonic)

    def run(self) -> Stop | None:
        """Run what is left; returns why it ended early, if it did.

        Raises:
            PhotonError: the job could not run, or not to its end.
        """
        nothing_left = self.survey.done + self.survey.failed == self.survey.rows
        with self._servers(nothing_left) as replicas:
            return asyncio.run(self._run([] if nothing_left else replicas, nothing_left))

    @contextmanager
    def _servers(self, nothing_left: bool) -> Iterator[list[Replica]]:
        if self.service.urls or nothing_left:
            yield []
            return
        count = self.service.replicas
        self.shown.say(f"Starting {'a server' if count == 1 else f'{count} servers'}")
        with Replicas(self.service.arguments, count=count) as replicas:
            self.shown.say(f"Ready after {time.monotonic() - self.began:.0f} s")
            yield replicas.all

    async def _run(self, replicas: list[Replica], nothing_left: bool) -> Stop | None:
        async with AsyncExitStack() as stack:
            endpoints = []
            if not nothing_left:
                endpoints = [await stack.enter_async_context(e) for e in self._endpoints(replicas)]
            fetcher = await stack.enter_async_context(
                Fetcher(bounds=self.pictures, allow_private=self.service.allow_private)
            )
            preparer = Preparer(
                root=self.root,
                bounds=self.pictures,
                fetcher=fetcher,
                extra=await self._extra(endpoints),
            )
            stack.callback(preparer.close)
            job = Job(
                source=self.source,
                survey=self.survey,
                store=self.store,
                preparer=preparer,
                endpoints=endpoints,
                tally=self.tally,
                ordered=self.ordered,
                checker=self.checker,
                bounds=self.bounds,
                say=self.shown.say,
            )
            await stack.enter_async_context(self._stopping(job))
            self.tally.restart()
            await stack.enter_async_context(self._showing(endpoints))
            try:
                return await job.run()
            finally:
                self.tally.stop()

    def _endpoints(self, replicas: list[Replica]) -> list[Endpoint]:
        service = self.service
        headers = {} if service.api_key is None else {"Authorization": f"Bearer {service.api_key}"}
        return [
            Endpoint(
                url=one.url if isinstance(one, Replica) else one,
                limiter=Limiter(most=service.in_flight),
                headers=headers,
                timeout_s=service.timeout_s,
                wait_s=service.wait_s,
                replica=one if isinstance(one, Replica) else None,
            )
            for one in (replicas or service.urls)
        ]

    async def _extra(self, endpoints: list[Endpoint]) -> dict[str, object]:
        """Fields for every request: the priority, where all servers have priorities.

        Raises:
            PhotonError: a server cannot be used.
        """
        for endpoint in endpoints:
            await endpoint.look()
            await endpoint.check_key()
        if not self.service.below or not self.service.urls:
            # Nobody else uses servers of our own.
            return {}
        found = [below_others(await one.get("/server_info")) for one in endpoints]
        for note in dict.fromkeys(one.note for one in found if one.note):
            self.shown.say(f"Priority: {note}")
        values = {one.value for one in found}
        if None in values or not values:
            return {}
        if len(values) > 1:
            raise UsageError("The servers have different default priorities", "Give them the same")
        return {"priority": values.pop()}

    @asynccontextmanager
    async def _stopping(self, job: Job) -> AsyncIterator[None]:
        """Ctrl-C, SIGTERM and the deadline end the job in order."""
        loop = asyncio.get_running_loop()

        def by_hand() -> None:
            self.shown.say("Stopping: waiting for what is in flight (again: not waiting)")
            job.stop(Stop.CANCELLED)

        before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
        for one in before:
            loop.add_signal_handler(one, by_hand)
        timer = None
        if self.deadline_s is not None:
            left = self.began + self.deadline_s - time.monotonic()
            timer = loop.call_later(max(0.0, left), job.stop, Stop.EXPIRED)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            for one, handler in before.items():
                loop.remove_signal_handler(one)
                signal.signal(one, handler)

    @asynccontextmanager
    async def _showing(self, endpoints: list[Endpoint]) -> AsyncIterator[None]:
        task = asyncio.create_task(self._show(endpoints))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._look(endpoints)
            self.shown.show(self.tally)
            self.shown.close()

    async def _show(self, endpoints: list[Endpoint]) -> None:
        meters = {one: IdleMeter() for one in endpoints}
        turn = 0
        while True:
            if turn % IDLE_EVERY == 0:
                self.tally.idle = await _idle(meters)
            self._look(endpoints)
            self.shown.show(self.tally)
            turn += 1
            await asyncio.sleep(REFRESH_S)

    def _look(self, endpoints: list[Endpoint]) -> None:
        tally = self.tally
        tally.in_flight = sum(one.limiter.in_flight for one in endpoints)
        tally.limit = sum(one.limiter.limit for one in endpoints)
        tally.away = any(one.away for one in endpoints)
        tally.retries = sum(one.retries for one in endpoints)


async def _idle(meters: dict[Endpoint, IdleMeter]) -> float | None:
    """The mean over servers that count; one that does not is not asked again."""
    told = []
    for endpoint, meter in list(meters.items()):
        metrics = await endpoint.get("/metrics")
        if not meter.reads(metrics) and not endpoint.away:
            del meters[endpoint]
        share = meter.sample(metrics, time.monotonic())
        if share is not None:
            told.append(share)
    return sum(told) / len(told) if told else None


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable.

    Raises:
        UsageError: the variable is named, and not set.
    """
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"--api-key-env names {variable}, which is not set", "Set it")
    return key
