"""When the device will run dry, as seen from the host."""

from __future__ import annotations

import pytest

from sglang_photon.ingest.slack import ForwardClock, MovingAverage
from sglang_photon.records import StepKind
from tests.unit.ingest.clock import Clock

STEP_S, HOST_S = 10e-3, 2e-3
DECODE, PREFILL = StepKind.DECODE, StepKind.PREFILL


class Device:
    """A serial device, and a host that keeps two steps on it as the loop does."""

    def __init__(self, *, host_s: float = HOST_S) -> None:
        self.clock = Clock()
        self.forwards = ForwardClock(now=self.clock)
        self.host_s = host_s
        self.ends: list[float] = []

    def launch(self, kind: StepKind = DECODE, *, step_s: float = STEP_S) -> None:
        start = max(self.clock.seconds, self.ends[-1] if self.ends else 0.0)
        self.ends.append(start + step_s)
        self.forwards.launched(kind)

    def commit(self) -> None:
        end = self.ends.pop(0)
        waited = max(0.0, end - self.clock.seconds)
        self.clock.pass_by(waited)
        self.forwards.arrived(waited=waited)

    def tick(self, *, step_s: float = STEP_S, chores: bool = False) -> float:
        """One tick of the steady state; the slack that it offered."""
        self.clock.pass_by(self.host_s)
        self.launch(step_s=step_s)
        offered = self.forwards.offer(DECODE)
        if chores:
            self.clock.pass_by(max(0.0, offered))
        self.commit()
        return offered


@pytest.fixture
def device() -> Device:
    device = Device()
    device.launch()
    return device


def test_the_slack_reaches_to_the_end_of_the_last_forward_less_what_the_host_needs(
    device: Device,
) -> None:
    for _ in range(5):
        offered = device.tick()
    # Both steps were queued when the older one had run for as long as the host needed.
    assert offered == pytest.approx(2 * STEP_S - HOST_S - HOST_S)
    assert device.forwards.attainable == pytest.approx(offered)


def test_after_a_commit_there_is_slack_until_the_end_of_the_next_one(device: Device) -> None:
    for _ in range(5):
        device.tick()
    assert device.forwards.slack(DECODE) == pytest.approx(STEP_S - HOST_S)
    device.clock.pass_by(3e-3)
    assert device.forwards.slack(DECODE) == pytest.approx(STEP_S - HOST_S - 3e-3)


def test_chores_as_long_as_the_slack_keep_the_device_busy(device: Device) -> None:
    for _ in range(5):
        device.tick()
    spent = [device.tick(chores=True) for _ in range(20)]
    assert device.ends[-1] == pytest.approx(26 * STEP_S), "the device ran dry"
    assert sum(spent) > 20 * (STEP_S - HOST_S) * 0.99


def test_a_host_that_never_waits_has_no_slack() -> None:
    device = Device(host_s=2 * STEP_S)
    device.launch()
    for _ in range(20):
        assert device.tick() <= 0
    assert device.forwards.attainable <= 0


def test_a_long_step_does_not_make_the_next_ones_look_long(device: Device) -> None:
    for _ in range(5):
        device.tick()
    device.tick(step_s=10 * STEP_S)
    device.tick()
    assert device.tick() <= 2 * STEP_S


def test_the_time_before_a_prefill_is_counted_apart(device: Device) -> None:
    for _ in range(5):
        device.tick()
    device.clock.pass_by(3 * HOST_S)
    device.launch(PREFILL)
    device.commit()
    assert device.forwards.slack(DECODE) - device.forwards.slack(PREFILL) == pytest.approx(
        2 * HOST_S
    )


def test_work_that_could_have_waited_is_not_what_the_host_needs(device: Device) -> None:
    for _ in range(20):
        device.clock.pass_by(1e-3)
        device.forwards.elsewhere(1e-3)
        device.tick()
    assert STEP_S - device.forwards.slack(DECODE) == pytest.approx(HOST_S)


def test_nothing_in_flight_is_idle(device: Device) -> None:
    assert not device.forwards.idle
    device.commit()
    assert device.forwards.idle


def test_an_average_follows_and_is_on_the_high_side() -> None:
    average = MovingAverage()
    assert not average.known
    assert average.high == 0.0
    average.add(4.0)
    assert average.high == 4.0
    for number in range(100):
        average.add(1.0 + number % 2)
    assert 1.5 < average.high < 2.5
