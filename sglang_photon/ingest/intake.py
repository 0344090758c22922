"""`Intake`: requests wait in front of the scheduler until taking them in costs the device nothing.

A request with pictures costs the scheduler's thread milliseconds: its message is decoded, its
picture's memory mapped, its prompt padded. Every running request pays for that if the device runs
dry meanwhile. So messages are only fetched when they arrive, which is cheap, and worked on when the
forward in flight leaves time:

    socket ──fetch──► raw ──decode──► message ──prepare──► prepared ──release──► waiting queue

- A stage runs if its usual cost fits into the slack. It also runs if it would never fit, since then
  waiting gains nothing, and when its message has waited for `patience`.
- Order is kept: nothing overtakes, whatever it is.
- A burst stays together: what has been prepared is released when the next message is not another
  costly one of the same burst. One prefill for all of them is worth more than the first one's head
  start.
- Messages that are no requests are never prepared here: they go to the caller in their turn.
- A request whose data its sender has not finished writing stands aside, and requests overtake it;
  what is no request waits for it, as long as for slack.

Costs are learnt per stage and size of the message. Nothing here knows what a message is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sglang_photon.ingest.slack import MovingAverage

F = TypeVar("F")
M = TypeVar("M")

PATIENCE_S = 0.02
COSTLY_S = 0.2e-3
"""Requests cheaper than this are not worth grouping: they start at once."""


@dataclass(slots=True)
class IntakeStats:
    """Counters since the start.

    Attributes:
        fetched: messages.
        at_once: stages run while nothing was in flight, or that would never fit.
        in_slack: stages run in the slack.
        overdue: stages run because their message had waited for too long.
    """

    fetched: int = 0
    at_once: int = 0
    in_slack: int = 0
    overdue: int = 0


@dataclass(slots=True, eq=False)
class _Parcel(Generic[F, M]):
    frame: F | None
    size_class: int
    arrived: float
    burst: int
    message: M | None = None
    preparable: bool = False


class Intake(Generic[F, M]):
    """The messages that were fetched and have not reached the scheduler.

    Args:
        decode: makes a message of a frame.
        prepare: takes a request in, up to but without making it eligible; None where only the
            caller may (several ranks must do it alike).
        preparable: whether a message is a request that `prepare` may take.
        release: makes what was prepared eligible.
        ready: whether everything that belongs to a message is there; asked again until it is.
        now: seconds.
        patience: seconds that a message waits at most for slack.
    """

    def __init__(
        self,
        *,
        decode: Callable[[F], M],
        prepare: Callable[[M], None] | None,
        preparable: Callable[[M], bool],
        release: Callable[[], None],
        ready: Callable[[M], bool] = lambda _: True,
        now: Callable[[], float] = time.perf_counter,
        patience: float = PATIENCE_S,
    ) -> None:
        self._decode = decode
        self._prepare = prepare
        self._preparable = preparable
        self._release = release
        self._ready = ready
        self._now = now
        self._patience = patience
        self._parcels: deque[_Parcel[F, M]] = deque()
        self._costs: dict[tuple[str, int], MovingAverage] = {}
        self._late: list[_Parcel[F, M]] = []
        self._burst = 0
        self._prepared: list[_Parcel[F, M]] = []
        self._taken: list[_Parcel[F, M]] = []
        self.stats = IntakeStats()

    @property
    def pending(self) -> bool:
        """Whether anything has not reached the scheduler."""
        return bool(self._parcels or self._late or self._prepared)

    def put(self, frames: Iterable[tuple[F, int]]) -> None:
        """Frames that have just arrived, each with its size in bytes."""
        if not self.pending:
            self._burst += 1
        now = self._now()
        for frame, size in frames:
            self._parcels.append(_Parcel(frame, size.bit_length(), now, self._burst))
            self.stats.fetched += 1

    def take(self, *, slack: float, attainable: float) -> list[M]:
        """The messages that the caller is to process now, in order.

        Args:
            slack: seconds that the caller can spare; infinite when nothing is in flight.
            attainable: the most there could be, `ForwardClock.attainable`.
        """
        self._look_after_late()
        taken: list[_Parcel[F, M]] = []
        if self._prepare is not None and attainable > 0:
            # What never fits does the least harm in `work`, right after a launch.
            attainable = float("inf")
        while self._parcels:
            head = self._parcels[0]
            cost = self._cost("prepare", head)
            if head.message is None:
                cost += self._cost("decode", head)
            why = self._why(head, cost, slack, attainable)
            if why is None:
                break
            if head.message is None:
                self._run_decode(head, why)
            slack -= cost
            if self._stands_aside(head):
                continue
            if self._waits_for_late(head):
                break
            taken.append(self._parcels.popleft())
        while taken and self._belongs_to_next(taken[-1]):
            self._parcels.appendleft(taken.pop())
        if taken or not self._prepared_stay():
            self._release_prepared()
        self._taken = taken
        return [parcel.message for parcel in taken if parcel.message is not None]

    def took(self, seconds: float) -> None:
        """How long the caller was busy with what it was given last."""
        for parcel in self._taken:
            self._learn("prepare", parcel, seconds / len(self._taken))
        self._taken = []

    def work(self, *, slack: float, attainable: float) -> None:
        """Decode and prepare for as long as there is slack."""
        self._look_after_late()
        deadline = self._now() + slack
        for parcel in list(self._parcels):
            if parcel.message is None:
                left = deadline - self._now()
                why = self._why(parcel, self._cost("decode", parcel), left, attainable)
                if why is None:
                    return
                self._run_decode(parcel, why)
            if parcel is not self._parcels[0] or self._stands_aside(parcel):
                continue
            if not parcel.preparable or self._prepare is None:
                continue
            left = deadline - self._now()
            why = self._why(parcel, self._cost("prepare", parcel), left, attainable)
            if why is not None:
                self._run_prepare(parcel, self._prepare, why)
        if not self._prepared_stay():
            self._release_prepared()

    def _run_decode(self, parcel: _Parcel[F, M], why: str) -> None:
        began = self._now()
        assert parcel.frame is not None, "a parcel without a message has its frame"
        parcel.message = self._decode(parcel.frame)
        parcel.frame = None
        parcel.preparable = self._preparable(parcel.message)
        self._account("decode", parcel, self._now() - began, why)

    def _run_prepare(self, parcel: _Parcel[F, M], prepare: Callable[[M], None], why: str) -> None:
        began = self._now()
        assert parcel.message is not None, "decoded before it is prepared"
        self._parcels.popleft()
        prepare(parcel.message)
        self._prepared.append(parcel)
        self._account("prepare", parcel, self._now() - began, why)
        if not self._prepared_stay():
            self._release_prepared()

    def _look_after_late(self) -> None:
        """Those that are ready now are first again."""
        if self._late:
            late, self._late = self._late, []
            for parcel in reversed(late):
                self._parcels.appendleft(parcel)
            for parcel in late:
                self._stands_aside(parcel)

    def _stands_aside(self, parcel: _Parcel[F, M]) -> bool:
        if parcel.message is None or self._ready(parcel.message):
            return False
        self._parcels.remove(parcel)
        self._late.append(parcel)
        return True

    def _waits_for_late(self, parcel: _Parcel[F, M]) -> bool:
        return bool(self._late) and not parcel.preparable and not self._overdue(parcel.arrived)

    def _prepared_stay(self) -> bool:
        """Whether what is prepared waits for more of its burst."""
        prepared = self._prepared
        return bool(prepared) and (
            not self._overdue(prepared[0].arrived) and self._belongs_to_next(prepared[-1])
        )

    def _release_prepared(self) -> None:
        if self._prepared:
            self._prepared = []
            self._release()

    def _belongs_to_next(self, parcel: _Parcel[F, M]) -> bool:
        """Whether a request should wait for the one behind it, to be prefilled together."""
        if not self._parcels or not parcel.preparable or self._overdue(parcel.arrived):
            return False
        following = self._parcels[0]
        if following.message is not None and not following.preparable:
            return False
        return following.burst == parcel.burst and all(
            self._cost("decode", one) + self._cost("prepare", one) > COSTLY_S
            for one in (parcel, following)
        )

    def _why(
        self, parcel: _Parcel[F, M], cost: float, slack: float, attainable: float
    ) -> str | None:
        """The counter of a stage that may run now; None: it may not."""
        if cost <= slack:
            return "at_once" if slack == float("inf") else "in_slack"
        if cost >= attainable:
            return "at_once"
        return "overdue" if self._overdue(parcel.arrived) else None

    def _overdue(self, since: float) -> bool:
        return self._now() - since >= self._patience

    def _cost(self, stage: str, parcel: _Parcel[F, M]) -> float:
        average = self._costs.get((stage, parcel.size_class))
        return 0.0 if average is None else average.high

    def _account(self, stage: str, parcel: _Parcel[F, M], seconds: float, why: str) -> None:
        setattr(self.stats, why, getattr(self.stats, why) + 1)
        self._learn(stage, parcel, seconds)

    def _learn(self, stage: str, parcel: _Parcel[F, M], seconds: float) -> None:
        self._costs.setdefault((stage, parcel.size_class), MovingAverage()).add(seconds)
