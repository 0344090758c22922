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
        cell = bench.steady(batch=ROWS, step_s=STEP_S, stream=True, warm=2, steps=STEPS)
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
        assert waited == pytest.approx(STEP_S * (len(records) - 1), rel=0.1)
    else:
        assert late.mean() < 0.5
        assert cell["idle_pct"] < 25
