"""Whose fault an idle device is, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sglang_photon.observe import layout
from sglang_photon.observe.meter import Busy, LoopStats, StepMeter
from sglang_photon.observe.phases import (
    CHORES,
    COMMIT,
    IDLE,
    LAUNCH,
    NAMES,
    PLAN,
    RECEIVE,
    SAMPLE,
    WAIT,
)
from sglang_photon.observe.reader import Records, StepReader
from sglang_photon.records import StepKind


@dataclass
class Table:
    """A meter, its clock, and the records it writes."""

    now: float = 100.0
    slot: int = 0
    published: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meter = StepMeter(clock=lambda: self.now)
        self._reader = StepReader(self.meter.ring.memory)

    def spend(self, phase: int, seconds: float) -> None:
        self.meter.enter(phase)
        self.now += seconds

    def launch(self, *, kind: StepKind = StepKind.DECODE, inside: Busy | None = None) -> int:
        self.slot = 1 - self.slot
        self.meter.launched(self.slot, kind=kind, rows=4, lockstep=None, inside=inside)
        return self.slot

    def commit(self, slot: int, busy: Busy | None, *, zombies: int = 0) -> None:
        self.meter.enter(COMMIT)
        self.meter.committed(slot, zombies=zombies, busy=busy)

    def records(self) -> Records:
        return self._reader.read()

    def publish(self, stats: LoopStats) -> None:
        self.published.append(stats.steps)


def two_steps(
    between: Sequence[tuple[int, float]], *, gap: float = 0.0, rest: bool = False
) -> tuple[Table, Records]:
    """Two steps of 5 s; the device is dry for 2 s between them."""
    table = Table()
    first = table.launch()
    for phase, seconds in between:
        table.spend(phase, seconds)
    if rest:
        table.meter.rests()
    second = table.launch()
    table.commit(first, (100.0, 105.0, 0.0))
    table.commit(second, (107.0, 112.0, gap))
    return table, table.records()


@pytest.mark.parametrize("phase", [RECEIVE, PLAN, LAUNCH, CHORES, COMMIT, SAMPLE])
def test_a_late_step_is_put_down_to_the_longest_phase_since_the_launch_before(phase: int) -> None:
    others = [(p, 1.0) for p in (RECEIVE, PLAN, LAUNCH, COMMIT) if p != phase]
    table, records = two_steps([(phase, 3.0), *others, (WAIT, 50.0), (IDLE, 50.0)])
    assert dict(table.meter.stats.late) == {NAMES[phase]: 1}
    assert table.meter.stats.late_s[NAMES[phase]] == pytest.approx(2.0)
    first, second = records
    assert not first["flags"] & layout.LATE
    assert second["flags"] == layout.LATE | layout.TIMED
    assert second["cause"] == phase
    assert second["idle"] == pytest.approx(2.0)
    assert (second["spent"] - first["spent"])[phase] == pytest.approx(3.0)


def test_idle_without_anything_to_run_is_counted_apart() -> None:
    table, records = two_steps([(RECEIVE, 3.0)], rest=True)
    assert not table.meter.stats.late
    assert table.meter.stats.unfed_s == pytest.approx(2.0)
    assert records["flags"].tolist() == [layout.RESTED | layout.TIMED] * 2


def test_waiting_for_a_mask_before_sampling_is_late_too() -> None:
    table, records = two_steps([(RECEIVE, 3.0)], gap=4.0)
    assert dict(table.meter.stats.late) == {"sample": 1}
    assert table.meter.stats.late_s["sample"] == pytest.approx(6.0)
    assert table.meter.stats.busy_s == pytest.approx(5.0 + 1.0)
    assert records["gap"].tolist() == [0.0, 4.0]


def test_a_device_that_is_never_dry_is_never_late() -> None:
    table = Table()
    first = table.launch()
    table.spend(PLAN, 1.0)
    second = table.launch()
    table.commit(first, (100.0, 105.0, 0.0))
    table.commit(second, (105.000001, 110.0, 0.0))
    assert not table.meter.stats.late
    assert table.meter.stats.busy_s == pytest.approx(10.0)


def test_without_device_times_nothing_is_said_about_lateness() -> None:
    table = Table()
    table.commit(table.launch(), None)
    (record,) = table.records()
    assert not record["flags"] & (layout.TIMED | layout.LATE)
    assert table.meter.stats.commits == 1


def test_a_forward_in_the_hosts_own_thread_is_not_the_hosts_work() -> None:
    table = Table()
    table.spend(LAUNCH, 5.0)
    slot = table.launch(inside=(100.5, 104.5, 0.0))
    table.commit(slot, (100.5, 104.5, 0.0))
    spent = table.meter.stats.host_s
    assert (spent[LAUNCH], spent[WAIT]) == pytest.approx((1.0, 4.0))


def test_counters_and_reasons() -> None:
    table = Table()
    table.meter.settles("the pool is full")
    table.meter.launched(0, kind=StepKind.PREFILL, rows=3, lockstep="beam search", inside=None)
    table.commit(0, None, zombies=2)
    stats = table.meter.stats
    assert (stats.steps, stats.prefills, stats.rows, stats.zombies) == (1, 1, 3, 2)
    assert stats.settled == {"the pool is full": 1}
    assert stats.lockstep == {"beam search": 1}
    reader = StepReader(table.meter.ring.memory)
    (record,) = table.records()
    reasons = reader.reasons()
    assert reasons[record["settled"] - 1] == "the pool is full"
    assert reasons[record["lockstep"] - 1] == "beam search"
    assert (record["rows"], record["zombies"], record["kind"]) == (3, 2, 0)


def test_counters_are_published_at_most_once_a_second_as_a_chore() -> None:
    table = Table()
    table.meter.export_to(table)
    for _ in range(10):
        table.now += 0.25
        table.commit(table.launch(), None)
    assert table.published == [0, 4, 8]
    table.now += 2.0
    table.meter.rests()
    assert table.published[-1] == 10
    assert table.meter.phase == IDLE
