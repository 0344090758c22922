"""One server, over HTTP: requests, what is worth another try, and a server that is away.

Tried again: what says nothing about the row. A connection that failed (`transport`), and a server
that asks for patience (429, 503). Any other status is the row's answer. While a server cannot be
reached at all, one question at a time asks whether it is back and everybody else waits, so that a
restart costs no row its attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from sglang_photon.batch.flow import Limiter
from sglang_photon.batch.replicas import Replica
from sglang_photon.batch.rows import RowError
from sglang_photon.errors import PhotonError, UsageError

PATIENCE = (429, 503)
ATTEMPTS = 6
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LOOK_TIMEOUT_S = 10.0
PIECE = 1 << 17
KEPT_OPEN_S = 3.0
"""Servers close a connection that nobody uses; uvicorn after 5 s. Better to be first."""
TRANSPORT = (aiohttp.ClientError, ConnectionError, TimeoutError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An HTTP answer.

    Attributes:
        status: of HTTP.
        request_id: as the server named it; empty where it did not.
        body: parsed JSON; text where it is none.
        pause_s: seconds that the server asks to wait.
    """

    status: int
    request_id: str
    body: Any
    pause_s: float


class ServerAwayError(PhotonError):
    """The server could not be reached for longer than the job waits."""


class Endpoint:
    """One server; to be used inside `async with`.

    Args:
        url: its root.
        limiter: of requests in flight.
        headers: for every request.
        timeout_s: seconds for one answer.
        wait_s: seconds to wait for a server that is away.
        replica: the server, if it is ours: it is started again when it has ended.

    Attributes:
        retries: attempts beyond the first, so far.
    """

    def __init__(
        self,
        *,
        url: str,
        limiter: Limiter,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        wait_s: float = 300.0,
        replica: Replica | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.limiter = limiter
        self.retries = 0
        self._headers = dict(headers or {})
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=LOOK_TIMEOUT_S)
        self._wait_s = wait_s
        self._replica = replica
        self._here = asyncio.Event()
        self._here.set()

    @property
    def away(self) -> bool:
        """Whether it could not be reached when last tried."""
        return not self._here.is_set()

    async def __aenter__(self) -> Endpoint:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_OPEN_S),
            headers={**self._headers, "Content-Type": "application/json"},
            timeout=self._timeout,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def here(self) -> None:
        """Wait until it is not away."""
        await self._here.wait()

    async def ask(self, path: str, payload: bytes) -> Reply:
        """Send a request until it has an answer.

        Raises:
            RowError: no answer after several attempts; `transport_error`.
            ServerAwayError: the server is gone for longer than the job waits.
        """
        problem = ""
        for attempt in range(1, ATTEMPTS + 1):
            await self._here.wait()
            try:
                reply = await self._once(path, payload)
            except TRANSPORT as error:
                problem = f"{type(error).__name__}: {error}".removesuffix(": ")
                await self.look()
                pause = _pause(attempt)
            else:
                if reply.status not in PATIENCE or attempt == ATTEMPTS:
                    return reply
                self.limiter.pushed_back()
                pause = max(_pause(attempt), reply.pause_s)
            if attempt < ATTEMPTS:
                self.retries += 1
                await asyncio.sleep(pause)
        raise RowError("transport_error", f"no answer in {ATTEMPTS} attempts; the last: {problem}")

    async def look(self) -> None:
        """Find out whether the server is there, and wait for it if it is not.

        Raises:
            ServerAwayError: it did not come back in time.
        """
        if self.away:
            return
        self._here.clear()
        began = time.monotonic()
        tries = 0
        while not await self._reachable():
            tries += 1
            if time.monotonic() - began > self._wait_s:
                raise ServerAwayError(
                    f"{self.url} has not answered for {self._wait_s:.0f} s",
                    "Start the server, then run the same command again: it resumes",
                )
            if self._replica is not None and await self._replica.revive():
                self.url = self._replica.url
                began = time.monotonic()
            await asyncio.sleep(_pause(tries))
        self._here.set()

    async def check_key(self) -> None:
        """Refuse a server that will refuse every row.

        Raises:
            UsageError: it asks for another API key.
        """
        with contextlib.suppress(*TRANSPORT):
            async with self._session.get(self.url + "/v1/models") as response:
                if response.status in (401, 403):
                    raise UsageError(
                        f"{self.url} asks for an API key (HTTP {response.status})",
                        "Put the key into a variable, and name it with --api-key-env",
                    )

    async def get(self, path: str) -> Any:
        """The JSON or text of a GET request; None where there is none."""
        with contextlib.suppress(*TRANSPORT):
            timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
            async with self._session.get(self.url + path, timeout=timeout) as response:
                if response.status == 200:
                    return _parsed(await response.read())
        return None

    async def _once(self, path: str, payload: bytes) -> Reply:
        size = {"Content-Length": str(len(payload))}
        data = _pieces(payload)
        async with self._session.post(self.url + path, data=data, headers=size) as response:
            return Reply(
                status=response.status,
                body=_parsed(await response.read()),
                request_id=response.headers.get("x-request-id", ""),
                pause_s=_retry_after(response.headers.get("Retry-After")),
            )

    async def _reachable(self) -> bool:
        """Whether it answers at all; any status but 'not ready' will do."""
        try:
            timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
            async with self._session.get(self.url + "/health", timeout=timeout) as response:
                return response.status not in (502, 503, 504)
        except TRANSPORT:
            return False


async def _pieces(payload: bytes) -> AsyncIterator[memoryview]:
    """A request in pieces: written whole, what the socket does not take at once is copied."""
    view = memoryview(payload)
    for start in range(0, len(view), PIECE):
        yield view[start : start + PIECE]


def _pause(attempt: int) -> float:
    """Seconds before another attempt, twice as long each time, spread so that nobody storms."""
    doubled: float = FIRST_PAUSE_S * 2 ** (attempt - 1)
    return min(LONGEST_PAUSE_S, doubled) * random.uniform(0.5, 1.0)


def _retry_after(value: str | None) -> float:
    try:
        return min(LONGEST_PAUSE_S, max(0.0, float(value or 0)))
    except ValueError:
        return 0.0


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace")
