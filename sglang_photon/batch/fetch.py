"""Pictures from the web: bounded in size, time and redirects, and never from a private address.

A row's address is text that somebody else wrote. Without care it makes this machine ask its own
network: a name may resolve to a private address, a public server may redirect to one, and a name
may change its address between the check and the connection. So the check sits where the connection
is made: what the resolver gives is checked and is what is connected to, for every hop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import urllib.parse

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from sglang_photon.batch.pictures import Bounds, check_size
from sglang_photon.batch.rows import RowError

REDIRECTS = 5
TIMEOUT_S = 30.0
AT_ONCE = 16
ATTEMPTS = 3
PIECE = 1 << 16
MOVED = (301, 302, 303, 307, 308)


class Fetcher:
    """Fetches pictures; to be used inside `async with`.

    Args:
        bounds: of a picture.
        allow_private: whether private, loopback and link-local addresses may be asked.
        timeout_s: seconds for one picture, redirects included.
    """

    def __init__(
        self, *, bounds: Bounds, allow_private: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._bounds = bounds
        self._allow_private = allow_private
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, url: str) -> bytes:
        """One picture.

        Raises:
            RowError: no answer in time, a status that is no success, too large, too many redirects,
                or an address that may not be asked.
        """
        async with self._slots:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    async with asyncio.timeout(self._timeout_s):
                        return await self._follow(url)
                except _PrivateError as error:
                    raise RowError("picture_forbidden", f"{url}: {error}") from None
                except TimeoutError:
                    problem = f"no picture within {self._timeout_s:g} s"
                except aiohttp.ClientError as error:
                    problem = str(error) or type(error).__name__
                if attempt < ATTEMPTS:
                    await asyncio.sleep(0.5 * attempt)
        raise RowError("picture_unreachable", f"{url}: {problem}")

    async def _follow(self, url: str) -> bytes:
        session = self._open()
        for _ in range(REDIRECTS + 1):
            self._check_literal(url)
            async with session.get(url, allow_redirects=False) as response:
                if response.status in MOVED and "Location" in response.headers:
                    url = urllib.parse.urljoin(url, response.headers["Location"])
                    continue
                if response.status != 200:
                    raise RowError("picture_unreachable", f"{url}: HTTP {response.status}")
                return await self._read(response, url)
        raise RowError("picture_unreachable", f"{url}: more than {REDIRECTS} redirects")

    async def _read(self, response: aiohttp.ClientResponse, url: str) -> bytes:
        check_size(response.content_length or 0, url, self._bounds)
        pieces, size = [], 0
        async for piece in response.content.iter_chunked(PIECE):
            size += len(piece)
            check_size(size, url, self._bounds)
            pieces.append(piece)
        return b"".join(pieces)

    def _check_literal(self, url: str) -> None:
        """An address given as a number is connected to without asking the resolver."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RowError("picture_forbidden", f"{url} is no http address")
        if not self._allow_private:
            host = parts.hostname
            try:
                check_public(str(ipaddress.ip_address(host)))
            except ValueError:
                # A name; numbers in any other spelling are nobody's name.
                if ":" in host or host.replace(".", "").isdigit():
                    raise _PrivateError(f"{host} is no address") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver: AbstractResolver = ThreadedResolver()
            if not self._allow_private:
                resolver = _PublicOnly(resolver)
            connector = aiohttp.TCPConnector(resolver=resolver, limit=AT_ONCE)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        return self._session


class _PrivateError(Exception):
    """An address that may not be asked."""


def check_public(address: str) -> None:
    """Refuse an IP address that is not on the public internet.

    Raises:
        _PrivateError: it is private, loopback, link-local, reserved or a group's.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    for one in (ip, inner):
        if one is not None and (not one.is_global or one.is_multicast):
            raise _PrivateError(f"{address} is not a public address (--allow-private allows it)")


class _PublicOnly(AbstractResolver):
    """Resolves names, and refuses those that lead anywhere but to the public internet."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for entry in found:
            check_public(entry["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()
