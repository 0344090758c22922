"""`ForwardClock`: how long the host may do something else before the device runs dry.

    host    [launch t+1][chores ....][wait t][commit t][plan t+2][launch t+2]
    device  == forward t ====|== forward t+1 ==========|
                             ^ observed                ^ predicted    slack = predicted - reserve

The end of the last forward launched is predicted from what forwards of its kind took lately, and
the reserve is what the host itself needs from a commit to the next launch. Both are observed from
outside: a forward's end is known where the host waited for it, and its beginning is the end of the
one before. Where the host never waits there is nothing to measure and no slack to give. Nothing is
asked of the device, so it costs the same few clock readings on every lane.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sglang_photon.records import StepKind

WAITED_S = 50e-6
"""A wait shorter than this found the step done: it does not tell when the step ended."""

RECENT = 8


class MovingAverage:
    """Mean and mean deviation of a stream of numbers, recent ones weighing more."""

    __slots__ = ("_deviation", "_mean", "_weight")

    def __init__(self, *, weight: float = 0.2) -> None:
        self._weight = weight
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, value: float) -> None:
        """Take one more number in."""
        if self._mean is None:
            self._mean = value
            return
        self._deviation += self._weight * (abs(value - self._mean) - self._deviation)
        self._mean += self._weight * (value - self._mean)

    @property
    def known(self) -> bool:
        """Whether there has been a number."""
        return self._mean is not None

    @property
    def high(self) -> float:
        """What the next number will rarely exceed; 0 before the first."""
        return 0.0 if self._mean is None else self._mean + self._deviation


@dataclass(slots=True)
class _Forward:
    kind: StepKind
    launched: float
    start: float
    exact: bool


class ForwardClock:
    """Predicts when the device will have done everything that was launched.

    Args:
        now: seconds, of any clock that does not jump.

    Attributes:
        attainable: the most slack there lately was right after a launch, in seconds: what costs
            more will never fit, however long it is put off.
    """

    def __init__(self, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._flying: deque[_Forward] = deque()
        self._end = 0.0
        self._took: dict[StepKind, deque[float]] = {kind: deque(maxlen=RECENT) for kind in StepKind}
        self._reserve = {kind: MovingAverage() for kind in StepKind}
        self._arrival: float | None = None
        self._elsewhere = 0.0
        self._offered: deque[float] = deque(maxlen=RECENT)
        self.attainable = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, so that nothing is gained by waiting."""
        return not self._flying

    def launched(self, kind: StepKind) -> None:
        """A forward was queued just now."""
        now = self._now()
        if self._arrival is not None:
            self._reserve[kind].add(max(0.0, now - self._arrival - self._elsewhere))
            self._arrival = None
        dry = not self._flying or self._end < now
        start = now if dry else self._end
        self._flying.append(_Forward(kind, now, start, exact=not self._flying))
        self._end = start + self._length(kind)

    def arrived(self, *, waited: float) -> None:
        """The oldest forward is done; the host waited so many seconds for it, until just now."""
        now = self._now()
        self._arrival, self._elsewhere = now, 0.0
        done = self._flying.popleft()
        seen = waited > WAITED_S
        if seen and done.exact:
            self._took[done.kind].append(now - done.start)
        end = now if seen else min(now, done.start + self._length(done.kind))
        for forward in self._flying:
            forward.start = max(end, forward.launched)
            forward.exact = seen
            end = forward.start + self._length(forward.kind)
            seen = False
        self._end = end

    def elsewhere(self, seconds: float) -> None:
        """So much of the time since the last arrival went into work that can be put off."""
        self._elsewhere += seconds

    def slack(self, following: StepKind) -> float:
        """Seconds that the host may spend before it must see to the next launch.

        Args:
            following: what is launched next.
        """
        return self._end - self._now() - self._reserve[following].high

    def offer(self, following: StepKind) -> float:
        """`slack`, at the moment when it is greatest: both steps queued, none waited for."""
        slack = self.slack(following)
        self._offered.append(slack)
        self.attainable = max(self._offered)
        return slack

    def _length(self, kind: StepKind) -> float:
        """The shortest of the latest: too short a guess delays a chore, too long a one a launch."""
        return min(self._took[kind], default=0.0)
