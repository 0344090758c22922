"""The pipeline's rules under random schedules, against a model that is written differently."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sglang_photon.records import LaunchHandle, PendingCommit, StepKind, StepPlan
from sglang_photon.slots.state import (
    SLOTS,
    NoFreeSlotError,
    NotSampledError,
    OutOfOrderError,
    Pipeline,
    RowEndedError,
    RowInFlightError,
    UnknownRowError,
)

EXAMPLES = 250
STEPS = 50  # EXAMPLES * STEPS transitions per run


def plan(*rows: int, kind: StepKind = StepKind.DECODE, later: bool = False) -> StepPlan:
    return StepPlan(kind=kind, rows=frozenset(rows), samples_later=later)


class Schedules(RuleBasedStateMachine):
    """Joins, finishes, aborts, retractions, chunks, constrained steps and drains in any order.

    The model keeps sets of launch numbers instead of counters: `flying` and `reading` hold the
    steps, `riders` who is in which, `ended` and `gone` what the rows went through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pipeline = Pipeline()
        self.flying: list[LaunchHandle] = []
        self.reading: PendingCommit | None = None
        self.unsampled: set[int] = set()
        self.committed: list[int] = []
        self.running: set[int] = set()
        self.ended: set[int] = set()
        self.gone: list[int] = []

    # What the model says.

    def held(self) -> list[LaunchHandle]:
        reading = [self.reading.handle] if self.reading is not None else []
        return reading + self.flying

    def refs(self, row: int) -> int:
        return sum(row in handle.plan.rows for handle in self.held())

    def may_launch(self) -> bool:
        return len(self.held()) < SLOTS and not self.unsampled

    def leave(self, rows: tuple[int, ...]) -> None:
        assert all(row in self.ended and self.refs(row) == 0 for row in rows)
        self.ended -= set(rows)
        self.gone += rows

    def launch(self, *rows: int, kind: StepKind, later: bool = False) -> None:
        handle = self.pipeline.launch(plan(*rows, kind=kind, later=later))
        self.flying.append(handle)
        if later:
            self.unsampled.add(handle.step)

    # What the loop may do.

    @precondition(lambda self: self.may_launch())
    @rule(count=st.integers(1, 3), later=st.booleans())
    def join(self, count: int, later: bool) -> None:
        rows = [self.pipeline.open_row() for _ in range(count)]
        self.running |= set(rows)
        self.launch(*rows, kind=StepKind.PREFILL, later=later)

    @precondition(lambda self: self.may_launch() and self.running)
    @rule(data=st.data())
    def chunk(self, data: st.DataObject) -> None:
        self.launch(data.draw(st.sampled_from(sorted(self.running))), kind=StepKind.PREFILL)

    @precondition(lambda self: self.may_launch() and self.running)
    @rule(data=st.data(), later=st.booleans())
    def decode(self, data: st.DataObject, later: bool) -> None:
        rows = data.draw(st.sets(st.sampled_from(sorted(self.running)), min_size=1))
        self.launch(*rows, kind=StepKind.DECODE, later=later)

    @precondition(lambda self: len(self.flying) == 1 and self.unsampled and self.reading is None)
    @rule()
    def sample(self) -> None:
        self.pipeline.sample(self.flying[0])
        self.unsampled.clear()

    @precondition(
        lambda self: (
            self.reading is None and self.flying and self.flying[0].step not in self.unsampled
        )
    )
    @rule()
    def begin_commit(self) -> None:
        self.reading = self.pipeline.begin_commit()
        assert self.reading.handle is self.flying.pop(0)
        assert self.reading.zombies == self.ended & set(self.reading.handle.plan.rows)
        self.committed.append(self.reading.handle.step)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish_or_abort(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(row)
        self.ended.add(row)
        if self.pipeline.finalize(row):
            self.leave((row,))

    @precondition(lambda self: self.reading is not None)
    @rule()
    def finish_commit(self) -> None:
        pending, self.reading = self.reading, None
        assert pending is not None
        self.leave(self.pipeline.finish_commit(pending))

    @precondition(lambda self: any(self.refs(row) == 0 for row in self.running))
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(row for row in self.running if self.refs(row) == 0)))
        self.running.remove(row)
        self.gone.append(row)
        self.pipeline.withdraw(row)

    @rule()
    def drain(self) -> None:
        if self.reading is not None:
            self.finish_commit()
        while self.flying:
            if self.unsampled and len(self.flying) == 1:
                self.sample()
            self.begin_commit()
            self.finish_commit()
        assert self.pipeline.is_empty
        assert not self.ended, "a drained pipeline keeps no zombie"

    # What the loop may not do.

    @precondition(lambda self: len(self.held()) == SLOTS)
    @rule()
    def no_third_launch(self) -> None:
        with pytest.raises(NoFreeSlotError):
            self.pipeline.launch(plan(self.pipeline.open_row()))
        self.running.add(self.pipeline._next_row - 1)

    @precondition(lambda self: self.unsampled and len(self.held()) < SLOTS)
    @rule()
    def no_launch_before_sampling(self) -> None:
        with pytest.raises(NotSampledError):
            self.pipeline.launch(plan())

    @precondition(lambda self: self.unsampled and (len(self.flying) > 1 or self.reading))
    @rule()
    def no_sampling_before_the_older_commit(self) -> None:
        with pytest.raises(OutOfOrderError):
            self.pipeline.sample(self.flying[-1])

    @precondition(lambda self: self.reading is not None)
    @rule()
    def one_commit_at_a_time(self) -> None:
        with pytest.raises(OutOfOrderError):
            self.pipeline.begin_commit()

    @precondition(lambda self: self.may_launch() and self.ended)
    @rule(data=st.data())
    def no_zombie_is_launched_or_ended_again(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.ended)))
        with pytest.raises(RowEndedError):
            self.pipeline.launch(plan(row))
        with pytest.raises(RowEndedError):
            self.pipeline.finalize(row)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def no_row_comes_back(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.gone))
        with pytest.raises(UnknownRowError):
            self.pipeline.finalize(row)

    @precondition(lambda self: any(self.refs(row) for row in self.running))
    @rule(data=st.data())
    def no_retraction_in_flight(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(row for row in self.running if self.refs(row))))
        with pytest.raises(RowInFlightError):
            self.pipeline.withdraw(row)

    # P1-P5 after every transition.

    @invariant()
    def p1_launch_order(self) -> None:
        steps = [handle.step for handle in self.held()]
        assert steps == list(range(len(self.committed) - bool(self.reading), self.launches()))

    def launches(self) -> int:
        return len(self.committed) + len(self.flying)

    @invariant()
    def p2_fifo_once(self) -> None:
        assert self.committed == list(range(len(self.committed)))

    @invariant()
    def p3_references(self) -> None:
        for row in self.running | self.ended:
            assert self.pipeline.inflight_refs(row) == self.refs(row) <= SLOTS

    @invariant()
    def p4_no_slot_is_shared(self) -> None:
        slots = [handle.slot for handle in self.held()]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(SLOTS))

    @invariant()
    def p5_released_once_and_only_at_zero(self) -> None:
        assert len(set(self.gone)) == len(self.gone)
        assert all(self.refs(row) == 0 for row in self.gone)
        assert all(self.refs(row) > 0 for row in self.ended)
        assert self.pipeline.open_rows == len(self.running) + len(self.ended)


def keep_every_invariant(examples: int) -> None:
    run_state_machine_as_test(
        Schedules,
        settings=settings(
            max_examples=examples, stateful_step_count=STEPS, deadline=None, database=None
        ),
    )


def test_random_schedules_keep_every_invariant() -> None:
    keep_every_invariant(EXAMPLES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_random_schedules_keep_every_invariant() -> None:
    keep_every_invariant(40 * EXAMPLES)


def test_a_steady_decode_alternates_between_two_slots() -> None:
    pipeline = Pipeline()
    row = pipeline.open_row()
    slots = [pipeline.launch(plan(row)).slot]
    for _ in range(4):
        slots.append(pipeline.launch(plan(row)).slot)
        assert pipeline.finish_commit(pipeline.begin_commit()) == ()
    assert slots == [0, 1, 0, 1, 0]


def test_a_popped_slot_is_not_free_before_its_commit_is_finished() -> None:
    pipeline = Pipeline()
    row = pipeline.open_row()
    pipeline.launch(plan(row))
    pipeline.launch(plan(row))
    pending = pipeline.begin_commit()
    with pytest.raises(NoFreeSlotError):
        pipeline.launch(plan(row))
    pipeline.finish_commit(pending)
    assert pipeline.launch(plan(row)).slot == 0


def test_a_row_that_ends_with_a_step_in_flight_is_released_by_that_step() -> None:
    pipeline = Pipeline()
    row = pipeline.open_row()
    pipeline.launch(plan(row))
    pipeline.launch(plan(row))
    first = pipeline.begin_commit()
    assert not pipeline.finalize(row)
    assert pipeline.finish_commit(first) == ()
    second = pipeline.begin_commit()
    assert second.zombies == {row}
    assert pipeline.finish_commit(second) == (row,)
    assert pipeline.open_rows == 0
    assert (pipeline.zombie_rows, pipeline.launched_rows) == (1, 2)


def test_a_finished_commit_cannot_be_finished_again() -> None:
    pipeline = Pipeline()
    pipeline.launch(plan(pipeline.open_row()))
    pending = pipeline.begin_commit()
    pipeline.finish_commit(pending)
    with pytest.raises(OutOfOrderError):
        pipeline.finish_commit(pending)


def test_an_unsampled_step_cannot_be_committed() -> None:
    pipeline = Pipeline()
    handle = pipeline.launch(plan(pipeline.open_row(), later=True))
    with pytest.raises(NotSampledError):
        pipeline.begin_commit()
    pipeline.sample(handle)
    assert pipeline.begin_commit().handle is handle


def test_errors_name_the_remedy() -> None:
    with pytest.raises(UnknownRowError, match="--photon-loop sglang"):
        Pipeline().finalize(7)
