"""Pictures and several workers: nobody waits for a picture of somebody else, no answer is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.plugins import install_plugin
from tests.server.servers import MODEL, Running
from tests.server.test_pictures_memory import body, post

SLOW_S = 0.4
SLOW = f"""\
import time
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

BASE = "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor"

def slow(call, *args, **kwargs):
    time.sleep({SLOW_S})
    return call(*args, **kwargs)

def load():
    HookRegistry.register(BASE + "._call_processor", slow, HookType.AROUND)
"""
TEXT = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}]}


def timed(url: str, request: dict[str, object]) -> float:
    began = time.monotonic()
    assert post(url, request).status_code == 200
    return time.monotonic() - began


def test_mm_09_preparing_pictures_runs_beside_text_and_on_two_threads(tmp_path: Path) -> None:
    environ = install_plugin(tmp_path / "slow", name="slow_processor", source=SLOW)
    arguments = ["--model-path", MODEL, "--mm-processor-worker-num", "2"]
    with Running(arguments=arguments, folder=tmp_path, environ=environ) as running:
        # The first ones pay for what is loaded once.
        timed(running.url, body(0, count=1, size=64))
        alone = min(timed(running.url, TEXT) for _ in range(5))
        count = 8
        bodies = [body(1 + number, count=1, size=64) for number in range(count)]
        with ThreadPoolExecutor(count) as pool:
            began = time.monotonic()
            pictures = [pool.submit(post, running.url, one) for one in bodies]
            time.sleep(SLOW_S / 2)
            beside = min(timed(running.url, TEXT) for _ in range(3))
            assert {one.result().status_code for one in pictures} == {200}
            took = time.monotonic() - began
    assert beside < alone + SLOW_S / 2
    assert took < count * SLOW_S * 0.75, "one picture after the other"


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    arguments = [
        *("--model-path", MODEL, "--tokenizer-worker-num", "2"),
        *("--max-running-requests", "1", "--max-queued-requests", "1"),
    ]
    with Running(arguments=arguments, folder=tmp_path_factory.mktemp("workers")) as running:
        yield running


def test_mm_18_with_two_workers_and_a_full_queue_every_request_ends(two_workers: Running) -> None:
    requests = [body(number, count=number % 2, size=64, tokens=8) for number in range(12)]
    began = time.monotonic()
    with ThreadPoolExecutor(len(requests)) as pool:
        replies = list(pool.map(lambda one: post(two_workers.url, one), requests))
    assert time.monotonic() - began < 30
    codes = [reply.status_code for reply in replies]
    assert set(codes) <= {200, 503}
    assert 200 in codes
    for reply in replies:
        assert reply.status_code == 200 or reply.headers["retry-after"]


def test_mm_18_a_batch_is_answered_in_order(two_workers: Running) -> None:
    prompts = [f"Count to {number}." for number in range(5)]
    parameters = {"max_new_tokens": 2, "temperature": 0}

    def ask(text: object) -> httpx.Response:
        request = {"text": text, "sampling_params": parameters}
        return httpx.post(f"{two_workers.url}/generate", json=request, timeout=60)

    alone = [ask(prompt).json()["meta_info"]["prompt_tokens"] for prompt in prompts]
    reply = ask(prompts)
    if reply.status_code == 200:
        assert [one["meta_info"]["prompt_tokens"] for one in reply.json()] == alone
    else:
        assert reply.status_code == 503


def test_workers_have_the_same_checks_as_one_process(two_workers: Running) -> None:
    missing = {"type": "image_url", "image_url": {"url": "file:///no/such/picture.png"}}
    broken: dict[str, object] = {
        "model": "demo",
        "messages": [{"role": "user", "content": [missing, {"type": "text", "text": "Hi."}]}],
    }
    codes = {post(two_workers.url, broken).status_code for _ in range(6)}
    assert codes == {400}
