"""The arithmetic of the loops benchmark, and what it writes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sglang_photon.bench import loops
from sglang_photon.bench import loops_report as report
from sglang_photon.bench.__main__ import main
from sglang_photon.errors import UsageError

PHOTON = report.Cell(
    loop="photon",
    batch=16,
    step_ms=2.0,
    stream=False,
    wall_us=2000.0,
    host_us=400.0,
    device_us=2000.0,
    idle_pct=0.0,
    tok_s=8000.0,
    zombie_pct=1.0,
)
BLOCKING = dataclasses.replace(PHOTON, loop="blocking", wall_us=2600.0, zombie_pct=None)


def test_the_prediction_does_not_look_at_the_walls() -> None:
    (gain,) = report.ratios([BLOCKING, PHOTON])
    assert (gain["measured"], gain["predicted"]) == (1.3, 1.2)
    assert gain["off_pct"] == pytest.approx(8.3)
    assert (gain["t_block_predicted_us"], gain["t_pipe_predicted_us"]) == (2400.0, 2000.0)


def test_a_host_slower_than_the_device_is_in_the_prediction() -> None:
    slow = dataclasses.replace(PHOTON, host_us=2400.0, wall_us=2400.0)
    (gain,) = report.ratios([BLOCKING, slow])
    assert gain["predicted"] == 1.0


def test_repetitions_become_medians() -> None:
    cells = [dataclasses.replace(PHOTON, wall_us=wall) for wall in (3.0, 1.0, 2.0)]
    assert report.median_cell(cells).wall_us == 2.0
    assert report.median_cell([BLOCKING]).zombie_pct is None


def test_impossible_loads_are_refused() -> None:
    with pytest.raises(UsageError, match="Give positive numbers"):
        loops.main(["--batch", "0"])


def test_an_unknown_benchmark_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "Choose: host, loops" in capsys.readouterr().err


def test_a_section_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    report.write_section(page, "## The loops\n\nfirst\n")
    page.write_text(page.read_text() + "\n## Another\n\nkept\n")
    report.write_section(page, "## The loops\n\nsecond\n")
    assert page.read_text() == "# Performance\n\n## The loops\n\nsecond\n\n## Another\n\nkept\n"


def run_of(path: Path, machine: str, **fields: object) -> Path:
    path.write_text(json.dumps({"machine": machine, "cells": [], **fields}))
    return path


def test_pieces_are_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [dataclasses.asdict(cell) for cell in (BLOCKING, PHOTON)]
    one = run_of(tmp_path / "1.json", "a machine", cells=cells)
    two = run_of(tmp_path / "2.json", "a machine", one_request=[{"loop": "photon", "ms": 64.25}])
    page = tmp_path / "page.md"
    assert loops.main(["--read", str(one), str(two), "--md", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "a machine" in printed
    assert "one_request\n  loop photon, ms 64.25" in printed
    assert "| no | 2 | 16 | 2600 / 2000 | 400 / 400 | 0.0 / 0.0 | 1.3 | 1.2 | 8.3 |" in (
        page.read_text()
    )


def test_pieces_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    files = [str(run_of(tmp_path / name, name)) for name in ("here", "there")]
    with pytest.raises(UsageError, match="several machines"):
        loops.main(["--read", *files])
