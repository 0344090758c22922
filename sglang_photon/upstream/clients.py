"""Clients that leave and servers that are told to stop, in SGLang's tokenizer manager.

Three habits of the tokenizer manager make a server work on for nobody, or not end:

- A client that leaves while its picture is prepared is noticed once its request runs. Here it is
  looked at once more before the request is sent to the scheduler.
- The id of a finished stream is aborted two seconds after its end, whoever has it by then. Here a
  stream's end aborts only the request that it belonged to, and at once.
- After SIGTERM the drain has no limit, and is looked at every five seconds. Here it starts at once;
  what has not ended within a limit is aborted, so that the server ends by itself, with exit code 0,
  before whoever runs it resorts to SIGKILL.

Everything else of a shutdown stays SGLang's. Stock loops are left alone.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.background import BackgroundTasks

logger = logging.getLogger(__name__)

MODULE = "sglang.srt.managers.tokenizer_manager"
LOOK_SECONDS = 0.5
"""How often a request that does not stream looks whether its client is still there."""
SIGNAL_SECONDS = 0.1
DRAIN_SECONDS = 0.05
ABORT_SECONDS = 5.0
"""Aborted requests end within a step; this is for steps that never end."""
FLUSH_SECONDS = 0.3
"""For the last bytes of answers to reach their sockets: SGLang ends the process at once."""
FORCE = "SGL_FORCE_SHUTDOWN"


def install(*, shutdown_seconds: float) -> None:
    """Hook this process's tokenizer manager.

    To be called once SGLang has parsed its arguments: the module reads variables while it loads.

    Args:
        shutdown_seconds: what running requests get after SIGTERM.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    module = importlib.import_module(MODULE)
    if "SGLANG_REQUEST_STATE_WAIT_TIMEOUT" not in os.environ:
        module._REQUEST_STATE_WAIT_TIMEOUT = LOOK_SECONDS
    for method, hook, kind in (
        ("_init_req_state", remember_client, HookType.AFTER),
        ("_send_one_request", send_if_awaited, HookType.AROUND),
        ("create_abort_task", abort_own_request, HookType.AROUND),
        ("sigterm_watchdog", partial(stop_in_time, shutdown_seconds), HookType.AROUND),
    ):
        HookRegistry.register(f"{MODULE}.TokenizerManager.{method}", hook, kind)
    HookRegistry.apply_hooks()


def remember_client(_: None, manager: Any, obj: Any, request: Any = None) -> None:
    """After a request's state is made: who waits for it."""
    if request is None or getattr(obj, "background", False):
        return
    for rid in [obj.rid] if obj.is_single else obj.rid:
        manager.rid_to_state[rid].photon_client = request


async def send_if_awaited(send: Callable[..., Awaitable[None]], manager: Any, message: Any) -> None:
    """Send a request to the scheduler unless its client has left meanwhile.

    Raises:
        ValueError: it has; SGLang takes this for a request that failed before it was sent.
    """
    client = getattr(manager.rid_to_state.get(message.rid), "photon_client", None)
    if client is not None and await client.is_disconnected():
        raise ValueError(f"The client left before its request {message.rid} was sent")
    await send(manager, message)


def abort_own_request(_: Callable[..., Any], manager: Any, obj: Any) -> BackgroundTasks:
    """What runs when a stream has ended: abort its requests if they have not."""

    async def abort() -> None:
        for rid in [obj.rid] if obj.is_single else obj.rid or ():
            if rid in manager.rid_to_state:
                manager.abort_request(rid)

    tasks = BackgroundTasks()
    tasks.add_task(abort)
    return tasks


async def stop_in_time(
    limit_s: float, stop: Callable[[Any], Awaitable[None]], manager: Any
) -> None:
    """Wait for SIGTERM, let requests end or abort them, then let SGLang shut down.

    Args:
        limit_s: seconds until what still runs is aborted.
        stop: SGLang's shutdown, which waits for requests without a limit.
        manager: the tokenizer manager.
    """
    while not manager.gracefully_exit:
        await asyncio.sleep(SIGNAL_SECONDS)
    deadline = time.monotonic() + limit_s
    aborted = 0
    while manager.rid_to_state and time.monotonic() < deadline + ABORT_SECONDS:
        if time.monotonic() >= deadline:
            # In every round: new requests arrive until the end.
            aborted = max(aborted, len(manager.rid_to_state))
            manager.abort_request(abort_all=True)
        await asyncio.sleep(DRAIN_SECONDS)
    if aborted:
        logger.warning("Aborted %d requests that ran %g s after SIGTERM", aborted, limit_s)
    await asyncio.sleep(FLUSH_SECONDS)
    if manager.rid_to_state:
        os.environ[FORCE] = "1"
    await stop(manager)
