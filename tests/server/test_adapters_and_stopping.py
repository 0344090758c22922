"""A server with adapters and a short limit for grammars: what may wait, and what may not; its end.

The tests run in this order on one server, and the last one stops it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.adapters import adapter
from tests.server.servers import CLEAN, Running, wait_until

MODEL = "demo:random:qwen2,context=16384"
GRAMMAR_LIMIT_S = 1
SHUTDOWN_LIMIT_S = 3
UNLOAD_LIMIT_S = 5


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("adapters")
    arguments = [
        *("--model-path", MODEL, "--photon-shutdown-limit", str(SHUTDOWN_LIMIT_S)),
        *("--lora-paths", f"first={adapter(folder / 'first', 1, model=MODEL)}"),
        *("--lora-backend", "torch_native", "--max-total-tokens", "65536"),
    ]
    environ = {"SGLANG_GRAMMAR_MAX_POLL_ITERATIONS": str(200 * GRAMMAR_LIMIT_S)}
    with Running(arguments=arguments, folder=folder, environ=environ) as server:
        yield server


def generate(server: Running, text: str = "Hello.", **options: Any) -> httpx.Response:
    params = {"temperature": 0, "max_new_tokens": 8, **options.pop("params", {})}
    return server.post("/generate", {"text": text, "sampling_params": params, **options})


def nested(depth: int, width: int) -> dict[str, Any]:
    """A schema that takes a compiler seconds: every path of properties is written out."""
    schema: dict[str, Any] = {"type": "string", "pattern": "^[a-z]{1,20}$"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {f"p{n}": schema for n in range(width)}}
    return schema


def test_ov_29_an_adapter_is_unloaded_after_many_answers(running: Running) -> None:
    for number in range(3):
        several = generate(running, f"Number {number}", lora_path="first", params={"n": 16})
        assert len(several.json()) == 16
    started = time.monotonic()
    unloaded = running.post("/unload_lora_adapter", {"lora_name": "first"}, limit_s=UNLOAD_LIMIT_S)
    assert unloaded.json()["success"]
    print(f"unloaded in {time.monotonic() - started:.3f} s")
    assert "first" not in [model["id"] for model in running.get("/v1/models")["data"]]
    assert generate(running).json()["meta_info"]["completion_tokens"] == 8


def test_ov_19_a_grammar_past_its_limit_is_the_clients_error(running: Running) -> None:
    slow = {"json_schema": json.dumps(nested(5, 5))}
    plain: dict[str, Any] = {"params": {"max_new_tokens": 300, "ignore_eos": True}}
    alone = generate(running, **plain).json()
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(generate, running, **plain) for _ in range(3)]
        started = time.monotonic()
        refused = generate(running, params=slow)
        took = time.monotonic() - started
        assert [one.result().json()["output_ids"] for one in beside] == [alone["output_ids"]] * 3
    print(f"refused after {took:.2f} s, limit {GRAMMAR_LIMIT_S} s")
    assert refused.status_code == 400
    assert "timed out" in refused.text
    assert took < GRAMMAR_LIMIT_S + 4
    wait_until(lambda: compilers(running) == 1, limit_s=2)


def compilers(server: Running) -> int:
    """Processes that compile grammars or wait for some."""
    return sum("photon::grammars" in process.cmdline() for process in server.server.processes())


def test_a_grammar_that_does_not_compile_is_the_clients_error(running: Running) -> None:
    refused = generate(running, params={"regex": "(unclosed"})
    assert refused.status_code == 400
    assert "parenthesis" in refused.text
    assert generate(running, params={"regex": "[a-c]{4}"}).json()["text"].strip("abc") == ""


def test_sigterm_lets_requests_end_or_aborts_them(running: Running) -> None:
    """Under load, within its limit, and with exit code 0."""
    endless = {"max_new_tokens": 15000, "ignore_eos": True}
    short = {"max_new_tokens": 100, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool:
        long = [pool.submit(generate, running, params=endless) for _ in range(2)]
        streams = [pool.submit(last_of_a_stream, running, endless) for _ in range(2)]
        wait_until(lambda: running.running_requests() == 4, limit_s=10)
        ending_soon = [pool.submit(generate, running, params=short) for _ in range(2)]
        wait_until(lambda: running.running_requests() == 6, limit_s=10)
        started = time.monotonic()
        ending = running.stop(signal.SIGTERM)
        took = time.monotonic() - started
        print(f"ended {took:.1f} s after SIGTERM, limit {SHUTDOWN_LIMIT_S} s")
        for one in ending_soon:
            assert one.result().json()["meta_info"]["finish_reason"]["type"] == "length"
        for one in long:
            assert one.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
        for stream in streams:
            assert stream.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert ending == CLEAN, running.server.log_tail()
    assert took < SHUTDOWN_LIMIT_S + 20
    assert "Aborted 4 requests" in running.log


def last_of_a_stream(server: Running, params: dict[str, Any]) -> Any:
    """The last chunk of a streamed answer."""
    body = {"text": "Hello.", "stream": True, "sampling_params": {"temperature": 0, **params}}
    with httpx.stream(
        "POST", f"{server.url}/generate", json=body, timeout=60, trust_env=False
    ) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    return json.loads(lines[-2] if lines[-1] == "[DONE]" else lines[-1])
