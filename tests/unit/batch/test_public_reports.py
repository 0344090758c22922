"""Cases from public reports about batch runners, by their ids."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from sglang_photon.batch import pictures
from tests.unit.batch.jobs import line, picture_line, png, run, write
from tests.unit.batch.stub import Stub, asked, completion, echo

MANY = 20_000
pytestmark = pytest.mark.timeout(240)


def test_bj_01_memory_stays_flat_and_output_comes_at_once(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(MANY)))
    sizes: dict[str, int] = {}
    process = psutil.Process()
    before = process.memory_info().rss

    async def watch(stub: Stub, body: dict[str, Any]) -> web.Response:
        answered = len(stub.answered)
        if answered == MANY // 100:
            sizes.setdefault("at 1 %", output.stat().st_size)
        if answered % 1000 == 0:
            sizes["rss"] = max(sizes.get("rss", 0), process.memory_info().rss)
        stub.bodies.clear()
        return web.json_response(completion(asked(body)))

    with Stub(watch) as stub:
        outcome = run(source, output, stub.url)
    assert outcome.code == 0
    assert len(set(outcome.ids)) == len(outcome.ids) == MANY
    assert sizes["at 1 %"] > 0
    assert sizes["rss"] - before < 100 << 20


@pytest.mark.parametrize("bound", [1, 7, 40])
def test_bj_02_never_more_in_flight_than_the_bound(tmp_path: Path, bound: int) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(400)))
    with Stub(delay_s=0.002) as stub:
        outcome = run(source, tmp_path / "out.jsonl", stub.url, "--in-flight", str(bound))
    assert outcome.code == 0
    assert stub.most_in_flight <= bound
    assert stub.most_in_flight >= min(bound, 16)


def test_bj_03_bad_ids_are_refused_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line(f"row-{n}") for n in range(1, 11)]
    rows[6]["custom_id"] = rows[2]["custom_id"]
    del rows[4]["custom_id"]
    rows[8]["custom_id"] = 9
    source = write(tmp_path / "in.jsonl", rows)
    with Stub() as stub:
        outcome = run(source, tmp_path / "out.jsonl", stub.url)
    said = capsys.readouterr().err
    assert outcome.code == 1
    assert not stub.bodies
    for expected in ("line 5: no custom_id", "line 7: custom_id 'row-3' is that of line 3"):
        assert expected in said
    assert "line 9: custom_id is 9" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_bj_05_two_shapes_of_failure(tmp_path: Path) -> None:
    async def fail(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        if asked(body) == "rejected":
            return web.json_response({"error": {"message": "too long"}}, status=400)
        if asked(body) == "broken":
            raise ConnectionResetError  # The connection closes without an answer.
        return await echo(stub, body)

    rows = [line("fine"), line("rejected"), line("broken")]
    source = write(tmp_path / "in.jsonl", rows)

    async def cut(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        if asked(body) == "broken":
            for transport in stub.transports():
                transport.abort()
        return await fail(stub, body)

    with Stub(cut) as stub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sglang_photon.batch.client.FIRST_PAUSE_S", 0.001)
        outcome = run(source, tmp_path / "out.jsonl", stub.url, "--in-flight", "1")
    assert outcome.code == 3
    assert outcome.ids == ["fine"]
    rejected, broken = outcome.error("rejected"), outcome.error("broken")
    assert rejected["response"]["status_code"] == 400
    assert rejected["response"]["body"] == {"error": {"message": "too long"}}
    assert rejected["error"] is None
    assert broken["response"] is None
    assert broken["error"]["code"] == "transport_error"


def test_bj_08_pictures_are_made_ready_while_the_server_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = pictures.data_url

    def slow(content: bytes, name: str, bounds: pictures.Bounds) -> str:
        time.sleep(0.05)
        return encode(content, name, bounds)

    monkeypatch.setattr(pictures, "data_url", slow)
    (tmp_path / "picture.png").write_bytes(png())
    one_at_a_time = asyncio.Lock()
    times: list[float] = []
    busy = 0.0

    async def serve(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal busy
        async with one_at_a_time:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            ended = time.monotonic()
        busy += ended - began
        times.extend((began, ended))
        return await echo(stub, body)

    rows = (picture_line(f"row-{n}", "picture.png") for n in range(40))
    source = write(tmp_path / "in.jsonl", rows)
    with Stub(serve) as stub:
        outcome = run(source, tmp_path / "out.jsonl", stub.url, "--media-root", str(tmp_path))
    assert outcome.code == 0
    # 2 s, or what a busy machine makes of it; 4 s if nothing overlapped.
    assert busy >= 2.0
    assert max(times) - min(times) <= 1.25 * busy


def test_bj_09_a_chat_beside_a_job_is_served_next(tmp_path: Path) -> None:
    """64 rows in flight at a server that serves 8 at a time, higher priorities first."""
    queue: asyncio.PriorityQueue[tuple[int, int, asyncio.Event]] = asyncio.PriorityQueue()
    serving = 0
    serial = iter(range(1 << 30))
    starts = 0
    overtaken: dict[bool, list[int]] = {True: [], False: []}
    """How many began between a request's arrival and its own begin; of chats, and of rows."""

    async def serve(stub: Stub, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal serving, starts
        turn, arrived = asyncio.Event(), starts
        await queue.put((-body.get("priority", 0), next(serial), turn))
        if serving < 8:
            serving += 1
            queue.get_nowait()[2].set()
        await turn.wait()
        overtaken[asked(body) == "chat"].append(starts - arrived)
        starts += 1
        await asyncio.sleep(0.03)
        if queue.empty():
            serving -= 1
        else:
            queue.get_nowait()[2].set()
        return web.json_response(completion(asked(body)))

    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(800)))
    with Stub(serve) as stub:
        stub.info = {"enable_priority_scheduling": True, "default_priority_value": 0}
        alone = _chat(stub)
        times: list[float] = []

        def chats() -> None:
            stub.wait_for(lambda: stub.in_flight >= 12)
            times.extend(_chat(stub) for _ in range(9))

        beside = threading.Thread(target=chats)
        beside.start()
        outcome = run(source, tmp_path / "out.jsonl", stub.url)
        beside.join()
    assert outcome.code == 0
    assert all(body["priority"] == -100 for body in stub.bodies if asked(body) != "chat")
    assert sorted(overtaken[False])[400] > 4, "nothing queued, so nothing was shown"
    assert max(overtaken[True]) <= 1
    assert sorted(times)[4] <= 2 * alone + 0.5


def _chat(stub: Stub) -> float:
    body = json.dumps({"messages": [{"role": "user", "content": "chat"}]}).encode()
    request = urllib.request.Request(f"{stub.url}/v1/chat/completions", data=body)
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=30):
        return time.monotonic() - began


def test_bj_09_the_deadline_keeps_what_is_done(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", (line(f"row-{n}") for n in range(3000)))
    output = tmp_path / "out.jsonl"
    with Stub(delay_s=0.02) as stub:
        cut = run(source, output, stub.url, "--deadline", "1s", "--in-flight", "8")
        assert cut.code == 3
        assert 0 < len(cut.ids) < 3000
        assert sorted(cut.ids + cut.error_ids) == sorted(f"row-{n}" for n in range(3000))
        assert {one["error"]["code"] for one in cut.errors} == {"batch_expired"}
        stub.delay_s = 0
        whole = run(source, output, stub.url)
    assert whole.code == 0
    assert whole.ids[: len(cut.ids)] == cut.ids
    assert len(set(whole.ids)) == len(whole.ids) == 3000
    assert not whole.errors
