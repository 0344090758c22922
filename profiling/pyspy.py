"""Run py-spy: find it, know before it attaches whether it can do the job, stop it well."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sglang_photon.errors import PhotonError
from sglang_photon.profiling.targets import Target

NEEDED = {(3, 11): (0, 3, 13), (3, 12): (0, 4, 0), (3, 13): (0, 4, 0), (3, 14): (0, 4, 2)}
"""The first py-spy that reads a Python, by py-spy's release notes."""

CHROMETRACE_SINCE = (0, 4, 0)
STOPPABLE_THREADS = 16
"""With more threads than this, stopping all of them for every sample costs the target too much:
samples are then taken without stopping it."""

WRITES_LIMIT_S = 60.0
STARTED = re.compile(r"Sampling process")
WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")
REFUSED = re.compile(r"Operation not permitted|Permission [Dd]enied|EPERM|SYS_PTRACE|ptrace")
GONE = re.compile(r"No such process|Failed to open process|process .* not found|ESRCH", re.I)


class PySpyError(PhotonError):
    """py-spy cannot be used here."""


class NoPtraceError(PySpyError):
    """The kernel does not let this user look into the process."""

    exit_code = 4


class PySpyTooOldError(PySpyError):
    """This py-spy does not know the target's Python, or the trace format."""

    exit_code = 5


class TargetGoneError(PySpyError):
    """The process ended."""

    exit_code = 6


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A py-spy.

    Attributes:
        path: the program.
        version: what it calls itself.
    """

    path: str
    version: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One recording.

    Attributes:
        file: py-spy's Chrome trace.
        offset: moment of `time.perf_counter` from which its times count.
        started: the first sample; `ended`: the last possible one.
        samples: stacks taken, all threads together; None where py-spy did not say.
        errors: stacks that could not be read.
        behind: py-spy could not keep the rate.
        non_blocking: taken without stopping the target.
        in_time: taken with a priority that finds the target at work as often as it works.
        cpu_s: seconds of a core that py-spy used.
    """

    file: Path
    offset: float
    started: float
    ended: float
    samples: int | None
    errors: int
    behind: bool
    non_blocking: bool
    in_time: bool
    cpu_s: float


def find_tool(environ: dict[str, str] | None = None) -> Tool:
    """The py-spy of this environment, else the one on the path.

    Raises:
        PySpyError: there is none.
    """
    path = (os.environ if environ is None else environ).get("PATH", "")
    beside = Path(sys.executable).with_name("py-spy")
    found = (
        str(beside) if beside.exists() and environ is None else shutil.which("py-spy", path=path)
    )
    if found is None:
        raise PySpyError("py-spy is not installed", "pip install py-spy")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    numbers = re.search(r"(\d+(?:\.\d+)+)", said.stdout + said.stderr)
    if numbers is None:
        raise PySpyError(f"{found} does not tell its version", "Reinstall it: pip install py-spy")
    return Tool(path=found, version=tuple(int(part) for part in numbers[1].split(".")))


def check(tool: Tool, target: Target) -> None:
    """Refuse before anything is attached.

    Raises:
        PySpyTooOldError: for this Python, or for the format.
    """
    python = target.python or (3, 11)
    needed = max(NEEDED.get(python, CHROMETRACE_SINCE), CHROMETRACE_SINCE)
    if tool.version < needed:
        raise PySpyTooOldError(
            f"{tool.path} is py-spy {_text(tool.version)}; Python {_text(python)} of process "
            f"{target.pid} needs {_text(needed)}",
            "Upgrade it (pip install -U py-spy); sudo may find another one than you do",
        )


class Recording:
    """py-spy at work on one process.

    Args:
        tool: which py-spy.
        target: the process.
        file: where the trace goes.
        rate: samples per second.
        seconds: for how long at most.
        native: frames of compiled code too.
        gil: only threads that hold the GIL.
        idle: threads that wait, too.
    """

    def __init__(
        self,
        *,
        tool: Tool,
        target: Target,
        file: Path,
        rate: int,
        seconds: float,
        native: bool = False,
        gil: bool = False,
        idle: bool = True,
    ) -> None:
        self.target = target
        self._file = file
        # py-spy takes whole seconds; the end is ours to say, by a signal.
        self.non_blocking = target.threads > STOPPABLE_THREADS and not native
        command = [tool.path, "record", "--pid", str(target.pid), "--rate", str(rate)]
        command += ["--duration", str(int(seconds) + 5), "--format", "chrometrace"]
        command += ["--full-filenames", "--output", str(file)]
        wanted = (
            ("--native", native),
            ("--gil", gil),
            ("--idle", idle and not gil),
            ("--nonblocking", self.non_blocking),
        )
        command += [flag for flag, given in wanted if given]
        self._started: float | None = None
        self._in_time = False
        self._began = threading.Event()
        self._lines: list[str] = []
        self._cpu_s = 0.0
        self._ended = 0.0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C is for the recorder, which passes it on.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_started(self, limit_s: float) -> bool:
        """Return when the first sample is being taken, or py-spy has given up."""
        return self._began.wait(limit_s) and self._started is not None

    @property
    def running(self) -> bool:
        """Whether py-spy is still at it."""
        return self._process.poll() is None

    def stop(self) -> Outcome:
        """End the recording; py-spy writes what it has.

        Raises:
            NoPtraceError, TargetGoneError, PySpyError: it could not record.
        """
        self._ended = time.perf_counter()
        if self.running:
            self._note_cpu()
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(WRITES_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        resume(self.target.pid)
        text = "".join(self._lines)
        if self._started is None or not self._file.exists():
            raise _explained(text, self.target)
        wrote = WROTE.search(text)
        first = _first_moment(self._file)
        return Outcome(
            file=self._file,
            offset=self._started - first,
            started=self._started,
            ended=self._ended,
            samples=int(wrote[1]) if wrote else None,
            errors=int(wrote[2]) if wrote else 0,
            behind="behind in sampling" in text,
            non_blocking=self.non_blocking,
            in_time=self._in_time,
            cpu_s=self._cpu_s,
        )

    def abandon(self) -> None:
        """End py-spy if it still runs, whatever it has; the target goes on."""
        if self.running:
            self._process.kill()
            self._process.wait()
            resume(self.target.pid)

    def _hurry(self) -> None:
        """Let py-spy run when its time has come, where this user may ask for that.

        On busy cores it would otherwise get its turn when the target has just begun to wait, and
        would find it waiting far too often.
        """
        for task in Path(f"/proc/{self._process.pid}/task").glob("*"):
            try:
                os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(1))
            except OSError:
                return
        self._in_time = True

    def _note_cpu(self) -> None:
        try:
            times = psutil.Process(self._process.pid).cpu_times()
            self._cpu_s = times.user + times.system
        except psutil.Error:
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self._started is None and STARTED.search(line):
                self._started = time.perf_counter()
                self._hurry()
                self._began.set()
            self._lines.append(line)
        self._began.set()


def resume(pid: int) -> None:
    """Let a process go on that a killed py-spy has left stopped."""
    try:
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            os.kill(pid, signal.SIGCONT)
    except (psutil.Error, OSError):
        return


def yama_scope(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> str:
    """What the kernel says about ptrace, for people."""
    try:
        return f"kernel.yama.ptrace_scope is {path.read_text().strip()}"
    except OSError:
        return "kernel.yama.ptrace_scope does not exist here"


def _first_moment(file: Path) -> float:
    """Seconds from py-spy's start to its first sample; the file's first event tells."""
    with file.open() as stream:
        head = stream.read(1 << 16)
    match = re.search(r'"ts":\s*(\d+)', head)
    return int(match[1]) * 1e-6 if match else 0.0


def _explained(text: str, target: Target) -> PySpyError:
    said = " ".join(text.split())[-300:]
    if not psutil.pid_exists(target.pid) or GONE.search(text):
        return TargetGoneError(
            f"Process {target.pid} ({target.name}) is gone", "Is the server still running?"
        )
    if REFUSED.search(text):
        return NoPtraceError(
            f"py-spy may not look into process {target.pid} ({target.name}): {yama_scope()}",
            "Run as root (sudo), or start the container with --cap-add SYS_PTRACE, or set "
            "kernel.yama.ptrace_scope=0, or start the server as py-spy's child (py-spy record "
            "--subprocesses -- COMMAND), or sample from inside the scheduler with --in-process",
        )
    return PySpyError(f"py-spy failed on process {target.pid}: {said}", "See its message")


def _text(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)
