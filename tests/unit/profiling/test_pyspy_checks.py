"""What is refused before py-spy touches anything, and what its own refusals become."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sglang_photon.profiling import pyspy
from sglang_photon.profiling.command import main, say_samples
from sglang_photon.profiling.pyspy import (
    NoPtraceError,
    Outcome,
    PySpyError,
    PySpyTooOldError,
    Recording,
    TargetGoneError,
    Tool,
    check,
    find_tool,
    resume,
    yama_scope,
)
from sglang_photon.profiling.sources import gil_pct
from sglang_photon.profiling.targets import Target, python_of
from tests.unit.profiling.recordings import recording

FAILS = 'case "$1" in --version) echo py-spy 0.4.3;; *) echo "Error: {}"; exit 1;; esac'


def stub(folder: Path, body: str) -> dict[str, str]:
    """A py-spy that runs a shell script; the environment that finds it."""
    folder.mkdir(exist_ok=True)
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def target(pid: int = 1, python: tuple[int, int] = (3, 12)) -> Target:
    return Target(pid=pid, role="scheduler", name="scheduler", python=python, threads=1)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")


def test_py_01_no_right_to_attach(
    tmp_path: Path,
    victim: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environ = stub(tmp_path / "bin", FAILS.format("Operation not permitted (os error 1)"))
    tool = find_tool(environ)
    monkeypatch.setattr(pyspy, "find_tool", lambda: tool)
    output = str(tmp_path / "out")
    code = main(["record", "--pid", str(victim.pid), "--seconds", "1", "--output", output])
    said = capsys.readouterr().err
    assert code == NoPtraceError.exit_code == 4
    assert "--cap-add SYS_PTRACE" in said
    assert yama_scope() in said
    assert "as py-spy's child" in said
    assert "--in-process" in said
    assert victim.poll() is None
    assert "TracerPid:\t0\n" in Path(f"/proc/{victim.pid}/status").read_text()


NOTHING = """
[ "$1" = --version ] && { echo py-spy 0.4.3; exit; }
while [ "$1" != --output ]; do shift; done
out="$2"
trap 'echo "[]" > "$out"; echo "Samples: 0 Errors: 0"; exit' INT
echo "Sampling process 100 times a second"
while :; do sleep 0.05; done
"""


def test_no_samples_at_all_are_a_valid_recording(
    tmp_path: Path,
    victim: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = find_tool(stub(tmp_path / "bin", NOTHING))
    monkeypatch.setattr(pyspy, "find_tool", lambda: tool)
    out = tmp_path / "out"
    words = ["record", "--pid", str(victim.pid), "--seconds", "0.3", "--output", str(out)]
    assert main(words) == 0
    assert "no stacks: 100 % waiting" in capsys.readouterr().out
    assert "cannot tell" in (out / "report.html").read_text()


def test_a_verdict_that_fails_leaves_no_folder_behind(
    tmp_path: Path, victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = find_tool(stub(tmp_path / "bin", FAILS.format("bad magic 7")))
    monkeypatch.setattr(pyspy, "find_tool", lambda: tool)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert main(["verdict", "--pid", str(victim.pid), "--seconds", "0.2"]) == 1
    assert list((tmp_path / "temporary").iterdir()) == []


WRITER = """
from sglang_photon.observe.meter import StepMeter
from sglang_photon.records import StepKind
import time
meter = StepMeter()
print("ready", flush=True)
while True:
    began = time.perf_counter()
    meter.launched(0, kind=StepKind.DECODE, rows=1, lockstep=None, inside=None)
    time.sleep(0.01)
    meter.committed(0, zombies=0, busy=(began, began + 0.009, 0.0))
"""


def test_py_01_a_verdict_does_without_stacks_where_it_has_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = find_tool(stub(tmp_path / "bin", FAILS.format("Operation not permitted (os error 1)")))
    monkeypatch.setattr(pyspy, "find_tool", lambda: tool)
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == b"ready\n"
            words = ["verdict", "--pid", str(target.pid), "--seconds", "1"]
            code = main([*words, "--max-idle", "50"])
        finally:
            target.kill()
    said = capsys.readouterr().out
    assert code == 0, said
    assert "bubbles: no" in said
    assert "note: no stacks" in said
    assert "SYS_PTRACE" in said


@pytest.mark.parametrize(
    ("version", "python", "needed"),
    [("0.3.14", (3, 12), "0.4.0"), ("0.4.1", (3, 14), "0.4.2"), ("0.3.14", (3, 11), "0.4.0")],
)
def test_py_02_too_old_for_the_python(
    tmp_path: Path, version: str, python: tuple[int, int], needed: str
) -> None:
    environ = stub(
        tmp_path, f'[ "$1" = --version ] && echo py-spy {version} || touch {tmp_path}/attached'
    )
    tool = find_tool(environ)
    with pytest.raises(PySpyTooOldError) as error:
        check(tool, target(python=python))
    said = str(error.value)
    assert str(tmp_path / "py-spy") in said
    assert f"is py-spy {version}" in said
    assert f"needs {needed}" in said
    assert "sudo" in said
    assert not (tmp_path / "attached").exists()


def test_py_02_one_that_is_new_enough_passes() -> None:
    check(Tool(path="py-spy", version=(0, 4, 3)), target(python=(3, 14)))


@pytest.mark.parametrize(("samples", "share"), [(None, None), (0, None), (50, 25.0), (900, 100.0)])
def test_py_09_a_gil_without_data_is_unknown_and_never_0(
    samples: int | None,
    share: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = Outcome(
        file=tmp_path,
        offset=0.0,
        started=10.0,
        ended=12.0,
        samples=samples,
        errors=0,
        behind=False,
        non_blocking=False,
        in_time=True,
        cpu_s=0.0,
    )
    assert gil_pct(outcome, 100) == share
    made = recording(tmp_path / "r", sampler="py-spy 0.4.3, only threads with the GIL")
    say_samples({"name": "s", "pid": 1, "samples": samples, "gil_pct": share}, made)
    said = capsys.readouterr().out.partition("GIL held ")[2]
    assert said == ("unknown\n" if share is None else f"{share:.0f} % of the time\n")


def test_no_py_spy_and_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(PySpyError, match="pip install py-spy"):
        find_tool({"PATH": str(tmp_path)})
    with pytest.raises(PySpyError, match="does not tell its version"):
        find_tool(stub(tmp_path / "bin", "exit 1"))


def record(tool: Tool, process: Target, folder: Path) -> Recording:
    return Recording(tool=tool, target=process, file=folder / "t.json", rate=100, seconds=1)


def test_a_process_that_is_gone(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    environ = stub(
        tmp_path,
        'case "$1" in --version) echo 0.4.3;; *) echo "Error: No such process"; exit 1;; esac',
    )
    spy = record(find_tool(environ), target(victim.pid), tmp_path)
    assert not spy.wait_started(10)
    with pytest.raises(TargetGoneError, match="is gone"):
        spy.stop()


def test_any_other_failure_is_shown_as_it_is(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    environ = stub(tmp_path, FAILS.format("bad magic 7"))
    spy = record(find_tool(environ), target(victim.pid), tmp_path)
    spy.wait_started(10)
    with pytest.raises(PySpyError, match="bad magic 7"):
        spy.stop()


def test_a_process_left_stopped_goes_on(victim: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(victim.pid)
    victim.send_signal(signal.SIGSTOP)
    while process.status() != psutil.STATUS_STOPPED:
        os.sched_yield()
    resume(victim.pid)
    while process.status() == psutil.STATUS_STOPPED:
        os.sched_yield()
    resume(1 << 30)


def test_the_targets_python_is_read_from_its_files(victim: subprocess.Popen[bytes]) -> None:
    assert python_of(victim.pid) == sys.version_info[:2]
    assert python_of(1 << 30) is None
