"""The verdict's arithmetic, on recordings of known content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_photon.observe.phases import RECEIVE
from sglang_photon.observe.reader import Records
from sglang_photon.profiling.verdict import judge
from sglang_photon.profiling.verdict_command import main
from sglang_photon.profiling.wording import lines
from tests.unit.profiling.recordings import (
    COMMIT_STACK,
    LAUNCH_STACK,
    LOOP,
    PLAN_STACK,
    RECEIVE_STACK,
    WAIT_STACK,
    Call,
    recording,
    steps,
)

Stretch = tuple[list[Call], float]
SLOW: Call = ("Mixer.slow_part", "/x/ours.py", 3)


def test_idle_time_with_rows_runnable_is_a_bubble(tmp_path: Path) -> None:
    found = judge(
        recording(tmp_path, records=steps(100, idle_s=5e-3, every=4, cause=RECEIVE)),
        max_idle_pct=2,
    )
    assert found.exit_code == 2
    # 24 times 5 ms of 100 steps of 5 ms.
    assert found.idle_pct == pytest.approx(24 / 124 * 100, abs=0.1)
    assert found.idle_interval is not None
    assert found.idle_pct is not None
    assert found.idle_interval[0] < found.idle_pct < found.idle_interval[1]
    assert found.idle_ms_per_step == pytest.approx(1.2, abs=0.01)
    assert found.t_pipe_ms == pytest.approx(6.2, abs=0.01)
    assert found.t_block_ms == pytest.approx(6.0, abs=0.01)
    assert [(cause.phase, cause.function) for cause in found.causes] == [("receive", None)]
    assert (found.steps, found.late_steps) == (100, 24)


def test_idle_time_with_nothing_to_run_is_not(tmp_path: Path) -> None:
    found = judge(
        recording(tmp_path, records=steps(100, idle_s=5e-3, every=4, rested=True)), max_idle_pct=2
    )
    assert (found.exit_code, found.idle_pct) == (0, 0.0)
    assert found.unfed_pct == pytest.approx(24 / 124 * 100, abs=0.1)
    assert "send more at once" in found.advice[0]


def test_the_limit_decides(tmp_path: Path) -> None:
    made = recording(tmp_path, records=steps(100, idle_s=1e-3, every=4))
    assert judge(made, max_idle_pct=4).exit_code == 2
    assert judge(made, max_idle_pct=5).exit_code == 0


@pytest.mark.parametrize(
    ("records", "reason"),
    [(None, "no device timing"), (steps(10), "too few steps"), (steps(0), "too few steps")],
)
def test_what_cannot_be_told_is_not_told(
    tmp_path: Path, records: Records | None, reason: str
) -> None:
    made = recording(tmp_path, stacks=[(WAIT_STACK, 1.0)], records=records)
    found = judge(made, max_idle_pct=2)
    assert (found.exit_code, found.bubbles, found.idle_pct) == (3, None, None)
    assert reason in (found.why_not or "")
    assert lines(found) == [f"bubbles: cannot tell, {found.why_not}"]


def test_steps_without_device_times_are_no_device_timing(tmp_path: Path) -> None:
    records = steps(100)
    records["flags"] = 0
    found = judge(recording(tmp_path, records=records), max_idle_pct=2)
    assert "without it" in (found.why_not or "")


def around(stack: list[Call], seconds: float, rest: list[Call], count: int = 99) -> list[Stretch]:
    """For each step of 7 ms: so many seconds of one stack, the remainder of another."""
    return [(stack, seconds), (rest, 7e-3 - seconds)] * count


def test_the_function_before_late_launches_is_named(tmp_path: Path) -> None:
    stacks = around(
        [*PLAN_STACK, SLOW, ("len_of", "/usr/lib/python3.11/x.py", 1)], 4e-3, WAIT_STACK
    )
    made = recording(tmp_path, records=steps(100, idle_s=2e-3), stacks=stacks)
    found = judge(made, max_idle_pct=2)
    first = found.causes[0]
    assert (first.phase, first.function) == ("plan", "Mixer.slow_part (x/ours.py)")
    assert first.share == pytest.approx(1.0)
    assert not first.waits_for_device


def test_a_wait_for_the_device_elsewhere_is_put_down_to_the_waiter(tmp_path: Path) -> None:
    hidden = [*PLAN_STACK, SLOW, ("Event.synchronize", "/x/site-packages/torch/cuda/s.py", 9)]
    made = recording(
        tmp_path,
        records=steps(100, idle_s=2e-3, host_s=6e-3),
        stacks=around(hidden, 5e-3, LAUNCH_STACK),
    )
    found = judge(made, max_idle_pct=2)
    first = found.causes[0]
    assert (first.phase, first.function) == ("plan", "Mixer.slow_part (x/ours.py)")
    assert first.waits_for_device
    assert "do not wait for the device in Mixer.slow_part" in found.advice[0]
    # The wait is not host work: 5 of the 6 ms.
    assert found.host_ms == pytest.approx(1.05, abs=0.1)


def test_work_spread_over_many_functions_is_named_by_their_caller(tmp_path: Path) -> None:
    stacks = [([*COMMIT_STACK, SLOW, (f"part{n % 5}", "/x/ours.py", 9)], 7e-3) for n in range(99)]
    found = judge(
        recording(tmp_path, records=steps(100, idle_s=2e-3), stacks=stacks), max_idle_pct=2
    )
    assert found.causes[0].function == "Mixer.slow_part (x/ours.py)"


def test_zombies_stand_beside_one_over_the_length(tmp_path: Path) -> None:
    found = judge(recording(tmp_path, records=steps(101, zombies=1)), max_idle_pct=2)
    assert found.zombie_pct == pytest.approx(25.0)
    assert found.expected_zombie_pct == pytest.approx(1.0)


def test_reasons_for_less_overlap_are_told(tmp_path: Path) -> None:
    found = judge(
        recording(
            tmp_path, records=steps(100, idle_s=2e-3, settled=1), reasons=["the KV pool is full"]
        ),
        max_idle_pct=2,
    )
    assert any("the KV pool is full" in advice for advice in found.advice)


@pytest.mark.parametrize(
    ("facts", "part", "said"),
    [
        ({"lane": "inline", "device": "cpu"}, {}, "on the scheduler's own thread"),
        ({"lane": "thread", "device": "cpu"}, {}, "in a thread beside the host"),
        ({}, {"core_wait_pct": 12.0}, "waited 12 % of the time for a core"),
        ({}, {"missed_steps": 5}, "5 steps were not seen"),
    ],
)
def test_what_limits_the_figures_is_noted(
    tmp_path: Path, facts: dict[str, str], part: dict[str, Any], said: str
) -> None:
    made = recording(tmp_path, records=steps(100), facts=facts, **part)
    found = judge(made, max_idle_pct=2)
    assert any(said in note for note in found.notes)


def test_a_blocking_recording_gives_a_measured_t_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocking = recording(tmp_path / "a", records=steps(100, idle_s=3e-3))
    recording(tmp_path / "b", records=steps(100), stacks=[(RECEIVE_STACK, 1.0), (LOOP, 1.0)])
    arguments = ["--recording", str(tmp_path / "b"), "--blocking", str(blocking.path)]
    assert main([*arguments, "--json", str(tmp_path / "v.json")]) == 0
    text = capsys.readouterr().out
    assert "(measured): 1.59x won, 1.00x left" in text
    assert len(text.splitlines()) == 5
    said = json.loads((tmp_path / "v.json").read_text())
    assert {
        *("bubbles", "idle_pct", "idle_ms_per_step", "causes", "t_block_ms"),
        *("t_pipe_ms", "zombie_pct"),
    } <= set(said)
    assert said["t_block_ms"] == pytest.approx(7.97, abs=0.01)
