"""`photon bench loops`: the blocking loop, SGLang's overlap loop and Photon's, in one run.

The real scheduler serves the same requests on a simulated device of known step time, so that the
device's idle time is exact and the host's work is the only thing that differs. The loops take turns
within a repetition: a machine that gets slower meanwhile slows all of them.

    wall     µs from one decode step to the next
    host     µs of the scheduler's thread per step, without waiting
    idle     share of the time in which the device had nothing to do
    T_block / T_pipe   wall of the blocking loop over wall of Photon's, measured; and predicted by
             the cost model: (step + host of the blocking loop) / max(step, host of Photon's)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_photon.errors import UsageError

LOOPS = ("blocking", "sglang", "photon")
STEP_MS = (0.5, 1.0, 2.0, 5.0, 10.0)
BATCHES = (1, 16, 64, 256)
WARM_STEPS = 8
STEPS = 60
SHORT_REQUESTS = 64
TAX_LENGTHS = (8, 32, 110, 512)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop on one load; medians over the repetitions.

    Attributes:
        loop: which.
        batch: rows decoded at once.
        step_ms: the device's time for a step.
        stream: whether every token is sent at once.
        wall_us: between two steps.
        host_us: CPU time of the scheduler's thread per step, waiting left out.
        idle_pct: of the time, the device idle.
        tok_s: tokens per second.
        zombie_pct: of the launched rows, those that had ended; None where the loop does not count.
    """

    loop: str
    batch: int
    step_ms: float
    stream: bool
    wall_us: float
    host_us: float
    idle_pct: float
    tok_s: float
    zombie_pct: float | None


def ratios(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """T_block over T_pipe for each load, measured and predicted."""
    by_key = {(cell.batch, cell.step_ms, cell.stream, cell.loop): cell for cell in cells}
    rows: list[dict[str, object]] = []
    for (batch, step_ms, stream, loop), piped in by_key.items():
        blocked = by_key.get((batch, step_ms, stream, "blocking"))
        if loop != "photon" or blocked is None:
            continue
        # In the blocking loop all of the wall that is not the step is the host's.
        host_us = blocked.wall_us - step_ms * 1e3
        rows.append(
            {
                "batch": batch,
                "step_ms": step_ms,
                "stream": stream,
                "measured": round(blocked.wall_us / piped.wall_us, 3),
                "predicted": round(
                    (step_ms * 1e3 + host_us) / max(step_ms * 1e3, piped.host_us), 3
                ),
            }
        )
    return rows


def median_cell(cells: Sequence[Cell]) -> Cell:
    """The same cell of several repetitions, field by field."""
    first = cells[0]
    zombies = [cell.zombie_pct for cell in cells if cell.zombie_pct is not None]
    return Cell(
        loop=first.loop,
        batch=first.batch,
        step_ms=first.step_ms,
        stream=first.stream,
        wall_us=statistics.median(cell.wall_us for cell in cells),
        host_us=statistics.median(cell.host_us for cell in cells),
        idle_pct=statistics.median(cell.idle_pct for cell in cells),
        tok_s=statistics.median(cell.tok_s for cell in cells),
        zombie_pct=statistics.median(zombies) if zombies else None,
    )


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print its tables."""
    options = _options(argv)
    from sglang_photon.upstream.bench_loops import Bench

    loads = [
        (batch, step_ms, stream)
        for stream in options.stream
        for step_ms in options.step_ms
        for batch in options.batch
    ]
    measured: dict[tuple[str, int, float, bool], list[Cell]] = {}
    for repetition in range(options.reps):
        for loop in LOOPS:
            with Bench.open(loop=loop, rows=max(options.batch)) as bench:
                for batch, step_ms, stream in loads:
                    _progress(f"repetition {repetition + 1}: {loop}, {batch} x {step_ms} ms")
                    cell = Cell(
                        loop=loop,
                        batch=batch,
                        step_ms=step_ms,
                        stream=stream,
                        **bench.steady(
                            batch=batch,
                            step_s=step_ms / 1e3,
                            stream=stream,
                            warm=WARM_STEPS,
                            steps=options.steps,
                        ),
                    )
                    measured.setdefault((loop, batch, step_ms, stream), []).append(cell)
    cells = [median_cell(found) for found in measured.values()]
    extras = {} if options.cells_only else _extras(options.reps)
    _progress("")
    _print(cells, ratios(cells), extras)
    if options.json is not None:
        report = {
            "cells": [asdict(cell) for cell in cells],
            "t_block_over_t_pipe": ratios(cells),
            **extras,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _extras(reps: int) -> dict[str, list[dict[str, object]]]:
    """Short answers, one request alone, and the zombie tax."""
    from sglang_photon.upstream.bench_loops import Bench

    short: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    taxes: list[dict[str, object]] = []
    for _ in range(reps):
        for loop in LOOPS:
            with Bench.open(loop=loop, rows=64) as bench:
                _progress(f"short answers and one request alone: {loop}")
                short.setdefault(loop, []).append(bench.short_answers(count=SHORT_REQUESTS))
                alone.setdefault(loop, []).append(bench.alone(tokens=32, step_s=2e-3))
    with Bench.open(loop="photon", rows=64) as bench:
        for rows in (1, 64):
            for length in TAX_LENGTHS:
                _progress(f"zombie tax: {rows} rows, {length} tokens")
                tax = bench.zombie_tax(rows=rows, length=length)
                taxes.append(
                    {"rows": rows, "length": length, "tax": tax, "one_over_length": 1 / length}
                )
    return {
        "short_answers": [
            {"loop": loop, "requests_s": statistics.median(rates)} for loop, rates in short.items()
        ],
        "one_request": [
            {"loop": loop, "ms": statistics.median(times)} for loop, times in alone.items()
        ],
        "zombie_tax": taxes,
    }


def _print(
    cells: Sequence[Cell],
    gains: Sequence[dict[str, object]],
    extras: dict[str, list[dict[str, object]]],
) -> None:
    print("loop     stream  step ms  batch   wall us   host us  idle %      tok/s  zombies %")
    for cell in sorted(cells, key=lambda c: (c.stream, c.step_ms, c.batch, LOOPS.index(c.loop))):
        zombies = "-" if cell.zombie_pct is None else f"{cell.zombie_pct:.2f}"
        print(
            f"{cell.loop:8} {cell.stream!s:6} {cell.step_ms:8g} {cell.batch:6} "
            f"{cell.wall_us:9.0f} {cell.host_us:9.0f} {cell.idle_pct:7.1f} {cell.tok_s:10.0f} "
            f"{zombies:>10}"
        )
    print("\nT_block / T_pipe  stream  step ms  batch  measured  predicted")
    for gain in gains:
        print(
            f"{'':17} {gain['stream']!s:6} {gain['step_ms']:8g} {gain['batch']:6} "
            f"{gain['measured']:9} {gain['predicted']:10}"
        )
    for name, rows in extras.items():
        print(f"\n{name}")
        for row in rows:
            print("  " + ", ".join(f"{key} {_short(value)}" for key, value in row.items()))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench loops", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="rows")
    parser.add_argument("--step-ms", type=float, nargs="+", default=list(STEP_MS))
    parser.add_argument("--stream", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument("--steps", type=int, default=STEPS, help="decode steps measured per cell")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument("--cells-only", action="store_true", help="only the table of cells")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(list(argv))
    options.stream = [bool(flag) for flag in options.stream]
    if min(options.batch) < 1 or min(options.step_ms) <= 0 or options.reps < 1:
        raise UsageError(
            "A batch below 1, a step time of 0 or no repetition", "Give positive numbers"
        )
    return options


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
