"""`SimLane`: a device of programmable step time, for exact tests and for benchmarks.

A GPU differs from a function call in one way that matters here: what the host submits is computed
*later*, from what memory holds then. `SimLane` keeps a job until the device would have reached it,
and only then runs it, so a buffer that the host has reused, freed or overwritten in between is read
as it is, and the tokens come out wrong.

    virtual clock   time passes only when the host waits or says so: exact, and instant
    real clock      jobs run when submitted, their results arrive when the device would be done

In tests, `hold` stops the device, or its copies, and `release` lets steps through by hand.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sglang_photon.errors import PhotonError
from sglang_photon.records import StepKind
from sglang_photon.slots.lane import Job
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.timing import Busy, BusyTimes

StepTime = Callable[[StepKind], float]


class DeviceHeldError(PhotonError):
    """The host waits for a step that a test holds back."""

    def __init__(self) -> None:
        super().__init__("The host waits for a step that is held", "Release it before the tick")


class Clock(Protocol):
    """Seconds, and how to let them pass."""

    @property
    def virtual(self) -> bool:
        """Whether time passes only when somebody waits."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def sleep_until(self, moment: float) -> None:
        """Return when `now` has reached the moment."""


class VirtualClock:
    """Time that stands still unless somebody waits for it."""

    virtual = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Jump forward; a moment that has passed changes nothing."""
        self._now = max(self._now, moment)

    def spend(self, seconds: float) -> None:
        """Let the host be busy for so long."""
        self._now += seconds


class RealClock:
    """`time.perf_counter`, and a sleep that is exact to about 20 µs and mostly leaves the core.

    Attributes:
        spun: seconds of the core that waiting took, which a GPU's driver would not have taken.
    """

    virtual = False

    SPIN = 60e-6
    """Seconds before the moment at which sleeping ends: the kernel wakes a sleeper late."""

    def __init__(self) -> None:
        self.spun = 0.0

    def now(self) -> float:
        """Seconds of the performance counter."""
        return time.perf_counter()

    def sleep_until(self, moment: float) -> None:
        """Sleep, then wait the last moments awake."""
        rest = moment - time.perf_counter()
        if rest <= 0:
            return
        if rest > self.SPIN:
            time.sleep(rest - self.SPIN)
        # Not the thread's CPU time: asking for it costs microseconds.
        awake = now = time.perf_counter()
        while now < moment:
            now = time.perf_counter()
        self.spun += now - awake


@dataclass(slots=True)
class _Pending:
    """A job that the device has not reached.

    Attributes:
        job: what it computes.
        end: the moment at which the device is done with it.
        is_copy: a copy to the host instead of work on the compute stream.
        slot: whose copy.
    """

    job: Job
    end: float
    is_copy: bool
    slot: int


class SimLane:
    """A serial device beside the host.

    Args:
        step_time: seconds that a forward takes, by its kind; sampling and copies take none.
        clock: virtual for tests, real for benchmarks.

    Attributes:
        busy: seconds of forwards submitted so far.
        idle: seconds in which the device had nothing to do between two forwards, or between a
            forward and its sampling.
        forwards: how many forwards were submitted.
    """

    name = "sim"
    asynchronous = True

    def __init__(self, *, step_time: StepTime, clock: Clock) -> None:
        self._step_time = step_time
        self._clock = clock
        self._pending: deque[_Pending] = deque()
        self._arrivals: dict[int, float] = {}
        self._times = BusyTimes()
        self._free_at = clock.now()
        self._held = False
        self._copies_held = False
        self._let_through = 0
        self.busy = 0.0
        self.idle = 0.0
        self.forwards = 0

    def submit(self, slot: DecodeSlot, job: Job, *, kind: StepKind | None = None) -> None:
        """Queue the job behind what the device still has to do."""
        now = self._clock.now()
        start = max(now, self._free_at)
        if self.forwards:
            self.idle += start - self._free_at
        self._free_at = start
        if kind is not None:
            seconds = self._step_time(kind)
            self.busy += seconds
            self.forwards += 1
            self._free_at += seconds
        self._times.note(slot.index, start=start, end=self._free_at, forward=kind is not None)
        self._queue(_Pending(job, self._free_at, is_copy=False, slot=slot.index))

    def copy(self, slot: DecodeSlot, job: Job) -> None:
        """Queue the copy; it arrives when everything submitted so far is done."""
        self._arrivals[slot.index] = self._free_at
        self._queue(_Pending(job, self._free_at, is_copy=True, slot=slot.index))

    def done(self, slot: DecodeSlot) -> bool:
        """Whether the slot's copy has arrived by now."""
        self._run_until(self._clock.now())
        if self._is_pending(slot):
            return False
        return self._arrivals.get(slot.index, 0.0) <= self._clock.now()

    def wait(self, slot: DecodeSlot) -> None:
        """Let time pass until the slot's copy arrives.

        Raises:
            DeviceHeldError: a test holds the step or its copy back.
        """
        self._clock.sleep_until(self._arrivals[slot.index])
        self._run_until(self._clock.now())
        if self._is_pending(slot):
            raise DeviceHeldError

    def worked(self, slot: DecodeSlot) -> Busy | None:
        """When the device works on the slot's step."""
        return self._times.of(slot.index)

    def close(self) -> None:
        """Let everything through, then run it."""
        self._held = self._copies_held = False
        self._run_until(float("inf"))

    def hold(self, *, copies_only: bool = False) -> None:
        """Stop the device, or only its copies, until `release`."""
        self._held = not copies_only
        self._copies_held = True

    def release(self, *, jobs: int | None = None) -> None:
        """Let the next `jobs` held jobs (forwards, samplings and copies) through, or all."""
        if jobs is None:
            self._held = self._copies_held = False
        else:
            self._let_through += jobs
        self._run_until(self._clock.now())

    def _queue(self, pending: _Pending) -> None:
        if self._clock.virtual or self._held or self._copies_held:
            self._pending.append(pending)
        else:
            pending.job()

    def _run_until(self, now: float) -> None:
        while self._pending and self._pending[0].end <= now:
            held = self._copies_held if self._pending[0].is_copy else self._held
            if held:
                if not self._let_through:
                    return
                self._let_through -= 1
            self._pending.popleft().job()

    def _is_pending(self, slot: DecodeSlot) -> bool:
        return any(pending.slot == slot.index for pending in self._pending)
