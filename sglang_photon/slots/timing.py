"""When the device worked on a step, on the host's clock.

A lane in the host's threads looks at the clock before and after a job. A GPU is asked through
events, which say how far apart they are but not when they were; `HostClock` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Busy = tuple[float, float, float]
"""Start and end of the device's work on a step, and the seconds in between that it waited for the
step's sampling; moments as `time.perf_counter` counts them."""

TURNS = 4
"""Sets of events: those of the step before are still whole when a step has been committed and the
next two are launched."""


class BusyTimes:
    """For lanes that know the moments themselves; one entry for each slot."""

    def __init__(self) -> None:
        self._times: dict[int, Busy] = {}

    def note(self, slot: int, *, start: float, end: float, forward: bool) -> None:
        """The device worked for a slot: on a new step's forward, or on the sampling after it."""
        if not forward:
            first, last, gap = self._times.get(slot, (start, start, 0.0))
            self._times[slot] = (first, end, gap + max(0.0, start - last))
        else:
            self._times[slot] = (start, end, 0.0)

    def of(self, slot: int) -> Busy | None:
        """When the device worked on the slot's newest step."""
        return self._times.get(slot)


class DeviceTimes(Protocol):
    """Takes the times of steps, one at a time and in order."""

    def begins(self, slot: int, stream: Any, *, forward: bool) -> None:
        """Before a job's work is queued on a stream, or done."""

    def ends(self, slot: int, stream: Any, *, forward: bool) -> None:
        """After it."""

    def of(self, slot: int) -> Busy | None:
        """When the device worked on the slot's newest step."""


class WallTimes:
    """For work in the caller's own thread.

    Args:
        clock: in seconds.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = 0.0
        self._times = BusyTimes()

    def begins(self, slot: int, stream: Any, *, forward: bool) -> None:  # noqa: ARG002
        """Look at the clock."""
        self._began = self._clock()

    def ends(self, slot: int, stream: Any, *, forward: bool) -> None:  # noqa: ARG002
        """Look again."""
        self._times.note(slot, start=self._began, end=self._clock(), forward=forward)

    def of(self, slot: int) -> Busy | None:
        """When the work was done."""
        return self._times.of(slot)


class HostClock:
    """Places a device's time, which begins anywhere, on the host's clock.

    Work cannot begin before the host submitted it, nor end after the host saw its result. Both
    become equalities again and again: the first when the device was dry, the second when the host
    waited. So the shift between the clocks is known to a few µs, and follows when they drift.
    """

    def __init__(self) -> None:
        self._shift: float | None = None

    def place(self, start: float, end: float, *, submitted: float, seen: float) -> float:
        """How many seconds to add to the device's time to have the host's.

        Args:
            start: when work began, in the device's time.
            end: when it ended.
            submitted: the host's time before it asked for the work.
            seen: the host's time after it knew that the work was done.
        """
        earliest, latest = submitted - start, seen - end
        shift = latest if self._shift is None else self._shift
        self._shift = min(max(shift, earliest), latest)
        return self._shift


class EventTimes:
    """For a CUDA device: two pairs of events for each step, around its forward and its sampling.

    The events are made once. Reading them never waits: a step is asked for after its copy has
    arrived, which was queued behind all four.

    Args:
        cuda: the module `torch.cuda`, or one with the same names.
        clock: the host's, in seconds.
    """

    def __init__(self, *, cuda: Any, clock: Callable[[], float]) -> None:
        self._sets = [[cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(TURNS)]
        self._clock = clock
        self._host = HostClock()
        self._launches = 0
        self._of_slot: dict[int, tuple[Sequence[Any], float]] = {}
        self._sampled: set[int] = set()
        self._last: tuple[Any, float] | None = None

    def begins(self, slot: int, stream: Any, *, forward: bool) -> None:
        """Before the kernels of a job are queued."""
        if forward:
            self._of_slot[slot] = (self._sets[self._launches % TURNS], self._clock())
            self._launches += 1
            self._sampled.discard(slot)
        else:
            self._sampled.add(slot)
        events, _ = self._of_slot[slot]
        events[0 if forward else 2].record(stream)

    def ends(self, slot: int, stream: Any, *, forward: bool) -> None:
        """After the kernels of a job are queued."""
        events, _ = self._of_slot[slot]
        events[1 if forward else 3].record(stream)

    def of(self, slot: int) -> Busy | None:
        """When the device worked on the slot's step; steps are asked for in launch order."""
        if slot not in self._of_slot:
            return None
        events, submitted = self._of_slot[slot]
        start = 0.0
        if self._last is not None:
            before, at = self._last
            start = at + before.elapsed_time(events[0]) * 1e-3
        end, gap, last = start + events[0].elapsed_time(events[1]) * 1e-3, 0.0, events[1]
        if slot in self._sampled:
            gap = events[1].elapsed_time(events[2]) * 1e-3
            end += gap + events[2].elapsed_time(events[3]) * 1e-3
            last = events[3]
        self._last = (last, end)
        shift = self._host.place(start, end, submitted=submitted, seen=self._clock())
        return start + shift, end + shift, gap
