"""`photon bench loops`: the blocking loop, SGLang's overlap loop and Photon's, in one run.

The real scheduler serves the same requests on a simulated device of known step time, so that the
device's idle time is exact and the host's work is the only thing that differs. The loops take turns
within a repetition: a machine that gets slower meanwhile slows all of them.

    wall     µs from one decode step to the next
    host     µs of the scheduler's thread per step, without waiting
    idle     share of the time in which the device had nothing to do
    T_block / T_pipe   wall of the blocking loop over wall of Photon's, measured; and predicted
             without the walls: (device busy + host of the blocking loop) / max(device busy, host of
             Photon's)

A run of all loads takes some minutes. It may be made in pieces, `--json` for each, and shown as one
by `--read`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sglang_photon.bench import loops_report as report
from sglang_photon.bench.loops_report import LOOPS, Cell, Extras, Row, median_cell, ratios
from sglang_photon.errors import UsageError

STEP_MS = (0.5, 1.0, 2.0, 5.0, 10.0)
BATCHES = (1, 16, 64, 256)
WARM_STEPS = 8
STEPS = 60
SHORT_REQUESTS = 64
TAX_LENGTHS = (8, 32, 110, 512)
EXTRAS = ("short_answers", "one_request", "zombie_tax")


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print its tables."""
    options = _options(argv)
    if options.read:
        cells, extras, where = _read(options.read)
    else:
        cells = [] if options.extras_only else _cells(options)
        extras = {} if options.cells_only else _extras(options.reps)
        where = report.machine()
        _progress("")
    gains = ratios(cells)
    print(f"{where}\n\n{report.text(cells, gains, extras)}")
    if options.json is not None:
        found = {
            "machine": where,
            "cells": [asdict(cell) for cell in cells],
            "t_block_over_t_pipe": gains,
            **extras,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.md is not None:
        report.write_section(options.md, report.markdown(cells, gains, extras, where=where))
    return 0


def _cells(options: argparse.Namespace) -> list[Cell]:
    """Every load under every loop; the loops take turns within a repetition."""
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
    return [median_cell(found) for found in measured.values()]


def _read(files: Sequence[Path]) -> tuple[list[Cell], Extras, str]:
    """The figures of earlier runs, which together must be of one machine.

    Raises:
        UsageError: the runs are of several machines.
    """
    runs = [json.loads(file.read_text()) for file in files]
    machines = {run["machine"] for run in runs}
    if len(machines) > 1:
        raise UsageError(
            f"The runs are of several machines: {'; '.join(sorted(machines))}", "Read them apart"
        )
    extras: Extras = {}
    for run in runs:
        extras.update({name: run[name] for name in EXTRAS if name in run})
    cells = [Cell(**cell) for run in runs for cell in run["cells"]]
    return cells, extras, machines.pop()


def _extras(reps: int) -> Extras:
    """Short answers, one request alone, and the zombie tax."""
    from sglang_photon.upstream.bench_loops import Bench

    short: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    taxes: list[Row] = []
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


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench loops", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="rows")
    parser.add_argument("--step-ms", type=float, nargs="+", default=list(STEP_MS))
    parser.add_argument("--stream", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument("--steps", type=int, default=STEPS, help="decode steps measured per cell")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; medians are shown")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--cells-only", action="store_true", help="only the table of cells")
    part.add_argument("--extras-only", action="store_true", help="only what follows the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--md", type=Path, metavar="FILE", help=f'write the section "{report.HEADING[3:]}" there'
    )
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="show these runs, measure nothing"
    )
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
