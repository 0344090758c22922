"""Batch jobs on real servers, with the demo model."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from sglang_photon.batch import command
from sglang_photon.reference.models import pictures
from tests.server.servers import MARK, MODEL, ONE_THREAD, Running, marked_processes, wait_until

ROOT = Path(__file__).resolve().parents[2]
PHOTON = (sys.executable, "-m", "sglang_photon", "batch")
COLD_RUN_S = 60.0
"""What a job of two rows may take, besides what it says that the server's start took."""
QUESTION = "What is in the picture?"


def chat(custom_id: str, text: str, picture: str | None = None, **more: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if picture is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture}})
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16, **more}
    body.setdefault("temperature", 0)
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    found = {(one := json.loads(line))["custom_id"]: one for line in lines}
    assert len(found) == len(lines)
    return found


def draw(folder: Path, count: int) -> dict[str, str]:
    """Pictures of the demo model's world, with what is right to say about each."""
    folder.mkdir()
    answers = {}
    drawn = pictures.heldout(1 << 30, seed=7, tasks=("describe",))
    for number, example in enumerate(itertools.islice(drawn, count)):
        example.pictures[0].save(folder / f"{number:04}.png")
        answers[f"{number:04}.png"] = example.answer
    return answers


@pytest.fixture
def cold() -> Iterator[dict[str, str]]:
    """The environment of a command; whatever it starts can be found by it."""
    # A socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        yield {**os.environ, **ONE_THREAD, MARK: uuid.uuid4().hex, "TMPDIR": folder}


def command_of_the_readme() -> list[str]:
    """The words of README's `photon batch` line, without the output."""
    text = (ROOT / "README.md").read_text()
    (found,) = re.findall(r"^\.venv/bin/photon batch (.+) --output answers\.jsonl$", text, re.M)
    return shlex.split(found)


def test_bj_07_a_cold_run_ends_and_leaves_nothing(tmp_path: Path, cold: dict[str, str]) -> None:
    """Two rows, and then the six of README's example: nothing is left of either."""
    draw(tmp_path / "pictures", 2)
    words = ["images", "pictures", "--prompt", QUESTION, "--max-tokens", "16"]
    command = [*PHOTON, *words, "--output", "out.jsonl"]
    began = time.monotonic()
    said = subprocess.run(
        command, cwd=tmp_path, env=cold, check=True, timeout=300, stderr=subprocess.PIPE, text=True
    ).stderr
    (start,) = re.findall(r"Ready after (\d+) s", said)
    assert time.monotonic() - began - int(start) < COLD_RUN_S
    assert len(read(tmp_path / "out.jsonl")) == 2
    readme = [*PHOTON, *command_of_the_readme(), "--output", str(tmp_path / "readme.jsonl")]
    subprocess.run(readme, cwd=ROOT, env=cold, check=True, timeout=200)
    assert read(tmp_path / "readme.jsonl").keys() == {f"{n}.png" for n in range(1, 7)}
    assert marked_processes(cold[MARK]) == ()
    assert not [path for path in Path(cold["TMPDIR"]).iterdir() if "photon-batch" in path.name]


def test_a_killed_server_is_started_again_and_a_killed_job_takes_its_server_with_it(
    tmp_path: Path, cold: dict[str, str]
) -> None:
    rows = [chat(f"row-{n}", f"{n}?", max_tokens=300, ignore_eos=True) for n in range(2000)]
    write(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.jsonl"
    job = psutil.Popen(
        [*PHOTON, "run", "in.jsonl", "--output", str(output)], cwd=tmp_path, env=cold
    )
    try:
        wait_until(lambda: len(read(output)) > 0, limit_s=200)
        (server,) = job.children()
        server.kill()
        done = len(read(output))
        wait_until(lambda: len(read(output)) > done + 64, limit_s=200)
        assert server.pid not in {child.pid for child in job.children()}
    finally:
        job.kill()
        job.wait()
    wait_until(lambda: marked_processes(cold[MARK]) == (), limit_s=60)


def test_bj_04_bad_rows_do_not_stop_the_others(auto: Running, tmp_path: Path) -> None:
    draw(tmp_path / "pictures", 6)
    whole = (tmp_path / "pictures" / "0000.png").read_bytes()
    cut = "data:image/png;base64," + base64.b64encode(whole[: len(whole) // 2]).decode()
    rows = [chat(f"good-{n}", QUESTION, f"{n:04}.png") for n in range(6)]
    rows.insert(1, chat("too-long", "many words " * 20_000))
    rows.insert(3, chat("corrupt", QUESTION, cut))
    rows.insert(5, {**chat("unknown-url", "?"), "url": "/v1/moderations"})
    rows.insert(7, chat("streamed", "?", stream=True))
    source, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    words = ["run", str(source), "--output", str(output), "--url", auto.url, "--quiet"]
    assert command.main([*words, "--media-root", str(tmp_path / "pictures")]) == 3
    assert read(output).keys() == {f"good-{n}" for n in range(6)}
    errors = read(tmp_path / "out.errors.jsonl")
    assert errors.keys() == {"too-long", "corrupt", "unknown-url", "streamed"}
    for name in ("too-long", "corrupt"):
        assert errors[name]["response"]["status_code"] == 400
        assert errors[name]["error"] is None
    assert errors["unknown-url"]["error"]["code"] == "unknown_url"
    assert errors["streamed"]["error"]["code"] == "stream_not_supported"


def test_answers_are_those_of_single_requests(auto: Running, tmp_path: Path) -> None:
    answers = draw(tmp_path / "pictures", 40)
    words = ["images", str(tmp_path / "pictures"), "--prompt", QUESTION, "--temperature", "0"]
    words += ["--max-tokens", "24", "--url", auto.url, "--quiet"]
    assert command.main([*words, "--output", str(tmp_path / "out.jsonl")]) == 0
    found = read(tmp_path / "out.jsonl")
    right = sum(
        one["response"]["body"]["choices"][0]["message"]["content"] == answers[name]
        for name, one in found.items()
    )
    assert right >= 38


def test_structured_answers_of_all_three_endpoints(auto: Running, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    draw(tmp_path / "pictures", 4)
    (tmp_path / "box.json").write_text(json.dumps(pictures.SCHEMAS["box"]))
    words = ["images", str(tmp_path / "pictures"), "--prompt", "Give the bounding box."]
    words += ["--schema", str(tmp_path / "box.json"), "--validate", "--max-tokens", "64"]
    output = tmp_path / "boxes.parquet"
    assert command.main([*words, "--output", str(output), "--url", auto.url, "--quiet"]) == 0
    rows = pq.read_table(output).to_pylist()
    assert len(rows) == 4
    assert all(row["valid"] and isinstance(row["x1"], int) for row in rows)


class Chat:
    """One chat after the other beside a job; times until the first token."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self.times: list[float] = []

    def ask(self, count: int) -> float:
        """So many chats; the median time to the first token, in seconds."""
        times = []
        for number in range(count):
            began = time.monotonic()
            stream = self._client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Chat {number}"}],
                max_tokens=4,
                stream=True,
            )
            next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
            times.append(time.monotonic() - began)
            stream.close()
        return statistics.median(times)


def test_bj_09_a_chat_beside_a_job_keeps_its_time_to_first_token(tmp_path: Path) -> None:
    flags = ["--enable-priority-scheduling", "--default-priority-value", "0"]
    flags += ["--max-running-requests", "16"]
    rows = [chat(f"row-{n}", f"Row {n}?", max_tokens=64, ignore_eos=True) for n in range(3000)]
    source, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    words = ["run", str(source), "--output", str(output), "--quiet", "--grace", "0.1"]
    with Running(arguments=["--model-path", MODEL, *flags], folder=tmp_path) as running:
        chats = Chat(running.client)
        chats.ask(3)
        alone = chats.ask(15)
        job = subprocess.Popen([*PHOTON, *words, "--url", running.url, "--in-flight", "64"])
        try:
            wait_until(lambda: running.running_requests() >= 16, limit_s=30)
            beside = chats.ask(15)
            still_running = job.poll() is None
        finally:
            job.terminate()
            assert job.wait(30) == 130
    print(f"time to first token: alone {alone * 1e3:.0f} ms, beside {beside * 1e3:.0f} ms")
    assert still_running
    assert read(output).keys() | read(tmp_path / "out.errors.jsonl").keys() == {
        f"row-{n}" for n in range(3000)
    }
    assert beside <= 2 * alone + 0.1
