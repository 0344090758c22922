"""The batch benchmark's parts, small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_photon.bench import batch
from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.server_process import ServerProcess

ECHO = (sys.executable, "-m", "sglang_photon.bench.echo_server")


def test_memory_is_measured_and_no_row_is_missing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert batch.main(["memory", "--memory-rows", "150", "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())["memory"]
    assert (found["rows"], found["results"]) == (150, 150)
    # Less than the pictures of all rows together: they were not held at once.
    assert 30 < found["peak_mib"] < 2 * found["rows"] * found["picture_bytes"] / 2**20


def test_the_plain_script_asks_about_every_picture(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.png").write_bytes(b"any")
    output = tmp_path / "out.jsonl"
    with ServerProcess([], log=tmp_path / "log", launcher=ECHO) as server:
        words = [str(folder), server.url, str(output), "2", "What?", "8"]
        subprocess.run(
            [sys.executable, "-m", "sglang_photon.bench.plain_batch", *words], check=True
        )
    assert len(output.read_text().splitlines()) == 5


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(UsageError):
        batch.main(["speed"])


def test_a_job_that_fails_is_no_measurement(tmp_path: Path) -> None:
    job = batch.Job(words=["run", str(tmp_path / "missing")], output=tmp_path / "out.jsonl")
    with pytest.raises(PhotonError, match="ended with 2"):
        job.run()
    assert job.results() == []
