"""`PhotonLoop`: keep two steps in flight, so that the device has its next forward before it ends.

    host    [plan t+1][launch t+1][commit t ][plan t+2][launch t+2][commit t+1]
    device  ====== forward t =====|====== forward t+1 =====|====== forward t+2 =

A tick receives, plans, launches, does chores and commits, in this order: what a launch needs of the
step before is read on the device, so the host commits a step while the next one runs. Chores are
what may wait, for as long as both forwards leave time. A step that cannot be sampled before that
commit (a grammar, a penalty) is launched without sampling, and sampled after.
Where the time of a tick goes is told to a `StepMeter`, phase by phase.

The loop is correct for any engine by falling back to less overlap, never to other results: a plan
that must see everything committed is *settled* first, a step that must not be overtaken runs in
*lockstep*. Both are counted by reason. See docs/INVARIANTS.md for P1-P8.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Hashable, Sequence
from functools import partial

from sglang_photon.ingest.slack import ForwardClock
from sglang_photon.loop.host import Host, Release, Work
from sglang_photon.loop.ledger import Ledger
from sglang_photon.observe.meter import StepMeter
from sglang_photon.observe.phases import CHORES, COMMIT, LAUNCH, PLAN, RECEIVE, SAMPLE, WAIT
from sglang_photon.records import LaunchHandle, StepKind, StepPlan
from sglang_photon.slots.lane import Lane
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import Pipeline


class PrefillOverlap(enum.Enum):
    """What happens between two prefills in a row (`--photon-prefill-overlap`)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class PhotonLoop:
    """The two-slot loop.

    Args:
        host: the engine.
        lane: where forwards run.
        slots: the working sets, one for each of the pipeline's slots.
        prefill_overlap: whether a prefill may be launched before the last one is committed.
        follows_clock: whether this process may look at the device's progress to decide. False
            where several ranks must decide alike.
        forwards: is told when forwards begin and end.
        meter: told where the time goes.
    """

    def __init__(
        self,
        *,
        host: Host,
        lane: Lane,
        slots: Sequence[DecodeSlot],
        prefill_overlap: PrefillOverlap = PrefillOverlap.AUTO,
        follows_clock: bool = True,
        forwards: ForwardClock | None = None,
        meter: StepMeter | None = None,
    ) -> None:
        self._host = host
        self._lane = lane
        self._slots = tuple(slots)
        self._works: list[Work | None] = [None] * len(self._slots)
        self._prefill_overlap = prefill_overlap
        self._follows_clock = follows_clock
        self.pipeline = Pipeline(slots=len(self._slots))
        self.ledger = Ledger(pipeline=self.pipeline)
        self.forwards = ForwardClock() if forwards is None else forwards
        self.meter = meter or StepMeter()
        self.stats = self.meter.stats

    def run(self) -> None:
        """Tick until the host says that it is over, then come to rest."""
        self._receive()
        while not self._host.exiting:
            if self._host.paused:
                self.drain()
                self.meter.rests()
                self._host.wait_paused()
            else:
                self.tick()
            self._receive()
        self.drain()

    def tick(self) -> None:
        """Plan and launch one step, commit the one before."""
        self.meter.enter(PLAN)
        self._settle()
        work = self._host.plan()
        if work is None:
            if self.pipeline.is_empty:
                self.meter.rests()
                self._host.rest()
            else:
                self._commit_oldest()
            return
        handle = self._launch(work)
        if self.pipeline.in_flight > 1:
            self.meter.enter(CHORES)
            self._host.chores()
            self._commit_oldest()
        if work.samples_later:
            self._sample(handle, work)
        if work.lockstep is not None:
            self.drain()

    def drain(self) -> None:
        """Commit everything in flight: afterwards the state is that of a blocking loop."""
        if self.pipeline.is_empty:
            return
        self.stats.drains += 1
        before = self.meter.phase
        while not self.pipeline.is_empty:
            self._commit_oldest()
        self.meter.enter(before)

    def in_flight(self) -> list[Work]:
        """The works launched and not committed, oldest first."""
        handles = (self.pipeline.oldest, self.pipeline.newest)
        indices = dict.fromkeys(handle.slot for handle in handles if handle is not None)
        return [work for index in indices if (work := self._works[index]) is not None]

    def finalize(self, request: Hashable, release: Release) -> None:
        """The engine has a request's result; its resources go when nothing refers to them."""
        self.ledger.finalize(request, release)

    def withdraw(self, request: Hashable) -> None:
        """The engine takes a request back to its queue; nothing in flight may refer to it."""
        self.ledger.withdraw(request)

    def _receive(self) -> None:
        self.meter.enter(RECEIVE)
        self._host.receive()

    def _settle(self) -> None:
        if self.pipeline.is_empty:
            return
        reason = self._host.settle_reason()
        if reason is not None:
            self.meter.settles(reason)
            self.drain()
        elif self._first_token_is_due():
            self.drain()

    def _first_token_is_due(self) -> bool:
        """Whether to commit a prefill now rather than after the launch of the next one."""
        handle = self.pipeline.newest
        work = None if handle is None else self._works[handle.slot]
        if handle is None or work is None or work.kind is not StepKind.PREFILL:
            return False
        if self._prefill_overlap is PrefillOverlap.ALWAYS or not self._host.expects_prefill():
            return False
        if self._prefill_overlap is PrefillOverlap.NEVER:
            return True
        # A token that is there is worth more than a launch that is a millisecond earlier.
        return (
            self._follows_clock
            and work.owes_first_token
            and self._lane.done(self._slots[handle.slot])
        )

    def _launch(self, work: Work) -> LaunchHandle:
        self.meter.enter(LAUNCH)
        rows = self.ledger.rows(work.riders)
        handle = self.pipeline.launch(
            StepPlan(kind=work.kind, rows=rows, samples_later=work.samples_later)
        )
        slot = self._slots[handle.slot]
        self._works[handle.slot] = work
        work.stage(slot)
        self._lane.submit(slot, work.forward, kind=work.kind)  # P1
        self.forwards.launched(work.kind)
        if not work.samples_later:
            self._lane.copy(slot, partial(work.read_back, slot))
        self.meter.launched(
            slot.index,
            kind=work.kind,
            rows=len(rows),
            lockstep=work.lockstep,
            inside=None if self._lane.asynchronous else self._lane.worked(slot),
        )
        return handle

    def _sample(self, handle: LaunchHandle, work: Work) -> None:
        self.meter.enter(SAMPLE)
        self.pipeline.sample(handle)
        slot = self._slots[handle.slot]
        work.prepare_sampling()
        self._lane.submit(slot, work.sample)
        self._lane.copy(slot, partial(work.read_back, slot))

    def _commit_oldest(self) -> None:
        pending = self.pipeline.begin_commit()
        index = pending.handle.slot
        asked = time.perf_counter()
        self.meter.enter(WAIT)
        self._lane.wait(self._slots[index])  # P6: the only wait of a steady tick
        self.forwards.arrived(waited=time.perf_counter() - asked)
        self.meter.enter(COMMIT)
        work, self._works[index] = self._works[index], None
        assert work is not None, "a launched slot has its work"
        work.commit(zombies=len(pending.zombies))
        released = self.ledger.take(self.pipeline.finish_commit(pending))
        if released:
            self._host.release(released)
        busy = self._lane.worked(self._slots[index])
        self.meter.committed(index, zombies=len(pending.zombies), busy=busy)  # P8
