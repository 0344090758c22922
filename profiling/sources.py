"""Where the stacks of a recording come from: py-spy, or nowhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sglang_photon.profiling import pyspy
from sglang_photon.profiling.perturbation import StopWatch
from sglang_photon.profiling.targets import Target

if TYPE_CHECKING:
    from sglang_photon.profiling.record import Options

START_LIMIT_S = 60.0


class Source(Protocol):
    """Takes stacks of some processes.

    Attributes:
        stopped_pct: how often each process was found stopped, once finished.
        cpu_s: seconds of a core that it used.
    """

    stopped_pct: list[float | None]
    cpu_s: float

    def start(self, stack: ExitStack) -> float:
        """Begin; returns the moment when all processes are being sampled."""

    def alive(self) -> bool:
        """Whether there is still something to record."""

    def finish(self) -> dict[int, dict[str, Any]]:
        """End; what each process's part of `meta.json` says about its samples, by process id."""

    def describe(self) -> str:
        """Who took the samples."""


class StepsOnly:
    """No stacks: the step records have to do.

    Args:
        targets: whose.
        why: nobody takes stacks.
    """

    def __init__(self, targets: Sequence[Target], why: str) -> None:
        self._targets = targets
        self._why = why
        self.stopped_pct: list[float | None] = [0.0]
        self.cpu_s = 0.0

    def start(self, stack: ExitStack) -> float:
        """Nothing to begin."""
        del stack
        return time.perf_counter()

    def alive(self) -> bool:
        """Whether a process is left."""
        return any(Path(f"/proc/{target.pid}").exists() for target in self._targets)

    def finish(self) -> dict[int, dict[str, Any]]:
        """Nothing was sampled."""
        return {}

    def describe(self) -> str:
        """Why there are no stacks."""
        return f"no stacks ({self._why})"


class ByPySpy:
    """One py-spy for each process."""

    def __init__(self, targets: Sequence[Target], folder: Path, options: Options) -> None:
        self._targets = targets
        self._folder = folder
        self._options = options
        self._tool = pyspy.find_tool()
        for target in targets:
            pyspy.check(self._tool, target)
        self._recordings: list[pyspy.Recording] = []
        self._watches: list[StopWatch] = []
        self.stopped_pct: list[float | None] = []
        self.cpu_s = 0.0

    def start(self, stack: ExitStack) -> float:
        """Attach to every process; returns the moment when all are being sampled."""
        options = self._options
        for target in self._targets:
            recording = pyspy.Recording(
                tool=self._tool,
                target=target,
                file=self._folder / f"{target.name}.trace.json",
                rate=options.rate,
                seconds=options.seconds + START_LIMIT_S,
                native=options.native,
                gil=options.gil,
                idle=options.idle,
            )
            # Whatever happens next: py-spy ends, and the target goes on.
            stack.callback(recording.abandon)
            self._recordings.append(recording)
        for recording in self._recordings:
            if not recording.wait_started(START_LIMIT_S):
                recording.stop()
        self._watches = [StopWatch(target.pid) for target in self._targets]
        return time.perf_counter()

    def alive(self) -> bool:
        """Whether there is still something to record."""
        return any(recording.running for recording in self._recordings)

    def finish(self) -> dict[int, dict[str, Any]]:
        """Stop sampling; what each process's part of `meta.json` says about its samples."""
        self.stopped_pct = [watch.stop() for watch in self._watches]
        found = {}
        for recording in self._recordings:
            outcome = recording.stop()
            self.cpu_s += outcome.cpu_s
            found[recording.target.pid] = {
                "offset": outcome.offset,
                "samples": outcome.samples,
                "errors": outcome.errors,
                "behind": outcome.behind,
                "non_blocking": outcome.non_blocking,
                "in_time": outcome.in_time,
                "gil_pct": gil_pct(outcome, self._options.rate) if self._options.gil else None,
            }
        return found

    def describe(self) -> str:
        """Which profiler took the samples."""
        version = ".".join(str(part) for part in self._tool.version)
        return f"py-spy {version}{', only threads with the GIL' if self._options.gil else ''}"


def gil_pct(outcome: pyspy.Outcome, rate: int) -> float | None:
    """Share of the samples in which a thread held the GIL, of a recording of only those.

    None where that cannot be told: no sample at all may be a GIL that py-spy cannot read.
    """
    expected = (outcome.ended - outcome.started) * rate
    if not outcome.samples or expected <= 0:
        return None
    return min(outcome.samples / expected, 1.0) * 100
