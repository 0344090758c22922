"""Real py-spy on real processes: what is written, what is survived, what it costs."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from sglang_photon.profiling.folder import Recording
from sglang_photon.profiling.phases import activity, phase_seconds, scheduler_thread
from sglang_photon.profiling.verdict import judge
from tests.profiling.planted import photon_profile

pytestmark = pytest.mark.timeout(180)


@contextmanager
def running(file: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that says "ready" and runs until it is killed."""
    file.write_text(textwrap.dedent(program))
    with subprocess.Popen(
        [sys.executable, str(file), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


SPIN = """
    import threading, time

    def spin():
        number = 0
        while True:
            number += 1

    def sleeper():
        while True:
            time.sleep(0.05)

    held = threading.Lock()
    held.acquire()

    def waiter():
        held.acquire()

    for work in (sleeper, waiter):
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    spin()
"""


def test_py_08_waiting_threads_are_not_at_work(tmp_path: Path) -> None:
    with running(tmp_path / "three.py", SPIN) as target:
        done = photon_profile(
            *("record", "--pid", target.pid, "--seconds", 2, "--output", tmp_path / "out")
        )
    assert done.returncode == 0, done.stderr
    assert "perturbation: target stopped" in done.stdout
    (part,) = Recording.open(tmp_path / "out").parts
    assert part.samples is not None
    assert len(part.samples.threads) == 3
    found = activity(part.samples, part.device)
    spinning = sum(s for name, s in found.busy.items() if name.startswith("spin "))
    assert spinning / sum(found.busy.values()) >= 0.95
    waiting = " ".join(found.waiting)
    assert "sleeper" in waiting
    assert "waiter" in waiting
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {
        *(".json", ".txt", ".svg", ".html"),
    }


FAMILY = """
    import subprocess, sys, time

    def parent_part():
        while True:
            time.sleep(0.01)

    def child_part():
        while True:
            time.sleep(0.01)

    if len(sys.argv) > 1:
        child_part()
    subprocess.Popen([sys.executable, __file__, "child"])
    subprocess.Popen(["sleep", "300"])
    time.sleep(0.5)
    print("ready", flush=True)
    parent_part()
"""


def test_py_03_a_child_that_is_not_python_is_left_out(tmp_path: Path) -> None:
    with running(tmp_path / "family.py", FAMILY) as target:
        (sleep,) = (
            child for child in psutil.Process(target.pid).children() if child.name() == "sleep"
        )
        done = photon_profile(
            *("record", "--pid", target.pid, "--seconds", 1, "--output", tmp_path / "out")
        )
    assert done.returncode == 0, done.stderr
    assert f"process {sleep.pid} (sleep) is not Python and is left out" in done.stderr
    stacks = "".join(path.read_text() for path in (tmp_path / "out").glob("*.stacks.txt"))
    assert "parent_part" in stacks
    assert "child_part" in stacks
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["server"]["skipped"] == [[sleep.pid, "sleep"]]


NATIVE = """
    import ctypes, sys, time

    libc = ctypes.CDLL(None)
    for _ in range(64):
        thread = ctypes.c_ulong()
        pause = ctypes.cast(libc.pause, ctypes.c_void_p)
        libc.pthread_create(ctypes.byref(thread), None, pause, None)
    print("ready", flush=True)
    with open(sys.argv[1], "w", buffering=1) as log:
        while True:
            began = time.perf_counter()
            sum(range(20_000))
            print(began, time.perf_counter() - began, file=log)
            time.sleep(0.001)
"""


def test_py_04_a_process_with_many_native_threads_is_hardly_slowed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(tmp_path / "native.py", NATIVE, str(log)) as target:
        assert psutil.Process(target.pid).num_threads() >= 65
        time.sleep(1.0)
        done = photon_profile(
            *("record", "--pid", target.pid, "--seconds", 2, "--output", tmp_path / "out")
        )
    assert done.returncode == 0, done.stderr
    assert "taken without stopping its threads" in done.stdout
    assert "perturbation: target stopped 0.0 % of the time" in done.stdout
    start, end = Recording.open(tmp_path / "out").span
    loops = [tuple(map(float, line.split())) for line in log.read_text().splitlines()[:-1]]
    during = [took for at, took in loops if start <= at <= end]
    before = [took for at, took in loops if at < start - 0.5]
    # The median: on busy cores single loops are interrupted by others.
    assert statistics.median(during) <= statistics.median(before) * 1.10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_py_07_an_interrupted_recording_is_a_shorter_one(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with running(tmp_path / "three.py", SPIN) as target:
        command = [sys.executable, "-m", "sglang_photon", "profile", "record"]
        command += ["--pid", str(target.pid), "--seconds", "60", "--output", str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
            deadline = time.monotonic() + 60
            while not _py_spy_below(recorder.pid):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(2.0)
            recorder.send_signal(number)
            said, _ = recorder.communicate(timeout=60)
        assert recorder.returncode == 0
        assert target.poll() is None
        assert psutil.Process(target.pid).status() != psutil.STATUS_STOPPED
    assert "interrupted, " in said
    assert "of 60 s asked" in said
    recording = Recording.open(out)
    assert recording.meta["span"]["interrupted"]
    assert 0.5 < recording.meta["span"]["seconds"] < 10
    (part,) = recording.parts
    assert part.samples is not None
    assert part.samples.end - part.samples.start == pytest.approx(
        recording.meta["span"]["seconds"], abs=1.0
    )


def _py_spy_below(pid: int) -> bool:
    return any(child.name() == "py-spy" for child in psutil.Process(pid).children())


DEVICE = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from torch.cuda.streams import Event

    def commit_rows():
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass

    def process_batch_result(event):
        event.synchronize()
        commit_rows()

    def event_loop_overlap():
        while True:
            process_batch_result(Event())

    print("ready", flush=True)
    event_loop_overlap()
"""
EVENT = "import time\n\n\nclass Event:\n    def synchronize(self):\n        time.sleep(0.008)\n"


def test_py_11_waiting_for_the_device_is_not_host_work(tmp_path: Path) -> None:
    fake = tmp_path / "lib" / "torch" / "cuda"
    fake.mkdir(parents=True)
    (fake / "streams.py").write_text(EVENT)
    for package in (fake, fake.parent):
        (package / "__init__.py").touch()
    scheduler = tmp_path / "managers" / "scheduler.py"
    scheduler.parent.mkdir()
    with running(scheduler, DEVICE, str(tmp_path / "lib")) as target:
        done = photon_profile(
            *("record", "--pid", target.pid, "--seconds", 3, "--rate", 200),
            *("--output", tmp_path / "out"),
        )
        asked = photon_profile("verdict", "--pid", target.pid, "--seconds", 1)
    assert done.returncode == 0, done.stderr
    recording = Recording.open(tmp_path / "out")
    (part,) = recording.parts
    assert part.samples is not None
    thread = scheduler_thread(part.samples)
    assert thread is not None
    shares = phase_seconds(thread, part.device)
    assert shares["wait for device"] / thread.seconds == pytest.approx(0.8, abs=0.1)
    assert shares["commit"] / thread.seconds == pytest.approx(0.2, abs=0.1)
    # Without device times nobody can say whether the device was idle meanwhile.
    assert judge(recording, max_idle_pct=2).exit_code == 3
    assert asked.returncode == 3
    assert "cannot tell, no device timing" in asked.stdout


def test_py_09_a_gil_that_is_held_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "three.py", SPIN) as target:
        done = photon_profile(
            *("record", "--pid", target.pid, "--gil", "--seconds", 2),
            *("--output", tmp_path / "out"),
        )
    assert done.returncode == 0, done.stderr
    share = json.loads((tmp_path / "out" / "meta.json").read_text())["parts"][0]["gil_pct"]
    assert share > 50


def test_two_clocks_agree_to_a_few_milliseconds(tmp_path: Path) -> None:
    program = """
        import sys, time

        def first(end):
            while time.perf_counter() < end:
                pass

        def second(end):
            while time.perf_counter() < end:
                pass

        print("ready", flush=True)
        with open(sys.argv[1], "w", buffering=1) as log:
            while True:
                for work in (first, second):
                    now = time.perf_counter()
                    print(work.__name__, now, file=log)
                    work(now + 0.05)
    """
    log = tmp_path / "log"
    with running(tmp_path / "two.py", program, str(log)) as target:
        photon_profile(
            *("record", "--pid", target.pid, "--seconds", 2, "--rate", 200),
            *("--output", tmp_path / "out"),
        )
    (part,) = Recording.open(tmp_path / "out").parts
    assert part.samples is not None
    began: dict[str, list[float]] = {"first": [], "second": []}
    for line in log.read_text().splitlines()[:-1]:
        name, moment = line.split()
        began[name].append(float(moment))
    errors = []
    (thread,) = part.samples.threads
    for before, after in zip(thread.intervals, thread.intervals[1:], strict=False):
        name = after.stack[-1].function
        if name in began and before.stack[-1].function != name:
            moments = np.array(began[name])
            errors.append(after.start - moments[np.abs(moments - after.start).argmin()])
    assert len(errors) > 10
    assert abs(statistics.median(errors)) < 0.01
