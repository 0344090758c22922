"""Pictures from the web: what is fetched, what is bounded, and which addresses are never asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from sglang_photon.batch import fetch
from sglang_photon.batch.fetch import Fetcher
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.rows import RowError
from tests.unit.batch.jobs import png

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
SMALL = Bounds(file_bytes=50_000)


@asynccontextmanager
async def site(
    **pages: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[Any]:
    """A web site on this machine; yields its root and the number of requests it got."""
    app = web.Application()
    for name, page in pages.items():
        app.router.add_get(f"/{name}", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def picture(_: web.Request) -> web.Response:
    return web.Response(body=png())


async def fetched(url: str, **options: Any) -> bytes:
    async with Fetcher(bounds=SMALL, **options) as fetcher:
        return await fetcher.fetch(url)


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)


def test_a_picture_is_fetched_through_redirects() -> None:
    async def moved(_: web.Request) -> web.Response:
        raise web.HTTPFound("/picture")

    async def run() -> None:
        async with site(picture=picture, moved=moved) as root:
            assert await fetched(f"{root}/moved", allow_private=True) == png()

    asyncio.run(run())


def test_bounds() -> None:
    async def loop(_: web.Request) -> web.Response:
        raise web.HTTPFound("/loop")

    async def stalls(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    async def says_so(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 60_000)

    async def run() -> None:
        pages = {"loop": loop, "stalls": stalls, "endless": endless, "says_so": says_so}
        problems = {
            "loop": ("picture_unreachable", "more than 5 redirects"),
            "stalls": ("picture_unreachable", "no picture within 0.3 s"),
            "endless": ("picture_too_large", "larger than"),
            "says_so": ("picture_too_large", "larger than"),
            "missing": ("picture_unreachable", "HTTP 404"),
        }
        async with site(**pages) as root:
            for name, (code, problem) in problems.items():
                with pytest.raises(RowError, match=problem) as caught:
                    await fetched(f"{root}/{name}", allow_private=True, timeout_s=0.3)
                assert caught.value.code == code

    asyncio.run(run())


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.9", "169.254.169.254", "0.0.0.0"),
        *("[::1]", "[fe80::1]", "[fc00::1]", "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "224.0.0.1"),
        *("localhost", "127.1", "2130706433", "0x7f.1", "100.64.0.1"),
    ],
)
def test_private_addresses_are_not_asked(host: str) -> None:
    with pytest.raises(RowError) as caught:
        asyncio.run(fetched(f"http://{host}:9/picture.png", timeout_s=5))
    assert caught.value.code == "picture_forbidden"


def test_a_redirect_to_a_private_address_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def moved(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound(f"http://127.0.0.1:{request.url.port}/picture")

    async def secret(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=png())

    class Public(AbstractResolver):
        """Resolves every name to this machine, as if it were a public address."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0
                )
            ]

        async def close(self) -> None:
            pass

    async def run() -> None:
        async with site(moved=moved, picture=secret) as root:
            port = root.rpartition(":")[2]
            monkeypatch.setattr(fetch, "_PublicOnly", lambda inner: Public())
            with pytest.raises(RowError) as caught:
                await fetched(f"http://example.org:{port}/moved")
            assert caught.value.code == "picture_forbidden"

    asyncio.run(run())
    assert asked == ["/moved"]


def test_a_name_that_leads_to_a_private_address_is_not_connected_to() -> None:
    """The check is on the address that is connected to, so no name can change in between."""

    class Rebinding(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return [
                ResolveResult(hostname=host, host=one, port=port, family=family, proto=0, flags=0)
                for one in ("93.184.216.34", "10.0.0.1")
            ]

        async def close(self) -> None:
            pass

    async def run() -> None:
        with pytest.raises(fetch._PrivateError, match=r"10\.0\.0\.1"):
            await fetch._PublicOnly(Rebinding()).resolve("example.org", 80)

    asyncio.run(run())
