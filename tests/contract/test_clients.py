"""Clients that leave and servers that stop: what is decided beside SGLang's tokenizer manager."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_photon.upstream import clients


class Manager:
    """The part of a tokenizer manager that is looked at."""

    def __init__(self, *rids: str) -> None:
        self.rid_to_state: dict[str, Any] = {rid: SimpleNamespace() for rid in rids}
        self.gracefully_exit = False
        self.aborted: list[str] = []
        self.stopped_with: list[str] | None = None

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> None:
        self.aborted.append("all" if abort_all else rid)

    async def stop(self, _: Any = None) -> None:
        self.stopped_with = list(self.rid_to_state)


def asked(rid: str, **fields: Any) -> Any:
    return SimpleNamespace(rid=rid, is_single=True, **fields)


def client(*, gone: bool) -> Any:
    async def is_disconnected() -> bool:
        return gone

    return SimpleNamespace(is_disconnected=is_disconnected)


async def sent(manager: Manager, rid: str) -> list[str]:
    found: list[str] = []

    async def send(_: Any, message: Any) -> None:
        found.append(message.rid)

    await clients.send_if_awaited(send, manager, asked(rid))
    return found


def test_ov_36_a_request_whose_client_has_left_is_not_sent() -> None:
    manager = Manager("left", "waits", "background", "program")
    clients.remember_client(None, manager, asked("left"), client(gone=True))
    clients.remember_client(None, manager, asked("waits"), client(gone=False))
    clients.remember_client(None, manager, asked("background", background=True), client(gone=True))
    clients.remember_client(None, manager, asked("program"))
    for rid in ("waits", "background", "program", "unknown"):
        assert asyncio.run(sent(manager, rid)) == [rid]
    with pytest.raises(ValueError, match="The client left"):
        asyncio.run(sent(manager, "left"))


def test_ov_10_the_end_of_a_stream_aborts_nobody_elses_request() -> None:
    manager = Manager("running")
    for rid in ("running", "finished"):
        asyncio.run(clients.abort_own_request(manager.stop, manager, asked(rid))())
    manager.rid_to_state["finished"] = SimpleNamespace()
    assert manager.aborted == ["running"]
    several = SimpleNamespace(rid=["running", "finished"], is_single=False)
    asyncio.run(clients.abort_own_request(manager.stop, manager, several)())
    assert manager.aborted == ["running", "running", "finished"]


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(clients, "ABORT_SECONDS", 0.3)
    monkeypatch.setenv(clients.FORCE, "0")


def stop(manager: Manager, *, limit_s: float) -> None:
    manager.gracefully_exit = True
    asyncio.run(clients.stop_in_time(limit_s, manager.stop, manager))


@pytest.mark.usefixtures("brief")
def test_requests_that_end_in_time_are_not_aborted() -> None:
    manager = Manager("short")

    async def both() -> None:
        stopping = asyncio.ensure_future(clients.stop_in_time(30, manager.stop, manager))
        await asyncio.sleep(0.2)
        assert manager.stopped_with is None
        manager.gracefully_exit = True
        await asyncio.sleep(0.2)
        assert manager.stopped_with is None
        manager.rid_to_state.clear()
        await stopping

    asyncio.run(both())
    assert (manager.aborted, manager.stopped_with) == ([], [])
    assert os.environ[clients.FORCE] == "0"


@pytest.mark.usefixtures("brief")
def test_requests_that_do_not_end_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager("long")
    monkeypatch.setattr(manager, "abort_request", lambda **_: manager.rid_to_state.clear())
    stop(manager, limit_s=0)
    assert manager.stopped_with == []
    assert os.environ[clients.FORCE] == "0"


@pytest.mark.usefixtures("brief")
def test_requests_that_cannot_be_aborted_do_not_hold_up_the_end() -> None:
    manager = Manager("stuck")
    stop(manager, limit_s=0)
    assert set(manager.aborted) == {"all"}
    assert manager.stopped_with == ["stuck"]
    assert os.environ[clients.FORCE] == "1"
