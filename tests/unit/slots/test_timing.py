"""When the device worked, on the host's clock."""

from __future__ import annotations

import time

import pytest

from sglang_photon.records import StepKind
from sglang_photon.slots.lane import InlineLane, Lane, ThreadLane
from sglang_photon.slots.sim import SimLane, VirtualClock
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.timing import EventTimes, HostClock
from tests.fakes import FakeCuda

SLOTS = tuple(DecodeSlot.allocate(index=index, max_rows=4, pinned=False) for index in range(2))


@pytest.mark.parametrize("make", [InlineLane, ThreadLane])
def test_lanes_in_the_hosts_threads_look_at_the_wall_clock(make: type[Lane]) -> None:
    lane = make()
    assert lane.worked(SLOTS[0]) is None
    before = time.perf_counter()
    lane.submit(SLOTS[0], lambda: time.sleep(0.002), kind=StepKind.DECODE)
    lane.submit(SLOTS[0], lambda: None)
    lane.copy(SLOTS[0], lambda: None)
    lane.wait(SLOTS[0])
    worked = lane.worked(SLOTS[0])
    lane.close()
    assert worked is not None
    start, end, gap = worked
    assert before <= start < end <= time.perf_counter()
    assert end - start >= 0.002
    assert 0.0 <= gap < end - start


def test_a_simulated_device_counts_its_wait_for_a_sampling_as_idle() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: 1.0, clock=clock)
    lane.submit(SLOTS[0], lambda: None, kind=StepKind.DECODE)
    clock.spend(1.5)
    lane.submit(SLOTS[0], lambda: None)
    lane.copy(SLOTS[0], lambda: None)
    assert lane.worked(SLOTS[0]) == pytest.approx((0.0, 1.5, 0.5))
    assert lane.idle == pytest.approx(0.5)


def test_host_and_device_clocks_meet_where_one_waits_for_the_other() -> None:
    clock = HostClock()
    # The host waited for the first step: it saw the end as it happened, at 52 of its time.
    assert clock.place(10.0, 12.0, submitted=49.0, seen=52.0) == pytest.approx(40.0)
    # It looked late at the second, which teaches nothing.
    assert clock.place(12.0, 14.0, submitted=50.0, seen=60.0) == pytest.approx(40.0)
    # The device was dry and slower: the third cannot have begun before it was submitted.
    assert clock.place(30.0, 31.0, submitted=70.5, seen=80.0) == pytest.approx(40.5)
    # The device's clock runs ahead: the fourth was seen finished at 72.
    assert clock.place(31.0, 32.0, submitted=71.0, seen=72.0) == pytest.approx(40.0)


class Device:
    """A fake GPU whose time begins at 0 when the host's is at 1000, and events around its jobs."""

    def __init__(self) -> None:
        self.module = FakeCuda()
        self.host = 1000.0
        self.times = EventTimes(cuda=self.module, clock=lambda: self.host)

    def job(self, slot: int, start: float, end: float, *, forward: bool = True) -> None:
        self.module.now_ms = start * 1e3
        self.times.begins(slot, self.module.default, forward=forward)
        self.module.now_ms = end * 1e3
        self.times.ends(slot, self.module.default, forward=forward)


def test_events_tell_when_steps_ran_with_the_next_two_launched_meanwhile() -> None:
    device = Device()
    assert device.times.of(0) is None
    device.job(0, 0.0, 1.0)
    device.host = 1000.5
    device.job(1, 1.0, 2.0)
    device.host = 1001.0
    assert device.times.of(0) == pytest.approx((1000.0, 1001.0, 0.0))
    device.job(0, 2.5, 3.5)
    device.host = 1002.0
    assert device.times.of(1) == pytest.approx((1001.0, 1002.0, 0.0))
    device.job(1, 3.5, 4.5)
    device.host = 1003.5
    start, end, gap = device.times.of(0) or (0.0, 0.0, 0.0)
    assert (start, end, gap) == pytest.approx((1002.5, 1003.5, 0.0))


def test_events_tell_how_long_a_forward_waited_for_its_sampling() -> None:
    device = Device()
    device.job(0, 0.0, 1.0)
    device.job(0, 3.0, 3.5, forward=False)
    device.host = 1003.5
    assert device.times.of(0) == pytest.approx((1000.0, 1003.5, 2.0))
    device.job(1, 3.5, 4.0)
    device.host = 1004.0
    assert device.times.of(1) == pytest.approx((1003.5, 1004.0, 0.0))
