"""`photon bench ingest`: what a request with pictures costs the requests that are being served.

32 text requests stream on a simulated device of 2 ms per step, and requests with pictures arrive
beside them at fixed rates, alone or in bursts, from another process and over the real sockets. The
device's idle time is exact. SGLang's overlap loop and Photon's take turns within a repetition.

    idle/image   ms in which the device had nothing to do, per request with pictures, from its
                 arrival until 50 ms after its last token
    text p50 p99 ms between two tokens of a text request, while there are pictures
    gap          longest such pause within 200 ms of an arrival; median over the arrivals
    ttft         ms from the arrival of a request with pictures to its first token; median

A prefill takes one step's time by default, so that only what the host does shows in the pauses.
The device does not read the pixels: what that costs is the same under every loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sglang_photon.errors import UsageError

LOOPS = ("sglang", "photon")
HASHED = "sglang-hashed"
"""SGLang with its own switch for hashing in the tokenizer process, SGLANG_MM_PRECOMPUTE_HASH."""
IMAGES = {"448": (1, 448), "1024": (1, 1024), "4x1024": (4, 1024)}
RATES = {"448": (4.0, 12.0), "1024": (2.0, 6.0), "4x1024": (0.7, 1.5)}
BURST = 4
LEAST_REQUESTS = 4
MUST_IDLE = {"448": 1 / 4, "1024": 1 / 10, "4x1024": 1 / 10}
MUST_GAP = 1 / 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop on one load; medians over the repetitions.

    Attributes:
        loop: which.
        image: the pictures of a request, a key of `IMAGES`.
        rate: such requests per second.
        burst: how many come at once.
        idle_ms_per_image: device idle per such request.
        text_itl_p50_ms: between two tokens of a text request.
        text_itl_p99_ms: the same, 99th percentile.
        worst_text_gap_ms: longest pause after an arrival, median.
        image_ttft_p50_ms: arrival to first token.
        idle_pct_text_alone: device idle before the first picture: what the load itself costs.
    """

    loop: str
    image: str
    rate: float
    burst: int
    idle_ms_per_image: float
    text_itl_p50_ms: float
    text_itl_p99_ms: float
    worst_text_gap_ms: float
    image_ttft_p50_ms: float
    idle_pct_text_alone: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What arrives."""

    image: str
    rate: float
    burst: int


MEASURED = tuple(field.name for field in fields(Cell) if field.type == "float")[1:]
"""What is measured of a cell: everything after its rate."""


def median_cell(cells: Sequence[Cell]) -> Cell:
    """The same cell of several repetitions, field by field."""
    medians: dict[str, Any] = {
        name: statistics.median(getattr(cell, name) for cell in cells) for name in MEASURED
    }
    return replace(cells[0], **medians)


def compared(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """Photon over SGLang for each load, beside what must be reached."""
    by_key = {(cell.image, cell.rate, cell.burst, cell.loop): cell for cell in cells}
    rows: list[dict[str, object]] = []
    for (image, rate, burst, loop), ours in by_key.items():
        theirs = by_key.get((image, rate, burst, LOOPS[0]))
        if loop != LOOPS[1] or theirs is None:
            continue
        idle = ours.idle_ms_per_image / max(theirs.idle_ms_per_image, 1e-9)
        gap = ours.worst_text_gap_ms / theirs.worst_text_gap_ms
        rows.append(
            {
                "image": image,
                "rate": rate,
                "burst": burst,
                "idle": round(idle, 3),
                "idle_at_most": MUST_IDLE[image],
                "gap": round(gap, 3),
                "gap_at_most": MUST_GAP,
                "ttft": round(ours.image_ttft_p50_ms / theirs.image_ttft_p50_ms, 3),
                "ttft_at_most": 1.0,
            }
        )
    return rows


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print its tables."""
    options = _options(argv)
    from sglang_photon.upstream.bench_ingest import IngestBench

    loops = [*LOOPS, *([HASHED] if options.hashed_upstream else [])]
    measured: dict[tuple[str, Load], list[Cell]] = {}
    for repetition in range(options.reps):
        for loop in loops:
            with IngestBench.open(loop=loop.split("-")[0], hashed=loop != LOOPS[0]) as bench:
                for load in options.loads:
                    _progress(f"repetition {repetition + 1}: {loop}, {load}")
                    count, size = IMAGES[load.image]
                    figures: dict[str, Any] = bench.measure(
                        count=count,
                        size=size,
                        rate=load.rate,
                        burst=load.burst,
                        requests=_requests(load, options.seconds),
                        prefill_s=options.prefill_ms / 1e3,
                    )
                    cell = Cell(loop=loop, **asdict(load), **figures)
                    measured.setdefault((loop, load), []).append(cell)
    _progress("")
    cells = [median_cell(found) for found in measured.values()]
    _print(cells, compared(cells))
    if options.json is not None:
        report = {"cells": [asdict(cell) for cell in cells], "ratios": compared(cells)}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _requests(load: Load, seconds: float) -> int:
    bursts = max(1, round(max(LEAST_REQUESTS, seconds * load.rate) / load.burst))
    return bursts * load.burst


def _print(cells: Sequence[Cell], ratios: Sequence[dict[str, object]]) -> None:
    print(
        "image   rate/s burst  loop           idle/image  text p50    p99    gap    ttft"
        "  idle % before"
    )
    order = [*LOOPS, HASHED]
    for cell in sorted(
        cells, key=lambda c: (list(IMAGES).index(c.image), c.burst, c.rate, order.index(c.loop))
    ):
        print(
            f"{cell.image:7} {cell.rate:6g} {cell.burst:5}  {cell.loop:14} "
            f"{cell.idle_ms_per_image:10.2f} {cell.text_itl_p50_ms:9.2f} "
            f"{cell.text_itl_p99_ms:6.2f} {cell.worst_text_gap_ms:6.1f} "
            f"{cell.image_ttft_p50_ms:7.1f} {cell.idle_pct_text_alone:14.2f}"
        )
    print("\nPhoton / SGLang (must be at most)")
    for row in ratios:
        print(
            f"{row['image']:7} {row['rate']:6g} {row['burst']:5}  "
            + ", ".join(
                f"{name} {row[name]:.3f} ({row[f'{name}_at_most']:.3g})"
                for name in ("idle", "gap", "ttft")
            )
        )


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench ingest", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--image", nargs="+", choices=list(IMAGES), default=list(IMAGES))
    parser.add_argument("--rate", type=float, nargs="+", help="requests with pictures per second")
    parser.add_argument("--no-bursts", action="store_true", help=f"without bursts of {BURST}")
    parser.add_argument("--seconds", type=float, default=4.0, help="for which pictures arrive")
    parser.add_argument("--prefill-ms", type=float, default=2.0, help="the device's, per prefill")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument(
        "--hashed-upstream", action="store_true", help="also SGLang with SGLANG_MM_PRECOMPUTE_HASH"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(list(argv))
    rates = options.rate or []
    if min([*rates, options.seconds, options.prefill_ms, options.reps]) <= 0:
        raise UsageError("A rate, a time or a count is not above 0", "Give positive numbers")
    options.loads = [
        *(Load(image=i, rate=rate, burst=1) for i in options.image for rate in rates or RATES[i]),
        *(
            Load(image=i, rate=max(rates or RATES[i]), burst=BURST)
            for i in options.image
            if not options.no_bursts
        ),
    ]
    return options


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
