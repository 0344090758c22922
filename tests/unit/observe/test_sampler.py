"""A process that samples its own threads."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from sglang_photon.observe.sampler import StackSampler
from sglang_photon.profiling.samples import load


def test_own_threads_are_seen_in_the_same_format_as_py_spys(tmp_path: Path) -> None:
    end = threading.Event()

    def waits_here() -> None:
        end.wait(10)

    thread = threading.Thread(target=waits_here)
    thread.start()
    sampler = StackSampler(file=tmp_path / "own.json", rate=200, seconds=0.2)
    sampler.thread.join(10)
    end.set()
    thread.join()
    first = json.loads((tmp_path / "own.json").read_text())[0]
    samples = load(tmp_path / "own.json", offset=first["args"]["offset"])
    (seen,) = (t for t in samples.threads if t.tid == thread.ident)
    names = [frame.function for frame in seen.intervals[0].stack]
    assert "waits_here" in names
    assert names.index("waits_here") < names.index("wait")
    assert seen.seconds > 0.1
    assert first["args"]["samples"] > 5
    assert not list(tmp_path.glob("*.part"))
