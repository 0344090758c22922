"""The bubble meter of a real server: on its `/metrics`, and from another process."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import numpy as np
import pytest

from sglang_photon.observe import layout
from sglang_photon.observe.export import PREFIX
from sglang_photon.observe.reader import StepReader
from tests.server.servers import CLEAN, MODEL, Running, wait_until

pytestmark = pytest.mark.server
TOKENS = 48


def metric(page: str, name: str, *labels: str) -> float:
    (line,) = (
        line
        for line in page.splitlines()
        if line.startswith(f"{PREFIX}{name}{{") and all(label in line for label in labels)
    )
    return float(line.rsplit(" ", 1)[1])


def test_steps_are_seen_from_outside_and_on_the_metrics_page(tmp_path: Path) -> None:
    arguments = ["--model-path", MODEL, "--enable-metrics"]
    with Running(arguments=arguments, folder=tmp_path) as running:
        (pid,) = running.schedulers()
        reader = StepReader.of_process(pid)
        assert reader.facts()["loop"] == "photon"
        assert reader.facts()["lane"] == "inline"
        before = reader.written
        answer = running.client.completions.create(
            model=MODEL, prompt="Hello", max_tokens=TOKENS, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == TOKENS
        wait_until(lambda: reader.written - before >= TOKENS, limit_s=10)
        records = reader.read()
        assert records["kind"][0] == 0
        assert records["kind"][1:].tolist() == [1] * (len(records) - 1)
        assert np.all(records["flags"] & layout.TIMED)
        assert np.all(records["end"] > records["start"])
        assert np.all(records["start"][1:] >= records["end"][:-1])
        assert records["flags"][0] & layout.RESTED

        def shown() -> str:
            with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as response:
                return str(response.read().decode())

        wait_until(lambda: metric(shown(), "commits_total") >= reader.written, limit_s=20)
        page = shown()
        assert metric(page, "loop", 'loop="photon"', "tp_rank") == 1.0
        assert metric(page, "steps_total", 'kind="decode"') >= TOKENS - 1
        assert metric(page, "device_busy_seconds_total") > 0
        assert metric(page, "slots_in_flight") == 0
        assert running.stop() == CLEAN
