"""Every lane keeps the order of forwards and waits for nothing but a slot's copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sglang_photon.records import StepKind
from sglang_photon.slots.lane import CudaLane, InlineLane, Lane, LaneClosedError, ThreadLane
from sglang_photon.slots.sim import DeviceHeldError, RealClock, SimLane, VirtualClock
from sglang_photon.slots.slot import DecodeSlot
from tests.fakes import FakeCuda

SLOTS = tuple(DecodeSlot.allocate(index=index, max_rows=4, pinned=False) for index in range(2))


def sim() -> SimLane:
    return SimLane(step_time=lambda kind: 1.0, clock=VirtualClock())


def cuda() -> CudaLane:
    module = FakeCuda()
    return CudaLane(compute=module.Stream(), copies=module.Stream(), cuda=module, slots=2)


@pytest.fixture(params=[InlineLane, ThreadLane, sim, cuda], ids=lambda make: make.__name__)
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    lane: Lane = request.param()
    yield lane
    lane.close()


def test_jobs_run_in_the_order_of_submission(lane: Lane) -> None:
    ran: list[str] = []

    def job(name: str) -> Callable[[], None]:
        return lambda: ran.append(name)

    lane.submit(SLOTS[0], job("forward 0"), kind=StepKind.DECODE)
    lane.copy(SLOTS[0], job("copy 0"))
    lane.submit(SLOTS[1], job("forward 1"), kind=StepKind.DECODE)
    lane.wait(SLOTS[0])
    lane.submit(SLOTS[1], job("sample 1"))
    lane.copy(SLOTS[1], job("copy 1"))
    lane.wait(SLOTS[1])
    assert ran == ["forward 0", "copy 0", "forward 1", "sample 1", "copy 1"]
    assert lane.done(SLOTS[0])
    assert lane.done(SLOTS[1])


def test_the_worker_thread_enters_what_is_per_thread() -> None:
    entered: list[int] = []

    @contextmanager
    def enter() -> Iterator[None]:
        entered.append(threading.get_ident())
        yield

    lane = ThreadLane(enter=enter)
    lane.copy(SLOTS[0], lambda: None)
    lane.wait(SLOTS[0])
    lane.close()
    assert entered
    assert threading.get_ident() not in entered


def test_a_failed_job_is_raised_where_its_step_is_waited_for_and_nothing_runs_after_it() -> None:
    lane = ThreadLane()
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("bad weights")

    lane.submit(SLOTS[0], fail, kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: ran.append("copy"))
    with pytest.raises(ValueError, match="bad weights"):
        lane.wait(SLOTS[0])
    lane.close()
    assert ran == []


def test_a_closed_thread_takes_no_jobs() -> None:
    lane = ThreadLane()
    lane.close()
    with pytest.raises(LaneClosedError):
        lane.submit(SLOTS[0], lambda: None)


def test_a_forward_on_cuda_waits_for_the_host_stream_and_a_copy_for_the_forward() -> None:
    module = FakeCuda()
    compute, copies = module.Stream(), module.Stream()
    lane = CudaLane(compute=compute, copies=copies, cuda=module, slots=2)
    lane.submit(SLOTS[0], lambda: module.kernel("forward"), kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: module.kernel("copy"))
    assert module.kernels == [("forward", compute), ("copy", copies)]
    assert compute.waits == [module.default]
    assert copies.waits == [compute]
    lane.wait(SLOTS[0])
    assert module.synchronized == ["event"], "the commit's own event and nothing else"


def test_events_on_cuda_are_made_once() -> None:
    module = FakeCuda()
    lane = CudaLane(compute=module.Stream(), copies=module.Stream(), cuda=module, slots=2)
    made = module.events
    for step in range(10):
        slot = SLOTS[step % 2]
        lane.submit(slot, lambda: None, kind=StepKind.DECODE)
        lane.copy(slot, lambda: None)
        lane.wait(slot)
    assert module.events == made


def test_a_simulated_job_reads_memory_when_the_device_reaches_it() -> None:
    lane = sim()
    memory, read = [1], []
    lane.submit(SLOTS[0], lambda: read.append(memory[0]), kind=StepKind.DECODE)
    memory[0] = 2
    lane.copy(SLOTS[0], lambda: None)
    lane.wait(SLOTS[0])
    assert read == [2]


def test_a_held_device_finishes_nothing_until_it_is_released() -> None:
    lane = sim()
    ran: list[str] = []
    lane.hold()
    lane.submit(SLOTS[0], lambda: ran.append("forward"), kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: ran.append("copy"))
    with pytest.raises(DeviceHeldError, match="Release it"):
        lane.wait(SLOTS[0])
    assert ran == []
    lane.release(jobs=1)
    assert ran == ["forward"]
    assert not lane.done(SLOTS[0])
    lane.release()
    assert ran == ["forward", "copy"]
    assert lane.done(SLOTS[0])


def test_held_copies_let_forwards_run() -> None:
    lane = sim()
    ran: list[str] = []
    lane.hold(copies_only=True)
    lane.submit(SLOTS[0], lambda: ran.append("forward"), kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: ran.append("copy"))
    with pytest.raises(DeviceHeldError):
        lane.wait(SLOTS[0])
    assert ran == ["forward"]
    lane.close()
    assert ran == ["forward", "copy"]


def test_a_device_that_gets_its_next_step_in_time_is_never_idle() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: 1.0, clock=clock)
    lane.submit(SLOTS[0], lambda: None, kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: None)
    for step in range(1, 10):
        clock.spend(0.6)
        lane.submit(SLOTS[step % 2], lambda: None, kind=StepKind.DECODE)
        lane.copy(SLOTS[step % 2], lambda: None)
        lane.wait(SLOTS[(step - 1) % 2])
    assert (lane.busy, lane.idle) == (10.0, 0.0)


def test_idle_time_is_what_the_host_takes_between_steps() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: 1.0, clock=clock)
    for _ in range(4):
        lane.submit(SLOTS[0], lambda: None, kind=StepKind.DECODE)
        lane.copy(SLOTS[0], lambda: None)
        lane.wait(SLOTS[0])
        clock.spend(0.5)
    assert lane.idle == pytest.approx(3 * 0.5)


def test_results_arrive_on_the_real_clock_when_the_device_is_done() -> None:
    clock = RealClock()
    lane = SimLane(step_time=lambda kind: 0.01, clock=clock)
    start = clock.now()
    lane.submit(SLOTS[0], lambda: None, kind=StepKind.DECODE)
    lane.copy(SLOTS[0], lambda: None)
    assert not lane.done(SLOTS[0])
    lane.wait(SLOTS[0])
    assert clock.now() - start >= 0.01


def test_slots_do_not_share_memory() -> None:
    first, second = SLOTS
    for name in ("token_ids", "staged", "input_ids", "kv_slots"):
        assert getattr(first, name).data_ptr() != getattr(second, name).data_ptr()
    assert first.nbytes == 4 * 8 * 7
    assert "4 rows, 224 bytes, pageable" in first.describe()
