"""Host memory under requests with pictures, on servers of their own."""

from __future__ import annotations

import concurrent.futures
import io
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.server.servers import MODEL, Running, wait_until
from tests.server.test_bad_pictures import as_url

LIMIT_MB = 64
MARGIN_MB = 20
"""Of requests' texts and the allocator, beside the pictures."""


def noise(seed: int, size: int) -> str:
    """A picture that nobody has sent before; blocks, so that the file stays small."""
    blocks = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    image = Image.fromarray(blocks).resize((size, size), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return as_url(buffer.getvalue())


def body(seed: int, *, count: int, size: int, tokens: int = 2) -> dict[str, object]:
    images = [
        {"type": "image_url", "image_url": {"url": noise(seed * 100 + i, size)}}
        for i in range(count)
    ]
    content = [*images, {"type": "text", "text": "Describe the pictures."}]
    return {
        "model": "demo",
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": content}],
    }


def post(url: str, request: dict[str, object]) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=request, timeout=120)


class Peak:
    """The most memory that a process has had resident, in MB."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._reset = Path(f"/proc/{pid}/clear_refs")

    def reset(self) -> None:
        self._reset.write_text("5")

    def read(self) -> float:
        lines = self._status.read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024


@pytest.fixture(scope="module")
def small_budget(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    arguments = ["--model-path", MODEL, "--photon-mm-budget-mb", str(LIMIT_MB)]
    with Running(arguments=arguments, folder=tmp_path_factory.mktemp("budget")) as running:
        yield running


def test_mm_01_pictures_take_no_more_memory_than_their_budget(small_budget: Running) -> None:
    # The first ones pay for what is loaded once.
    for seed in range(3):
        assert post(small_budget.url, body(seed, count=8, size=1024)).status_code == 200
    peak = Peak(small_budget.server.pid)
    peak.reset()
    before = peak.read()
    requests = [body(seed, count=8, size=1024) for seed in range(10, 60)]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda request: post(small_budget.url, request), requests))
    codes = {reply.status_code for reply in replies}
    assert codes <= {200, 503}, codes
    assert 200 in codes
    for reply in replies:
        assert reply.status_code == 200 or int(reply.headers["retry-after"]) > 0
    assert peak.read() - before < LIMIT_MB * 1.1 + MARGIN_MB


def test_text_does_not_wait_for_the_pictures_budget(small_budget: Running) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        pictures = [
            pool.submit(post, small_budget.url, body(seed, count=8, size=1024))
            for seed in range(100, 110)
        ]
        text = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}]}
        assert post(small_budget.url, text).status_code == 200
        assert not all(picture.done() for picture in pictures)
        assert {picture.result().status_code for picture in pictures} <= {200, 503}


def test_a_request_larger_than_the_budget_is_refused_at_once(small_budget: Running) -> None:
    reply = post(small_budget.url, body(1, count=12, size=1024))
    assert reply.status_code == 400
    assert "--photon-mm-budget-mb" in reply.text


def grown(running: Running, requests: int, already: int) -> dict[str, float]:
    """Resident memory of each process, in MB, after so many distinct pictures."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bodies = (body(already + i, count=1, size=224) for i in range(requests))
        codes = [pool.submit(post, running.url, request) for request in bodies]
        assert all(code.result().status_code == 200 for code in codes)
    wait_until(lambda: running.running_requests() == 0, limit_s=20)
    family = [psutil.Process(running.server.pid), *running.server.processes()]
    return {
        f"{process.pid} {process.name()}": process.memory_info().rss / 2**20
        for process in {process.pid: process for process in family}.values()
    }


def grows(running: Running, *, first: int, then: int, limit_mb: float) -> None:
    before = grown(running, first, 1000)
    after = grown(running, then, 1000 + first)
    growth = {name: after[name] - before[name] for name in before if name in after}
    assert max(growth.values()) < limit_mb, growth


def test_mm_21_memory_stays_with_image_traffic(small_budget: Running) -> None:
    grows(small_budget, first=60, then=120, limit_mb=20)


@pytest.mark.soak
def test_mm_21_memory_stays_with_much_image_traffic(small_budget: Running) -> None:
    grows(small_budget, first=100, then=400, limit_mb=20)


def test_nothing_of_the_pictures_is_left_in_shared_memory(small_budget: Running) -> None:
    assert [name for name in os.listdir("/dev/shm") if name.startswith("sgl_shm_mm_")] == []  # noqa: PTH208
