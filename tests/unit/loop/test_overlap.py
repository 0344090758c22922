"""How much of the host's work the pipeline hides, on a device with a clock of its own."""

from __future__ import annotations

import pytest

from sglang_photon.records import StepKind
from sglang_photon.slots.sim import SimLane, VirtualClock
from sglang_photon.slots.slot import DecodeSlot
from tests.unit.loop.test_tick import Note, bench

STEP_S, HOST_S, STEPS = 10e-3, 6e-3, 1000


class Costly(Note):
    """A step whose commit takes the host some time."""

    clock: VirtualClock

    def commit(self, *, zombies: int) -> None:
        self.clock.spend(HOST_S)
        super().commit(zombies=zombies)


def steps(clock: VirtualClock, *, samples_later: bool) -> list[Note | None]:
    made: list[Note | None] = []
    for number in range(STEPS):
        step = Costly(str(number), [], samples_later=samples_later and number > 0)
        step.clock = clock
        made.append(step)
    return [*made, None]


@pytest.mark.parametrize("samples_later", [False, True])
def test_ho_04_the_device_is_idle_for_less_than_5_percent(samples_later: bool) -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: STEP_S, clock=clock)
    bench(*steps(clock, samples_later=samples_later), lane=lane).loop.run()
    assert lane.forwards == STEPS
    assert lane.idle / (lane.idle + lane.busy) < 0.05


def test_ho_04_a_serial_loop_leaves_it_idle_for_37_percent() -> None:
    clock = VirtualClock()
    lane = SimLane(step_time=lambda kind: STEP_S, clock=clock)
    slot = DecodeSlot.allocate(index=0, max_rows=1, pinned=False)
    for _ in range(STEPS):
        lane.submit(slot, lambda: None, kind=StepKind.DECODE)
        lane.copy(slot, lambda: None)
        lane.wait(slot)
        clock.spend(HOST_S)
    assert lane.idle / (lane.idle + lane.busy) == pytest.approx(0.375, abs=0.01)
