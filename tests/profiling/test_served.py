"""The meter and the profiler on real servers."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sglang_photon.observe import layout
from sglang_photon.observe.export import PREFIX
from sglang_photon.observe.reader import NoStepsError, StepReader
from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.phases import phase_seconds, scheduler_thread
from tests.profiling.planted import photon_profile
from tests.server.servers import CLEAN, MODEL, Running, wait_until

pytestmark = pytest.mark.server
TOKENS = 48


@contextmanager
def busy(running: Running) -> Iterator[None]:
    """One client that asks again and again."""
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            complete(running)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def complete(running: Running) -> int:
    answer = running.client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=TOKENS, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    return answer.usage.completion_tokens


def metric(page: str, name: str, *labels: str) -> float:
    (line,) = (
        line
        for line in page.splitlines()
        if line.startswith(f"{PREFIX}{name}{{") and all(label in line for label in labels)
    )
    return float(line.rsplit(" ", 1)[1])


def test_a_server_is_measured_and_recorded(tmp_path: Path) -> None:
    arguments = ["--model-path", MODEL, "--enable-metrics"]
    with Running(arguments=arguments, folder=tmp_path) as running:
        steps_are_seen_from_outside(running)
        counters_are_on_the_metrics_page(running)
        with busy(running):
            every_role_is_recorded(running, tmp_path / "roles")
            the_scheduler_samples_itself(running, tmp_path / "inside")
        assert running.stop() == CLEAN


def steps_are_seen_from_outside(running: Running) -> None:
    (pid,) = running.schedulers()
    reader = StepReader.of_process(pid)
    assert reader.facts()["loop"] == "photon"
    assert reader.facts()["lane"] == "inline"
    before = reader.written
    assert complete(running) == TOKENS
    wait_until(lambda: reader.written - before >= TOKENS, limit_s=10)
    records = reader.read()
    assert records["kind"][0] == 0
    assert records["kind"][1:].tolist() == [1] * (len(records) - 1)
    assert np.all(records["flags"] & layout.TIMED)
    assert np.all(records["end"] > records["start"])
    assert np.all(records["start"][1:] >= records["end"][:-1])
    assert records["flags"][0] & layout.RESTED


def counters_are_on_the_metrics_page(running: Running) -> None:
    (pid,) = running.schedulers()
    written = StepReader.of_process(pid).written

    def shown() -> str:
        with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as response:
            return str(response.read().decode())

    wait_until(lambda: metric(shown(), "commits_total") >= written, limit_s=20)
    page = shown()
    assert metric(page, "loop", 'loop="photon"', "tp_rank") == 1.0
    assert metric(page, "steps_total", 'kind="decode"') >= TOKENS - 1
    assert metric(page, "device_busy_seconds_total") > 0
    assert metric(page, "slots_in_flight") == 0


def every_role_is_recorded(running: Running, folder: Path) -> None:
    port = running.server.port
    listed = photon_profile("list")
    assert f"port {port}" in listed.stdout
    done = photon_profile(
        *("record", "--port", port, "--role", "all", "--seconds", 2, "--output", folder)
    )
    assert done.returncode == 0, done.stderr
    recording = Recording.open(folder)
    assert {part.role for part in recording.parts} >= {"scheduler", "tokenizer", "detokenizer"}
    assert all(part.samples is not None for part in recording.parts)
    part = recording.scheduler
    assert part is not None
    assert part.samples is not None
    assert part.steps is not None
    assert len(part.steps) > 50
    thread = scheduler_thread(part.samples)
    assert thread is not None
    shares = phase_seconds(thread, part.device)
    assert shares.get("other", 0.0) < 0.15 * thread.seconds
    assert shares["wait for device"] > 0.2 * thread.seconds
    assert (folder / "report.html").exists()


def the_scheduler_samples_itself(running: Running, folder: Path) -> None:
    done = photon_profile(
        *("record", "--port", running.server.port, "--in-process", "--seconds", 1.5),
        *("--output", folder),
    )
    assert done.returncode == 0, done.stderr
    recording = Recording.open(folder)
    assert "biased" in recording.meta["sampler"]
    part = recording.scheduler
    assert part is not None
    assert part.samples is not None
    thread = scheduler_thread(part.samples)
    assert thread is not None
    shares = phase_seconds(thread, part.device)
    assert shares["wait for device"] > 0
    assert part.samples.end - part.samples.start == pytest.approx(1.5, abs=0.5)


def test_a_stock_loop_is_measured_only_when_asked(tmp_path: Path) -> None:
    arguments = ["--model-path", MODEL, "--photon-loop", "blocking"]
    with Running(arguments=[*arguments, "--photon-meter", "on"], folder=tmp_path) as running:
        state = running.get("/server_info")["photon"]
        assert (state["loop"], state["reason"]) == (
            *("blocking", "it was asked for, with --photon-meter on"),
        )
        file = tmp_path / "verdict.json"
        with busy(running):
            done = photon_profile(
                *("verdict", "--port", running.server.port, "--seconds", 2, "--json", file)
            )
        said = json.loads(file.read_text())
        assert done.returncode == 2, done.stdout + done.stderr
        assert said["bubbles"] is True
        assert said["t_pipe_ms"] > said["t_device_ms"] > 0
        assert "serve with --photon-loop photon" in done.stdout
        (pid,) = running.schedulers()
        assert StepReader.of_process(pid).facts()["loop"] == "blocking"
        assert running.stop() == CLEAN
    with pytest.raises(NoStepsError):
        StepReader.of_process(pid)
