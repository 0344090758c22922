"""The arithmetic of the loops benchmark."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_photon.bench import loops
from sglang_photon.bench.__main__ import main
from sglang_photon.errors import UsageError

PHOTON = loops.Cell(
    loop="photon",
    batch=16,
    step_ms=2.0,
    stream=False,
    wall_us=2000.0,
    host_us=400.0,
    idle_pct=0.0,
    tok_s=8000.0,
    zombie_pct=1.0,
)
BLOCKING = dataclasses.replace(PHOTON, loop="blocking", wall_us=2500.0, zombie_pct=None)


def test_the_gain_is_measured_and_predicted() -> None:
    (gain,) = loops.ratios([BLOCKING, PHOTON])
    assert (gain["measured"], gain["predicted"]) == (1.25, 1.25)


def test_a_host_slower_than_the_device_is_in_the_prediction() -> None:
    slow = dataclasses.replace(PHOTON, host_us=2400.0, wall_us=2400.0)
    (gain,) = loops.ratios([BLOCKING, slow])
    assert gain["predicted"] == round(2500 / 2400, 3)


def test_repetitions_become_medians() -> None:
    cells = [dataclasses.replace(PHOTON, wall_us=wall) for wall in (3.0, 1.0, 2.0)]
    assert loops.median_cell(cells).wall_us == 2.0
    assert loops.median_cell([BLOCKING]).zombie_pct is None


def test_impossible_loads_are_refused() -> None:
    with pytest.raises(UsageError, match="Give positive numbers"):
        loops.main(["--batch", "0"])


def test_an_unknown_benchmark_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "Choose: host, loops" in capsys.readouterr().err
