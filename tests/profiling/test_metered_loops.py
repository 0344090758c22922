"""The meter beside the simulated device's own clock, on SGLang's loops and on Photon's."""

from __future__ import annotations

import pytest

from sglang_photon.observe import layout
from sglang_photon.observe.phases import HOST, WAIT
from sglang_photon.observe.reader import StepReader
from sglang_photon.upstream.bench_loops import Bench

ROWS, STEP_S, STEPS = 4, 2e-3, 60


@pytest.mark.parametrize("loop", ["blocking", "sglang", "photon"])
def test_idle_seconds_are_the_devices_own(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[StepReader] = []
    monkeypatch.setattr(
        "sglang_photon.observe.ring.StepRing.describe",
        lambda ring, facts: readers.append(StepReader(ring.memory)),
    )
    with Bench.open(loop=loop, rows=ROWS, metered=True) as bench:
        bench.steady(batch=ROWS, step_s=STEP_S, stream=True, warm=2, steps=STEPS)
        lane = bench.device.lane
        (reader,) = readers
        records = reader.read()
    assert len(records) == lane.forwards
    assert records["idle"].sum() == pytest.approx(lane.idle, abs=1e-4)
    assert (records["end"] - records["start"]).sum() == pytest.approx(lane.busy, abs=1e-4)
    late = records["flags"] & layout.LATE > 0
    host = records["spent"][-1][list(HOST)].sum() - records["spent"][0][list(HOST)].sum()
    wall = records["launched"][-1] - records["launched"][0]
    waited = records["spent"][-1][WAIT] - records["spent"][0][WAIT]
    assert host + waited == pytest.approx(wall, rel=0.01)
    if loop == "blocking":
        assert late[1:].all()
        assert waited > STEP_S * (len(records) - 1) * 0.9
    else:
        # On busy cores many are late, and the device's own clock says so as well.
        assert not late[1:].all()
