"""`StepMeter`: where every step's time went, and whose fault it is when the device ran dry (P8).

    host    receive | plan | launch n+1 | wait | commit n | receive | plan | launch n+2 ...
                               |<------- spent since the launch before ------->|
    device  ===== n =====|===== n+1 =====|  idle  |===== n+2 =====

The loop says which phase begins, when it launched and when it committed. The meter adds up the
phases between two launches: what the host did there is what the next launch waited for. When the
step is committed, the lane has told when the device worked on it, and the record is written. That
takes less than 2 µs of a step, all calls together (`tests/unit/observe/test_cost.py`).

The device is idle for one of two reasons, kept apart: rows were runnable and the host was late, or
there was nothing to run. Only the first is a bubble.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sglang_photon.observe import layout
from sglang_photon.observe.phases import CHORES, HOST, IDLE, NAMES, SAMPLE, WAIT
from sglang_photon.observe.ring import StepRing
from sglang_photon.records import StepKind

LATE_FROM_S = 5e-6
"""Below this, a late launch cannot be told from the device's own pause between two jobs."""

EXPORT_EVERY_S = 1.0
PREFILL = StepKind.PREFILL
PACK_INTO = layout.PACK.pack_into

Busy = tuple[float, float, float]
"""As `Lane.worked` returns it: start, end, seconds between the step's forward and its sampling."""


@dataclass(slots=True)
class LoopStats:
    """Counters since the start.

    Attributes:
        steps: steps launched.
        prefills: of these, prefills.
        commits: steps committed.
        drains: times that everything in flight was committed before going on, by need.
        rows: rows launched.
        zombies: of these, rows that had ended when their step was committed.
        late: launches for which the device had run dry while rows were runnable, by cause (P8).
        late_s: seconds for which it had.
        unfed_s: seconds in which the device had nothing to do because there was nothing to run.
        busy_s: seconds in which it worked.
        host_s: seconds of the scheduler's thread, by phase.
        settled: plans that had to see everything committed, by reason.
        lockstep: steps that were committed before the next plan, by reason.
    """

    steps: int = 0
    prefills: int = 0
    commits: int = 0
    drains: int = 0
    rows: int = 0
    zombies: int = 0
    late: Counter[str] = field(default_factory=Counter)
    late_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    unfed_s: float = 0.0
    busy_s: float = 0.0
    host_s: list[float] = field(default_factory=lambda: [0.0] * len(NAMES))
    settled: Counter[str] = field(default_factory=Counter)
    lockstep: Counter[str] = field(default_factory=Counter)


class Export(Protocol):
    """Where counters go once in a while."""

    def publish(self, stats: LoopStats) -> None:
        """Bring what is shown up to date."""


_Launched = tuple[int, StepKind, int, int, int, int, float, float, tuple[float, ...]]
"""A step between its launch and its commit: its number, kind and rows, flags, the reasons for which
it was settled and runs in lockstep, when the launch began and ended, and `spent` at that moment. A
tuple, since one is made for every step."""


class StepMeter:
    """Called by the loop, from its thread only.

    Args:
        ring: where records go.
        clock: seconds, on the clock of the lane.

    Attributes:
        stats: counters since the start.
        phase: the one that the thread is in.
    """

    def __init__(
        self, *, ring: StepRing | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.ring = ring or StepRing()
        self.stats = LoopStats()
        self.phase = IDLE
        self._clock = clock
        self._since = clock()
        self._spent = self.stats.host_s
        self._before = tuple(self._spent)
        self._flight: dict[int, _Launched] = {}
        self._rested = layout.RESTED
        self._settled = 0
        self._last_end = math.inf
        self._export: Export | None = None
        self._next_export = math.inf

    def export_to(self, export: Export) -> None:
        """Publish the counters there, about once a second while the loop turns."""
        self._export = export
        self._publish()

    def enter(self, phase: int) -> None:
        """The thread goes on to a phase."""
        now = self._clock()
        self._spent[self.phase] += now - self._since
        self.phase = phase
        self._since = now

    def rests(self) -> None:
        """Nothing is in flight and nothing can run: what follows is nobody's lateness."""
        self._rested = layout.RESTED
        self.enter(IDLE)
        if self._since >= self._next_export:
            self._publish()

    def settles(self, reason: str) -> None:
        """The next plan had to see everything committed."""
        self.stats.settled[reason] += 1
        self._settled = self.ring.reason(reason)

    def launched(
        self, slot: int, *, kind: StepKind, rows: int, lockstep: str | None, inside: Busy | None
    ) -> None:
        """The launch phase of a step is over; the time until the next launch is the next one's.

        Args:
            slot: names the step until it is committed.
            kind: prefill or decode.
            rows: that ride in it.
            lockstep: why it is committed before anything else is planned.
            inside: when the device worked, if it did so in this thread, within the launch.
        """
        began = self._since
        self._since = now = self._clock()
        self._spent[self.phase] += now - began
        if inside is not None:
            forward = inside[1] - inside[0]
            self._spent[self.phase] -= forward
            self._spent[WAIT] += forward
        stats = self.stats
        self._flight[slot] = (
            stats.steps,
            kind,
            rows,
            self._rested,
            self._settled,
            0 if lockstep is None else self.ring.reason(lockstep),
            began,
            now,
            tuple(self._spent),
        )
        self._rested = self._settled = 0
        stats.steps += 1
        stats.rows += rows
        if kind is PREFILL:
            stats.prefills += 1
        if lockstep is not None:
            stats.lockstep[lockstep] += 1

    def committed(self, slot: int, *, zombies: int, busy: Busy | None) -> None:
        """The step in a slot is committed, the commit phase is over.

        Args:
            slot: as it was launched.
            zombies: rows that had ended before.
            busy: when the device worked on it; None where nobody knows.
        """
        arrived = self._since
        self._since = now = self._clock()
        self._spent[self.phase] += now - arrived
        step, kind, rows, flags, settled, lockstep, launch, launched, spent = self._flight.pop(slot)
        stats = self.stats
        stats.commits += 1
        stats.zombies += zombies
        start = end = gap = idle = 0.0
        cause = 0
        if busy is not None:
            start, end, gap = busy
            flags |= layout.TIMED
            stats.busy_s += end - start - gap
            if start > self._last_end:
                idle = start - self._last_end
            self._last_end = end
            late = gap if flags & layout.RESTED else gap + idle
            if late > LATE_FROM_S:
                flags |= layout.LATE
                cause = self._late(late, spent, by_sampling=gap > idle)
            if flags & layout.RESTED:
                stats.unfed_s += idle
        self._before = spent
        ring = self.ring
        PACK_INTO(
            ring.memory,
            ring.place,
            step,
            0 if kind is PREFILL else 1,
            cause,
            flags,
            settled,
            lockstep,
            rows,
            zombies,
            launch,
            launched,
            start,
            end,
            arrived,
            now,
            gap,
            idle,
            *spent,
        )
        ring.advance()
        if now >= self._next_export:
            self._publish()

    def _late(self, seconds: float, spent: tuple[float, ...], *, by_sampling: bool) -> int:
        """Count a late step (P8); its cause is where the host was longest since the last launch."""
        cause = SAMPLE
        if not by_sampling:
            cause = max(HOST, key=lambda phase: spent[phase] - self._before[phase])
        self.stats.late[NAMES[cause]] += 1
        self.stats.late_s[NAMES[cause]] += seconds
        return cause

    def _publish(self) -> None:
        """Bring the export up to date, as a chore."""
        assert self._export is not None, "asked by the caller"
        before = self.phase
        self.enter(CHORES)
        self._export.publish(self.stats)
        self.enter(before)
        self._next_export = self._since + EXPORT_EVERY_S
