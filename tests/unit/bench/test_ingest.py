"""The arithmetic of the benchmarks of pictures."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_photon.bench import ingest, ipc, vlm
from sglang_photon.errors import UsageError

PHOTON = ingest.Cell(
    loop="photon",
    image="1024",
    rate=4.0,
    burst=1,
    idle_ms_per_image=1.0,
    text_itl_p50_ms=2.0,
    text_itl_p99_ms=4.0,
    worst_text_gap_ms=5.0,
    image_ttft_p50_ms=7.0,
    idle_pct_text_alone=0.0,
)
SGLANG = dataclasses.replace(
    PHOTON, loop="sglang", idle_ms_per_image=20.0, worst_text_gap_ms=20.0, image_ttft_p50_ms=14.0
)


def test_photon_is_compared_with_what_must_be_reached() -> None:
    (row,) = ingest.compared([SGLANG, PHOTON])
    assert (row["idle"], row["idle_at_most"]) == (0.05, 0.1)
    assert (row["gap"], row["gap_at_most"]) == (0.25, 1 / 3)
    assert (row["ttft"], row["ttft_at_most"]) == (0.5, 1.0)


def test_repetitions_become_medians_of_what_is_measured() -> None:
    cells = [dataclasses.replace(PHOTON, idle_ms_per_image=idle) for idle in (3.0, 1.0, 2.0)]
    median = ingest.median_cell(cells)
    assert median.idle_ms_per_image == 2.0
    assert (median.rate, median.burst, median.image) == (4.0, 1, "1024")


def test_the_simulated_gpus_take_the_roofline_s_time() -> None:
    slow, fast = vlm.SimulatedGpu("h100"), vlm.SimulatedGpu("b200")
    assert slow.decode(64, 1440) / fast.decode(64, 1440) == pytest.approx(8.0 / 3.35, rel=0.01)
    # The weights are read once, whoever is served.
    assert slow.decode(1, 32) == pytest.approx(2 * 3.09e9 / 3.35e12, rel=0.05)
    assert fast.prefill(2740, 2738) == pytest.approx(2 * fast.prefill(1370, 1369), rel=0.1)


def test_the_headline_is_photon_over_blocking() -> None:
    loops = {"blocking": {"tok_s": 100.0}, "photon": {"tok_s": 150.0}}
    assert vlm.gain(loops) == pytest.approx(50.0)


def test_the_drawing_shows_every_loop() -> None:
    figures = {"tok_s": 10.0, "idle_pct": 1.0}
    drawn = vlm.draw({"b200": dict.fromkeys(vlm.LOOPS, figures)})
    assert drawn.count("<rect") == len(vlm.LOOPS)


@pytest.mark.parametrize(
    ("bench", "arguments"),
    [
        (ingest, ["--rate", "0"]),
        (ingest, ["--reps", "0"]),
        (vlm, ["--requests", "64"]),
        (ipc, ["--tensors", "0"]),
    ],
)
def test_impossible_loads_are_refused(bench: object, arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        bench.main(arguments)  # type: ignore[attr-defined]
