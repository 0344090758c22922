"""Records as another process sees them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_photon.observe import layout
from sglang_photon.observe.meter import StepMeter
from sglang_photon.observe.reader import NoStepsError, StepReader
from sglang_photon.observe.ring import StepRing
from sglang_photon.records import StepKind

WRITER = """
import sys
from sglang_photon.observe.meter import StepMeter
from sglang_photon.records import StepKind
meter = StepMeter()
meter.ring.describe({"loop": "photon", "lane": "sim"})
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        meter.launched(0, kind=StepKind.DECODE, rows=7, lockstep=None, inside=None)
        meter.committed(0, zombies=1, busy=(1.0, 2.0, 0.0))
    print("done", flush=True)
"""


def step(meter: StepMeter) -> None:
    meter.launched(0, kind=StepKind.DECODE, rows=1, lockstep=None, inside=None)
    meter.committed(0, zombies=0, busy=None)


def test_another_process_reads_what_is_committed_after_it_attached() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"

        def work(steps: int) -> None:
            assert writer.stdin is not None
            assert writer.stdout is not None
            print(steps, file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "done\n"

        work(3)
        before = time.perf_counter()
        reader = StepReader.of_process(writer.pid)
        assert reader.facts() == {"loop": "photon", "lane": "sim"}
        assert len(reader.read()) == 0
        work(5)
        records = reader.read()
        assert records["step"].tolist() == [3, 4, 5, 6, 7]
        assert set(records["rows"].tolist()) == {7}
        assert (records["end"] - records["start"]).tolist() == [1.0] * 5
        # The same clock in both processes.
        assert before < records["committed"][0] < time.perf_counter()
        assert len(reader.read()) == 0
        writer.stdin.close()
        assert writer.wait() == 0
    with pytest.raises(NoStepsError, match="There is no process"):
        StepReader.of_process(writer.pid)


def test_what_was_overwritten_is_missed_and_counted() -> None:
    meter = StepMeter(ring=StepRing(capacity=4))
    reader = StepReader(meter.ring.memory)
    for _ in range(10):
        step(meter)
    assert reader.read()["step"].tolist() == [7, 8, 9]
    assert reader.missed == 7
    step(meter)
    assert reader.read()["step"].tolist() == [10]


def test_a_process_without_records_is_told_how_to_have_some() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with pytest.raises(NoStepsError, match=r"keeps no step records\. Serve with"):
            StepReader.of_process(other.pid)
        other.communicate(b"\n")


def test_a_copy_that_a_forked_child_inherited_is_not_the_childs() -> None:
    ring = StepRing()
    assert ring.shared
    assert StepReader.of_process(os.getpid()).owner == os.getpid()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        with pytest.raises(NoStepsError, match="keeps no step records"):
            StepReader.of_process(child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_somebody_elses_process_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(NoStepsError, match="another user"):
        StepReader.of_process(1, proc=tmp_path)


def test_records_of_another_version_are_not_read() -> None:
    ring = StepRing()
    layout.HEADER.pack_into(ring.memory, 0, layout.MAGIC, 99, layout.PACK.size, 1, 1, 0)
    with pytest.raises(NoStepsError, match="version 99"):
        StepReader(ring.memory)


def test_a_page_full_of_reasons_gives_no_number_and_no_damage() -> None:
    ring = StepRing(capacity=2)
    numbers = [ring.reason(f"{n} {'x' * 100}") for n in range(60)]
    full = numbers.index(0)
    assert numbers[:full] == list(range(1, full + 1))
    assert set(numbers[full:]) == {0}
    assert len(StepReader(ring.memory).reasons()) == full
    assert ring.reason("0 " + "x" * 100) == 1


def test_facts_that_are_too_long_are_left_out() -> None:
    ring = StepRing(capacity=2)
    ring.describe({"model": "m"})
    ring.describe({"model": "x" * layout.PAGE})
    assert StepReader(ring.memory).facts() == {"model": "m"}


def test_without_anonymous_files_the_meter_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    meter = StepMeter()
    assert not meter.ring.shared
    step(meter)
    assert meter.stats.commits == 1


def test_memory_that_cannot_be_reserved_is_not_shared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        assert not StepRing().shared
    assert "No space left" in caplog.text
