"""Before and after: differences, and how sure they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.profiling.compare import Row, compare, main, text
from sglang_photon.profiling.folder import Recording
from tests.unit.profiling.recordings import (
    COMMIT_STACK,
    PLAN_STACK,
    WAIT_STACK,
    recording,
    steps,
)

SLOW = ("slow_part", "/x/ours.py", 3)


def row(rows: tuple[Row, ...], name: str, unit: str = "ms per step") -> Row:
    (found,) = (entry for entry in rows if entry.name == name and entry.unit == unit)
    return found


def pair(tmp_path: Path) -> tuple[Recording, Recording]:
    before = recording(
        tmp_path / "before",
        records=steps(200, idle_s=2e-3, host_s=2e-3),
        stacks=[([*PLAN_STACK, SLOW], 3.0), (WAIT_STACK, 7.0)] * 10,
    )
    after = recording(
        tmp_path / "after",
        records=steps(200, host_s=1e-3),
        stacks=[([*PLAN_STACK, SLOW], 1.0), (WAIT_STACK, 9.0)] * 10,
    )
    return before, after


def test_phases_per_step_with_an_interval(tmp_path: Path) -> None:
    found = compare(*pair(tmp_path))
    plan = row(found.rows, "plan")
    assert (plan.before, plan.after) == pytest.approx((0.5, 0.25))
    assert plan.low <= -0.25 <= plan.high + 1e-9
    assert plan.sure
    idle = row(found.rows, "device idle")
    assert (idle.before, idle.after) == pytest.approx((2.0, 0.0), abs=0.02)
    assert row(found.rows, "device idle", "%").before == pytest.approx(28.6, abs=0.1)
    assert not row(found.rows, "device busy").sure
    (moved,) = (mover for mover in found.movers if mover.function == "slow_part (x/ours.py)")
    assert (moved.before_pct, moved.after_pct) == pytest.approx((30.0, 10.0))
    assert "(unsure)" in text(found)


def test_nothing_changed_is_unsure(tmp_path: Path) -> None:
    first = recording(tmp_path / "a", records=steps(200, idle_s=1e-3, every=3))
    second = recording(tmp_path / "b", records=steps(200, idle_s=1e-3, every=3))
    assert not any(entry.sure for entry in compare(first, second).rows)


def test_without_steps_stacks_are_compared(tmp_path: Path) -> None:
    before = recording(tmp_path / "a", stacks=[(PLAN_STACK, 0.03), (WAIT_STACK, 0.07)] * 40)
    after = recording(tmp_path / "b", stacks=[(COMMIT_STACK, 0.01), (WAIT_STACK, 0.09)] * 40)
    rows = compare(before, after).rows
    assert row(rows, "plan", "%").before == pytest.approx(30.0, abs=1)
    assert row(rows, "plan", "%").after == 0.0
    assert row(rows, "plan", "%").sure
    assert row(rows, "wait for device", "%").after == pytest.approx(90.0, abs=1)


def test_the_command_writes_what_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair(tmp_path)
    files = {name: tmp_path / f"out.{name}" for name in ("json", "html", "svg")}
    flags = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main([str(before.path), str(after.path), *flags]) == 0
    assert "slow_part" in capsys.readouterr().out
    assert json.loads(files["json"].read_text())["rows"]
    assert "<svg" in files["svg"].read_text()
    assert "slow_part" in files["html"].read_text()


def test_a_recording_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no scheduler"):
        compare(recording(tmp_path / "a", records=steps(99)), recording(tmp_path / "b"))
