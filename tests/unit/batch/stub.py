"""A stand-in for a server: answers over real HTTP, counts, and fails on demand."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from aiohttp import web

Handler = Callable[["Stub", dict[str, Any]], Awaitable[web.StreamResponse]]


def completion(text: str) -> dict[str, Any]:
    """A chat completion with that text."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "chat-1", "object": "chat.completion", "choices": [choice], "usage": usage}


def asked(body: dict[str, Any]) -> str:
    """The text that a request asks, which names its row in these tests."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    text: str = next(part["text"] for part in content if part["type"] == "text")
    return text


async def echo(stub: Stub, body: dict[str, Any]) -> web.Response:
    """Answers with what was asked, after `stub.delay_s`."""
    await asyncio.sleep(stub.delay_s)
    return web.json_response(completion(asked(body)))


class Stub:
    """A server in a thread, for the span of a `with` block.

    Attributes:
        delay_s: of `echo`.
        in_flight, most_in_flight: requests now, and at most.
        answered: how often each question was answered with a 200.
        bodies: of all requests.
        info: what `/server_info` says.
        metrics: what `/metrics` says.
        key: that every request must bring.
    """

    def __init__(self, handler: Handler = echo, *, delay_s: float = 0.0, port: int = 0) -> None:
        self.delay_s = delay_s
        self.in_flight = 0
        self.most_in_flight = 0
        self.answered: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.info: dict[str, Any] | None = None
        self.metrics: str | None = None
        self.key: str | None = None
        self.arrived = threading.Condition()
        self._handler = handler
        self._socket = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Stub:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = threading.Event()
        self._server: web.Server | None = None
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def transports(self) -> list[asyncio.Transport]:
        """Connections of all clients; for a handler that cuts them."""
        assert self._server is not None
        return [t for c in self._server.connections if (t := c.transport) is not None]

    def close_soon(self) -> None:
        """End as a server that is killed; for a handler."""
        self._end.set()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 20.0) -> None:
        """Wait until something holds, looked at whenever a request comes or goes."""
        with self.arrived:
            assert self.arrived.wait_for(condition, limit_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._end = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/{path:.*}", self._post)
        app.router.add_get("/{path:.*}", self._get)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._server = runner.server
        await web.SockSite(runner, self._socket).start()
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    def _is_stranger(self, request: web.Request) -> bool:
        expected = f"Bearer {self.key}"
        return self.key is not None and request.headers.get("Authorization") != expected

    async def _get(self, request: web.Request) -> web.Response:
        if request.path != "/health" and self._is_stranger(request):
            return web.Response(status=401)
        said = {"/health": "", "/server_info": self.info, "/metrics": self.metrics}
        value = said.get(request.path)
        if value is None:
            return web.Response(status=404)
        return web.Response(text=value if isinstance(value, str) else json.dumps(value))

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if self._is_stranger(request):
            return web.Response(status=401)
        body = await request.json()
        self.bodies.append(body)
        self._count(1)
        try:
            response = await self._handler(self, body)
            if response.status == 200:
                with suppress(KeyError, TypeError):
                    self.answered[asked(body)] += 1
            return response
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        with self.arrived:
            self.in_flight += by
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.arrived.notify_all()
