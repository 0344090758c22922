"""What a recording does to its target: measured, not assumed.

Three figures: how often the target was found stopped by the profiler; how much longer its steps
took than just before, where it keeps step records; and the cores that the profiler itself used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sglang_photon.observe import layout
from sglang_photon.observe.phases import IDLE, WAIT
from sglang_photon.observe.reader import Records

FEWEST_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """Attributes are None where they could not be measured.

    Attributes:
        stopped_pct: share of looks that found the target stopped by a tracer.
        host_us_before: host work per step before the recording, in µs.
        host_us_during: the same while it ran.
        profiler_cores: cores that the profiler used.
    """

    stopped_pct: float | None
    host_us_before: float | None
    host_us_during: float | None
    profiler_cores: float | None

    @property
    def slower_pct(self) -> float | None:
        """By how much the host work of a step grew."""
        if not self.host_us_before or self.host_us_during is None:
            return None
        return (self.host_us_during / self.host_us_before - 1) * 100

    def describe(self) -> str:
        """One line."""
        stopped = "unknown" if self.stopped_pct is None else f"{self.stopped_pct:.1f} % of the time"
        slower = self.slower_pct
        steps = (
            "host work per step unknown"
            if slower is None
            else (
                f"host work per step {self.host_us_before:.0f} µs before, "
                f"{self.host_us_during:.0f} µs during ({slower:+.0f} %)"
            )
        )
        cores = "" if self.profiler_cores is None else f", profiler {self.profiler_cores:.2f} cores"
        return f"target stopped {stopped}, {steps}{cores}"


class StopWatch:
    """Looks again and again whether a process is stopped by a tracer.

    Args:
        pid: whom.
        every_s: how often; not a divisor of usual sampling periods.
    """

    def __init__(self, pid: int, *, every_s: float = 0.0037) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._every_s = every_s
        self._end = threading.Event()
        self._looks = self._stopped = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Share of the looks, in percent; None where it could not look."""
        self._end.set()
        self._thread.join()
        return self._stopped / self._looks * 100 if self._looks else None

    def _watch(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                state = self._stat.read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            self._looks += 1
            self._stopped += state in "tT"


class CoreUse:
    """What the kernel says about a process's main thread.

    Args:
        pid: whose.
    """

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._began = time.perf_counter()
        self._before = self._seconds()

    def stop(self) -> tuple[float | None, float | None]:
        """Percent of the time since in which it ran, and was ready to run without having a core.

        None where the kernel does not count.
        """
        now, seconds = self._seconds(), time.perf_counter() - self._began
        if now is None or self._before is None or seconds <= 0:
            return None, None
        ran, waited = ((b - a) / seconds * 100 for a, b in zip(self._before, now, strict=True))
        return ran, waited

    def _seconds(self) -> tuple[float, float] | None:
        try:
            ran, waited, *_ = self._file.read_text().split()
            return int(ran) * 1e-9, int(waited) * 1e-9
        except (OSError, ValueError):
            return None


def host_us_per_step(records: Records) -> float | None:
    """Median host work between two launches, in µs; None for too few steps."""
    if len(records) < FEWEST_STEPS:
        return None
    spent = records["spent"]
    work = [phase for phase in range(spent.shape[1]) if phase not in (WAIT, IDLE)]
    per_step = np.diff(spent[:, work].sum(axis=1))
    decode = records["kind"][1:] == layout.KINDS.index("decode")
    chosen = per_step[decode] if np.count_nonzero(decode) >= FEWEST_STEPS else per_step
    return float(np.median(chosen)) * 1e6


def measure(
    *,
    stopped_pct: Sequence[float | None],
    before: Records | None,
    during: Records | None,
    cpu_s: float,
    seconds: float,
) -> Perturbation:
    """Put the figures together."""
    known = [share for share in stopped_pct if share is not None]
    return Perturbation(
        stopped_pct=max(known, default=None),
        host_us_before=None if before is None else host_us_per_step(before),
        host_us_during=None if during is None else host_us_per_step(during),
        profiler_cores=cpu_s / seconds if seconds > 0 else None,
    )
