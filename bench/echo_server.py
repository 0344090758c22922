"""A server that reads requests and answers at once, to see what a client alone takes.

python -m sglang_photon.bench.echo_server --port N
"""

from __future__ import annotations

import sys

from aiohttp import web

ANSWER = {
    "id": "echo",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a red circle"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44},
}


async def _answer(request: web.Request) -> web.Response:
    async for _ in request.content.iter_any():
        pass
    return web.json_response(ANSWER)


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()


def main(argv: list[str]) -> None:
    """Serve until stopped."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", _answer)
    app.router.add_get("/{path:.*}", _healthy)
    web.run_app(app, host="127.0.0.1", port=int(argv[argv.index("--port") + 1]), print=None)


if __name__ == "__main__":
    main(sys.argv[1:])
