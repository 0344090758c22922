"""The arithmetic and the tables of the host benchmark, and a short run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_photon.bench import host, host_report, host_stages
from sglang_photon.bench.host_samples import GOALS, Goal, Load, Results, Sample
from sglang_photon.errors import UsageError

LOAD = Load(mode="steady", stream=False, step_ms=0.0, batch=64)
SMOKE_S = 170
"""Most of it is the construction of schedulers."""


def sample(loop: str, host_us: float, **fields: float) -> Sample:
    figures = {
        "host_us": host_us,
        "wall_us": host_us,
        "idle_pct": 1.0,
        "tok_s": 1e6 / host_us,
        "itl_p50_ms": host_us / 1e3,
        "itl_p99_ms": host_us / 1e3,
    }
    return Sample(load=LOAD, loop=loop, **{**figures, **fields})


def results(*samples: Sample) -> Results:
    made = Results()
    made.machines.add("a machine")
    for one in samples:
        made.add(one)
    return made


def test_ratios_are_taken_within_a_repetition() -> None:
    # The machine became three times slower after the first repetition.
    made = results(
        *(sample("sglang", us) for us in (100.0, 300.0, 330.0)),
        *(sample("photon", us) for us in (10.0, 30.0, 30.0)),
    )
    ratio = made.ratio(LOAD, "host")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((10.0, 10.0, 11.0))
    median = made.median(LOAD, "sglang")
    assert median is not None
    assert median.host_us == 300.0
    assert made.spread(LOAD, "photon", "host_us") == pytest.approx(10.0)


def test_only_what_is_worse_in_every_repetition_is_called_worse() -> None:
    once = results(
        *(sample("sglang", us) for us in (100.0, 100.0, 100.0)),
        *(sample("photon", us) for us in (120.0, 120.0, 90.0)),
    )
    assert once.worse() == []
    always = results(
        *(sample("sglang", us) for us in (100.0, 100.0)),
        *(sample("photon", us) for us in (120.0, 110.0)),
    )
    assert [figure for _, figure, _ in always.worse()] == ["tokens", "p99"]


@pytest.mark.parametrize(
    ("figure", "value", "share", "met"),
    [
        ("host", 5.0, 1.0, True),
        ("host", 4.9, 1.0, False),
        ("host", 2.5, 0.5, True),
        ("idle", 3.0, 1.0, False),
        ("idle", 3.0, 0.5, True),
    ],
)
def test_half_of_a_goal(figure: str, value: float, share: float, met: bool) -> None:
    goal = Goal(load=LOAD, figure=figure, bound=2.0 if figure == "idle" else 5.0)
    assert goal.met(value, share=share) is met


def test_a_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = results(sample("sglang", 100.0), sample("photon", 10.0, mask_us=3.0))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(made.as_json()))
    again = Results()
    again.add_json(json.loads(path.read_text()))
    assert again.as_json() == made.as_json()
    (cell,) = [cell for cell in json.loads(path.read_text())["cells"] if cell["loop"] == "photon"]
    named = "loop mode batch step_ms stream host_us wall_us idle_pct tok_s itl_p50_ms itl_p99_ms"
    assert set(named.split()) <= set(cell)


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[1]")
    with pytest.raises(UsageError, match="no report"):
        host.main(["--read", str(path)])
    with pytest.raises(UsageError, match="cannot be read"):
        host.main(["--read", str(tmp_path / "none")])


def test_tables_go_between_the_marks_of_a_document(tmp_path: Path) -> None:
    made = results(sample("sglang", 100.0), sample("photon", 10.0))
    path = tmp_path / "PAGE.md"
    path.write_text(f"before\n{host_report.BEGIN}\nold\n{host_report.END}\nafter\n")
    host_report.write_section(path, made)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| 7x better | 10.0x" in text
    path.write_text("no marks")
    with pytest.raises(UsageError, match="no section"):
        host_report.write_section(path, made)


def test_a_missed_goal_is_called_missed() -> None:
    made = results(sample("sglang", 100.0), sample("photon", 50.0))
    (line,) = [line for line in host_report.tables(made).splitlines() if "7x better" in line]
    assert "missed" in line


def test_the_chart_is_a_picture(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "chart"
    host_report.draw(path, results(sample("sglang", 100.0), sample("photon", 10.0)))
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20) or ()}
        assert (0x2B, 0x6C, 0xB0) in colors


def test_stacks_become_stages() -> None:
    sglang = "event_loop_overlap (managers/scheduler.py:9)"
    photon = f"{sglang};_run_photon_loop (upstream/scheduler.py:2);PhotonLoop.tick (tick.py:7)"
    table = host_stages.table(
        [
            "main (x.py:1) 50",
            f"{sglang};run_batch (scheduler.py:3);init_new (forward_batch_info.py:4) 30",
            f"{sglang};get_next_batch_to_run (s.py:1);get_new_batch_prefill (s.py:2) 10",
            f"{sglang};process_batch_result (s.py:1);RealClock.sleep_until (sim.py:2) 7",
            f"{photon};SchedulerHost.plan (host.py:3) 4",
        ]
    )
    assert "sglang    launch               75.0%  init_new (forward_batch_info.py) 75%" in table
    assert "sglang    joins and ends       25.0%" in table
    assert "sglang    40 samples, and 7 while waiting" in table
    assert "photon    plan                100.0%" in table


def test_impossible_loads_are_refused() -> None:
    for wrong in (["--batch", "0"], ["--steps", "1"], ["--requests", "2"], ["--step-ms", "-1"]):
        with pytest.raises(UsageError):
            host.main(wrong)


ASSERTED = [
    goal
    for goal in GOALS
    if goal.figure == "host" and (goal.load.batch, goal.load.stream) in ((16, False), (64, True))
]
"""Loads on which half of the goal was seen with room to spare, on a machine that had other work."""


@pytest.mark.timeout(SMOKE_S + 10)
def test_the_scheduler_takes_a_fraction_of_upstreams_time(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "sglang_photon.bench", "host", "--mode", "steady"]
    command += ["--batch", "16", "64", "--step-ms", "0", "--loop", "sglang", "photon"]
    command += ["--reps", "3", "--steps", "100", "--json", str(path)]
    subprocess.run(command, check=True, timeout=SMOKE_S)
    made = Results()
    made.add_json(json.loads(path.read_text()))
    values = {goal: made.value(goal) for goal in ASSERTED}
    assert len(values) == 2
    missed = {
        f"{goal.load}: {goal.figure}": value
        for goal, value in values.items()
        if value is None or not goal.met(value, share=0.5)
    }
    assert not missed
