"""The two-slot pipeline as a pure state machine: who may launch, sample, commit and release, when.

The problem: a step's host work (append tokens, find ends, stream) must not leave the device idle,
so the next forward is queued before the last step is committed. Then two working sets are alive at
once, a row may end while a later step still computes it, and buffers are read by the host while
the device writes their neighbours. This module holds the rules and nothing else: no torch, no
threads, no clock.

    host    [launch t+1][commit t          ][launch t+2][commit t+1        ]
    slot 0  ===== step t =====|~~~ read ~~~|===== step t+2 =====|...
    slot 1              ===== step t+1 =====|~~~ read ~~~~|===== step t+3 ==

A slot goes free -> in flight -> being committed -> free. A row is opened, rides in steps (each
step holds one reference), is finalized once its result is known, and is handed back for release
when no step refers to it any more. A finalized row that still rides is a *zombie*.

References are not stored but read off the steps: a row has one for each step that is in flight or
being committed and holds it. A step's rows are one frozen set, so a launch of hundreds of rows
costs a few set operations, and a commit costs as much as rows have ended.

Invariants (docs/INVARIANTS.md): P2 FIFO commits, P3 reference counts, P4 two-phase slots, P5 single
release. P1 (one lane) is the lanes' business; the launch order it refers to is `step` here.

Everything illegal raises a subclass of `PipelineError`: a wrong order here is a wrong token or
a freed page later, so the checks stay on under `python -O`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sglang_photon.errors import PhotonError
from sglang_photon.records import LaunchHandle, PendingCommit, StepPlan

SLOTS = 2


class PipelineError(PhotonError):
    """The loop asked for something that the pipeline's rules forbid: always a defect of ours."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "Report it with the log, and serve with --photon-loop sglang")


class NoFreeSlotError(PipelineError):
    """A launch while every slot is in flight or being committed."""


class NotSampledError(PipelineError):
    """A launch, a commit or a sampling that needs tokens which do not exist yet."""


class OutOfOrderError(PipelineError):
    """A step committed or sampled before an older one, or twice."""


class UnknownRowError(PipelineError):
    """A row that was never opened, or was released or withdrawn."""


class RowEndedError(PipelineError):
    """A launch or a second end of a row that is finalized."""


class RowInFlightError(PipelineError):
    """A row with references whose resources were asked for."""


@dataclass(slots=True)
class _Step:
    handle: LaunchHandle
    sampled: bool


class Pipeline:
    """The state of all slots and rows. Not thread-safe: only the loop calls it.

    Args:
        slots: number of working sets; the design is for two, and tests try one.
    """

    def __init__(self, *, slots: int = SLOTS) -> None:
        self._slots = slots
        self._free = deque(range(slots))
        self._flight: deque[_Step] = deque()
        self._commit: PendingCommit | None = None
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._next_row = 0
        self._next_step = 0
        self._launched_rows = 0
        self._zombie_rows = 0

    @property
    def in_flight(self) -> int:
        """Steps launched and not yet being committed."""
        return len(self._flight)

    @property
    def is_empty(self) -> bool:
        """No step is in flight or being committed: the state a blocking loop is always in."""
        return not self._flight and self._commit is None

    @property
    def oldest(self) -> LaunchHandle | None:
        """The step that has to be committed next."""
        return self._flight[0].handle if self._flight else None

    @property
    def newest(self) -> LaunchHandle | None:
        """The step that was launched last, if it is still in flight."""
        return self._flight[-1].handle if self._flight else None

    @property
    def open_rows(self) -> int:
        """Rows that hold resources."""
        return len(self._running) + len(self._ended)

    @property
    def launched_rows(self) -> int:
        """Rows of all launches so far, zombies included."""
        return self._launched_rows

    @property
    def zombie_rows(self) -> int:
        """Rows of all commits so far that had ended before; the zombie tax is their share."""
        return self._zombie_rows

    def inflight_refs(self, row: int) -> int:
        """Steps that hold the row: launched, or being committed.

        Raises:
            UnknownRowError: the row is not open.
        """
        self._check_open(row)
        return self._references(row)

    def is_finalized(self, row: int) -> bool:
        """Whether the row's result is known.

        Raises:
            UnknownRowError: the row is not open.
        """
        self._check_open(row)
        return row in self._ended

    def open_row(self) -> int:
        """Give out a name for a row that is about to ride."""
        row = self._next_row
        self._next_row += 1
        self._running.add(row)
        return row

    def launch(self, plan: StepPlan) -> LaunchHandle:
        """Put a step into a free slot and take one reference for each of its rows.

        Raises:
            NoFreeSlotError: every slot is in use.
            NotSampledError: the step in flight has not been sampled, so its tokens cannot be read.
            RowEndedError, UnknownRowError: a row cannot ride.
        """
        if not self._free:
            raise NoFreeSlotError(
                f"Step {self._next_step} has no slot: all {self._slots} are in use"
            )
        if self._flight and not self._flight[-1].sampled:
            raise NotSampledError(
                f"Step {self._next_step} would read tokens that are not sampled yet"
            )
        if not plan.rows <= self._running:
            self._refuse(plan.rows - self._running)
        handle = LaunchHandle(step=self._next_step, slot=self._free.popleft(), plan=plan)
        self._next_step += 1
        self._launched_rows += len(plan.rows)
        self._flight.append(_Step(handle, sampled=not plan.samples_later))
        return handle

    def sample(self, handle: LaunchHandle) -> None:
        """Mark a step that samples later as sampled: every older step is committed.

        Raises:
            OutOfOrderError: an older step is in flight or being committed, or this one is sampled.
        """
        step = self._flight[0] if self._flight else None
        if step is None or step.handle is not handle or self._commit is not None or step.sampled:
            raise OutOfOrderError(f"Step {handle.step} cannot be sampled now")
        step.sampled = True

    def begin_commit(self) -> PendingCommit:
        """Take the oldest step out of flight; its slot and references stay held. P2.

        Raises:
            OutOfOrderError: nothing is in flight, or the commit before is not finished.
            NotSampledError: the step has no tokens yet.
        """
        if self._commit is not None:
            raise OutOfOrderError(f"Step {self._commit.handle.step} is still being committed")
        if not self._flight:
            raise OutOfOrderError("There is no step to commit")
        if not self._flight[0].sampled:
            raise NotSampledError(f"Step {self._flight[0].handle.step} has not been sampled")
        handle = self._flight.popleft().handle
        zombies = handle.plan.rows & self._ended
        self._zombie_rows += len(zombies)
        self._commit = PendingCommit(handle=handle, zombies=zombies)
        return self._commit

    def finish_commit(self, pending: PendingCommit) -> tuple[int, ...]:
        """Free the slot (P4) and drop the step's references.

        Returns:
            The finalized rows that no step refers to any more, the one opened first first. Their
            resources must be released now; the pipeline has forgotten them (P5).

        Raises:
            OutOfOrderError: this is not the commit that is open.
        """
        if pending is not self._commit:
            raise OutOfOrderError(f"Step {pending.handle.step} is not being committed")
        self._commit = None
        self._free.append(pending.handle.slot)
        done = tuple(sorted(row for row in self._ended if not self._references(row)))
        self._ended.difference_update(done)
        return done

    def finalize(self, row: int) -> bool:
        """Mark that the row's result is known and has left.

        Returns:
            True if no step refers to it: its resources must be released now. Otherwise the
            `finish_commit` of the last step that does will name it.

        Raises:
            UnknownRowError, RowEndedError: it was not running.
        """
        self._check_open(row)
        if row in self._ended:
            raise RowEndedError(f"Row {row} is finalized twice")
        self._running.remove(row)
        if not self._references(row):
            return True
        self._ended.add(row)
        return False

    def withdraw(self, row: int) -> None:
        """Forget a row that leaves without a result (retracted): nothing may refer to it.

        Raises:
            UnknownRowError: the row is not open.
            RowInFlightError: a step holds it.
        """
        self._check_open(row)
        if references := self._references(row):
            raise RowInFlightError(f"Row {row} is withdrawn with {references} references")
        self._running.remove(row)

    def _check_open(self, row: int) -> None:
        if row not in self._running and row not in self._ended:
            raise UnknownRowError(f"Row {row} is not open")

    def _references(self, row: int) -> int:
        """At most as many as there are slots: each holds one step, and a step its rows once. P3."""
        committing = self._commit is not None and row in self._commit.handle.plan.rows
        return committing + sum(row in step.handle.plan.rows for step in self._flight)

    def _refuse(self, rows: frozenset[int]) -> None:
        row = min(rows)
        if row in self._ended:
            raise RowEndedError(f"Row {row} has ended and would be launched again")
        raise UnknownRowError(f"Row {row} is not open")
