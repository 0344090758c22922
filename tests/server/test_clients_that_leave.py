"""Clients that leave, return under the same id, or never come."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from sglang_photon.reference.models import pictures
from tests.server.asking import Ask, answer, urls
from tests.server.plugins import SLOW_PICTURE_S
from tests.server.servers import SHARED_MEMORY, Running, wait_until

ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0}
FREED_S = 3.0
"""Reported limit: one second; the rest is for busy machines."""
IDLE_S = 10.0


Chunk = dict[str, object]


@contextmanager
def streaming(running: Running, rid: str, **params: object) -> Iterator[Iterator[Chunk]]:
    """A native streamed request; leaving the block closes its connection."""
    body = {"text": "Hello.", "rid": rid, "stream": True, "sampling_params": {**ENDLESS, **params}}
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", f"{running.url}/generate", json=body) as response,
    ):
        lines = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        yield (json.loads(line) for line in lines if line != "[DONE]")


def test_ov_35_a_closed_stream_frees_everything(auto: Running) -> None:
    log = len(auto.log.splitlines())
    with streaming(auto, "leaves") as chunks:
        for _ in range(3):
            next(chunks)
        wait_until(lambda: auto.running_requests() == 1, limit_s=10)
    took = wait_until(
        lambda: auto.running_requests() == 0 and auto.used_tokens() == 0, limit_s=FREED_S
    )
    print(f"freed {took:.2f} s after the connection was closed")
    assert len(auto.log.splitlines()) - log < 40


def test_ov_35_a_closed_plain_request_frees_everything(auto: Running) -> None:
    log = len(auto.log.splitlines())
    body = {"text": "Hello.", "sampling_params": ENDLESS}
    with pytest.raises(httpx.ReadTimeout):
        auto.post("/generate", body, limit_s=0.3)
    took = wait_until(
        lambda: auto.running_requests() == 0 and auto.used_tokens() == 0, limit_s=FREED_S
    )
    print(f"freed {took:.2f} s after the connection was closed")
    assert len(auto.log.splitlines()) - log < 40


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_ov_36_a_client_that_leaves_during_preparation(auto: Running, stream: bool) -> None:
    picture = urls(next(iter(pictures.heldout(1, seed=36))).pictures)
    ask = Ask(text="Look slowly. What is it?", images=picture, options={"stream": stream})
    segments = shared_memory()
    auto.get("/v1/loads")
    prefills = auto.log.count("Prefill batch")
    with pytest.raises(httpx.ReadTimeout):
        auto.post("/v1/chat/completions", ask.request(), limit_s=0.2)
    deadline = time.monotonic() + SLOW_PICTURE_S + 1.5
    while time.monotonic() < deadline:
        assert auto.running_requests() == 0
        time.sleep(0.05)
    assert auto.log.count("Prefill batch") == prefills, "its request never reaches a forward"
    assert shared_memory() <= segments
    started = time.monotonic()
    assert answer(auto.client, Ask(text="Look slowly. What is it?", images=picture)).texts[0]
    assert time.monotonic() - started > SLOW_PICTURE_S, "the stub is in place"


def shared_memory() -> set[str]:
    names = {path.name for path in Path(SHARED_MEMORY).iterdir()}
    return {name for name in names if name.startswith(("psm_", "sgl_shm"))}


def test_ov_10_an_id_is_used_again_right_after_its_end(auto: Running) -> None:
    """Upstream aborts a finished stream's id two seconds later, whoever has it by then."""
    with streaming(auto, "x", max_new_tokens=3) as chunks:
        first = list(chunks)
    ended = finish(first[-1])
    assert ended is not None
    assert ended["type"] == "length"
    with streaming(auto, "x", max_new_tokens=4000) as chunks:
        until = time.monotonic() + 3
        for chunk in chunks:
            assert finish(chunk) is None
            if time.monotonic() > until:
                break
        again = auto.post("/generate", {"text": "Hello.", "rid": "x", "sampling_params": ENDLESS})
        assert again.status_code == 400
        assert "Duplicate request ID" in again.text
        assert finish(next(chunks)) is None
    wait_until(lambda: auto.running_requests() == 0, limit_s=FREED_S)


def finish(chunk: Chunk) -> Chunk | None:
    found: Chunk | None = chunk["meta_info"]["finish_reason"]  # type: ignore[index]
    return found


def test_ho_01_an_idle_server_takes_no_cpu(auto: Running) -> None:
    wait_until(lambda: auto.running_requests() == 0, limit_s=10)
    family = auto.server.processes()
    before = {process: cpu_seconds(process) for process in family}
    time.sleep(IDLE_S)
    shares = {
        " ".join(process.cmdline())[:40]: (cpu_seconds(process) - spent) / IDLE_S * 100
        for process, spent in before.items()
    }
    print("idle, % of a core:", {name: round(share, 2) for name, share in shares.items()})
    assert max(shares.values()) < 3
    assert sum(shares.values()) < 6


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_others_are_answered_while_many_leave(auto: Running) -> None:
    alone = answer(auto.client, Ask(text="What do you see?"))
    with ThreadPoolExecutor(8) as pool:
        gone = [pool.submit(leave, auto, f"gone-{number}") for number in range(8)]
        assert answer(auto.client, Ask(text="What do you see?")) == alone
        for one in gone:
            one.result(timeout=60)
    wait_until(lambda: auto.running_requests() == 0, limit_s=FREED_S)


def leave(running: Running, rid: str) -> None:
    with streaming(running, rid) as chunks:
        next(chunks)
