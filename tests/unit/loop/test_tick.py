"""The order of things in a tick, with an engine and a device that only take notes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import pytest

from sglang_photon.loop.host import Release
from sglang_photon.loop.tick import PhotonLoop, PrefillOverlap
from sglang_photon.observe.meter import StepMeter
from sglang_photon.records import StepKind
from sglang_photon.slots.lane import InlineLane, Lane
from sglang_photon.slots.sim import SimLane, VirtualClock
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import RowInFlightError


@dataclass
class Note:
    """One step as the engine planned it; writes down what happens to it."""

    name: str
    log: list[str]
    kind: StepKind = StepKind.DECODE
    riders: tuple[Hashable, ...] = ("row",)
    samples_later: bool = False
    owes_first_token: bool = False
    lockstep: str | None = None
    zombies: int = 0
    staged_in: int | None = None
    ends: dict[Hashable, Release] = field(default_factory=dict)
    loop: PhotonLoop | None = None

    def stage(self, slot: DecodeSlot) -> None:
        self.staged_in = slot.index

    def forward(self) -> None:
        self.log.append(f"forward {self.name}")

    def prepare_sampling(self) -> None:
        self.log.append(f"prepare {self.name}")

    def sample(self) -> None:
        self.log.append(f"sample {self.name}")

    def read_back(self, slot: DecodeSlot) -> None:
        self.log.append(f"copy {self.name}")

    def commit(self, *, zombies: int) -> None:
        self.zombies = zombies
        self.log.append(f"commit {self.name}")
        for request, release in self.ends.items():
            assert self.loop is not None
            self.loop.finalize(request, release)


class Engine:
    """Hands out plans in order; `None` in the list is a tick in which nothing can run."""

    def __init__(self, plans: Sequence[Note | None], log: list[str]) -> None:
        self.plans = list(plans)
        self.log = log
        self.paused = False
        self.waiting = False
        self.settle: str | None = None

    @property
    def exiting(self) -> bool:
        return not self.plans

    def receive(self) -> None:
        """Nothing arrives."""

    def chores(self) -> None:
        self.log.append("chores")

    def settle_reason(self) -> str | None:
        return self.settle

    def expects_prefill(self) -> bool:
        return self.waiting

    def plan(self) -> Note | None:
        note = self.plans.pop(0)
        self.log.append("plan" if note is None else f"plan {note.name}")
        return note

    def rest(self) -> None:
        self.log.append("rest")

    def wait_paused(self) -> None:
        self.log.append("paused")
        self.paused = False

    def release(self, releases: Sequence[Release]) -> None:
        self.log.append(f"release {len(releases)}")
        for release in releases:
            release()


@dataclass
class Bench:
    """A loop with its engine and its log."""

    engine: Engine
    loop: PhotonLoop
    log: list[str]


def bench(
    *notes: Note | None,
    lane: Lane | None = None,
    overlap: PrefillOverlap = PrefillOverlap.AUTO,
    follows_clock: bool = True,
    clock: VirtualClock | None = None,
) -> Bench:
    log: list[str] = []
    slots = [DecodeSlot.allocate(index=index, max_rows=4, pinned=False) for index in range(2)]
    engine = Engine(notes, log)
    loop = PhotonLoop(
        host=engine,
        lane=lane or InlineLane(),
        slots=slots,
        prefill_overlap=overlap,
        follows_clock=follows_clock,
        meter=None if clock is None else StepMeter(clock=clock.now),
    )
    for note in notes:
        if note is not None:
            note.log, note.loop = log, loop
    return Bench(engine, loop, log)


def device() -> SimLane:
    return SimLane(step_time=lambda kind: 1.0, clock=VirtualClock())


def note(name: str, **kwargs: object) -> Note:
    return Note(name, [], **kwargs)  # type: ignore[arg-type]


def prefill(name: str, **kwargs: object) -> Note:
    return note(name, kind=StepKind.PREFILL, riders=(name,), owes_first_token=True, **kwargs)


def test_a_step_is_launched_before_the_one_before_is_committed() -> None:
    steps = [note("0"), note("1"), note("2")]
    table = bench(*steps, None)
    table.loop.run()
    assert [step.staged_in for step in steps] == [0, 1, 0]
    assert [line for line in table.log if not line.startswith(("plan", "copy"))] == [
        *("forward 0", "forward 1", "chores", "commit 0"),
        *("forward 2", "chores", "commit 1", "commit 2"),
    ]


def test_a_constrained_step_is_sampled_after_the_commit_of_the_one_before() -> None:
    table = bench(note("0"), note("1", samples_later=True), None)
    table.loop.run()
    assert table.log == [
        *("plan 0", "forward 0", "copy 0"),
        *("plan 1", "forward 1", "chores", "commit 0", "prepare 1", "sample 1", "copy 1"),
        *("plan", "commit 1"),
    ]


def test_a_row_that_ends_with_a_step_in_flight_is_released_after_that_step() -> None:
    released: list[str] = []
    first = note("0", ends={"row": lambda: released.append("row")})
    second = note("1")
    table = bench(first, second, None, None)
    table.loop.tick()
    table.loop.tick()
    assert "commit 0" in table.log
    assert released == []
    table.loop.tick()
    assert released == ["row"]
    assert second.zombies == 1
    assert len(table.loop.ledger) == 0


def test_a_request_that_never_rode_is_released_at_once() -> None:
    released: list[str] = []
    bench(None).loop.finalize("row", lambda: released.append("row"))
    assert released == ["row"]


def test_a_request_in_flight_cannot_be_withdrawn() -> None:
    table = bench(note("0"), None)
    table.loop.tick()
    with pytest.raises(RowInFlightError):
        table.loop.withdraw("row")


def test_a_withdrawn_request_comes_back_as_another_row() -> None:
    table = bench(note("0"), None, note("1"), None)
    table.loop.tick()
    table.loop.tick()
    row = table.loop.ledger.rows(["row"])
    table.loop.withdraw("row")
    table.loop.tick()
    assert table.loop.ledger.rows(["row"]) != row


def test_a_plan_that_needs_everything_committed_gets_it_and_is_counted() -> None:
    table = bench(note("0"), note("1"), None)
    table.loop.tick()
    table.engine.settle = "because"
    table.loop.tick()
    assert table.log.index("commit 0") < table.log.index("plan 1")
    assert table.loop.stats.settled == {"because": 1}


def test_a_lockstep_step_is_committed_before_the_next_plan() -> None:
    table = bench(note("0"), note("1", lockstep="because", samples_later=True), note("2"), None)
    table.loop.run()
    order = [line for line in table.log if line.startswith(("commit", "sample", "plan 2"))]
    assert order[:4] == ["commit 0", "sample 1", "commit 1", "plan 2"]
    assert table.loop.stats.lockstep == {"because": 1}


def test_idle_rests_and_a_pause_comes_to_rest_first() -> None:
    table = bench(None, note("0"), None)
    table.loop.tick()
    assert table.log == ["plan", "rest"]
    table.loop.tick()
    table.engine.paused = True
    table.loop.run()
    assert table.log[-4:] == ["commit 0", "paused", "plan", "rest"]


def test_the_end_of_the_loop_leaves_nothing_in_flight() -> None:
    table = bench(note("0"))
    table.loop.run()
    assert table.log[-1] == "commit 0"
    assert table.loop.pipeline.is_empty


@pytest.mark.parametrize(
    ("overlap", "waiting", "done", "first"),
    [
        (PrefillOverlap.ALWAYS, True, True, "plan b"),
        (PrefillOverlap.NEVER, True, False, "commit a"),
        (PrefillOverlap.NEVER, False, True, "plan b"),
        (PrefillOverlap.AUTO, True, True, "commit a"),
        (PrefillOverlap.AUTO, True, False, "plan b"),
        (PrefillOverlap.AUTO, False, True, "plan b"),
    ],
)
def test_between_two_prefills(
    overlap: PrefillOverlap, waiting: bool, done: bool, first: str
) -> None:
    lane = device()
    table = bench(prefill("a"), prefill("b"), None, lane=lane, overlap=overlap)
    table.loop.tick()
    table.engine.waiting = waiting
    if done:
        lane.wait(table.loop._slots[0])
    table.loop.tick()
    order = [line for line in table.log if line in ("commit a", "plan b")]
    assert order[0] == first


def test_ranks_that_must_decide_alike_do_not_look_at_the_device() -> None:
    lane = device()
    table = bench(prefill("a"), prefill("b"), None, lane=lane, follows_clock=False)
    table.loop.tick()
    table.engine.waiting = True
    lane.wait(table.loop._slots[0])
    table.loop.tick()
    assert table.log.index("plan b") < table.log.index("commit a")


def test_a_launch_that_finds_the_device_dry_is_counted_late() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: 1.0, clock=clock)
    table = bench(note("0"), note("1"), None, None, lane=lane, clock=clock)
    table.loop.tick()
    clock.spend(1.5)
    table.loop.run()
    stats = table.loop.stats
    assert stats.late.total() == 1
    assert sum(stats.late_s.values()) == pytest.approx(0.5)


def test_a_device_without_anything_to_run_is_not_late() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: 1.0, clock=clock)
    table = bench(note("0"), None, None, note("1"), None, None, lane=lane, clock=clock)
    for _ in range(3):
        table.loop.tick()
    assert "rest" in table.log
    clock.spend(5.0)
    table.loop.run()
    assert not table.loop.stats.late
    assert table.loop.stats.unfed_s == pytest.approx(5.0)


def test_what_is_in_flight_is_shown_oldest_first() -> None:
    table = bench(note("0"), note("1"), None)
    assert table.loop.in_flight() == []
    table.loop.tick()
    assert [work.name for work in table.loop.in_flight()] == ["0"]  # type: ignore[attr-defined]


def test_a_shutdown_that_has_arrived_is_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench(None, None, None)
    arrivals = iter((False, True))

    def receive() -> None:
        if next(arrivals):
            b.engine.plans.clear()

    monkeypatch.setattr(b.engine, "receive", receive)
    b.loop.run()
    assert b.log == ["plan", "rest"]
