"""`photon bench host`: the scheduler's host time per step, beside SGLang's.

The real scheduler serves the same requests on a simulated device of known step time, under the
blocking loop, SGLang's overlap loop and Photon's. The loops take turns within a repetition: a
machine that gets slower meanwhile slows all of them.

Requests come tokenized, and what the scheduler sends is pickled and written to a socket that
another process drains. Host time is the CPU time of the scheduler's thread. Left out are waiting
for the device, filling grammar masks (a column of its own), harness and simulation; and the model
runner, which a simulated device does not have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from sglang_photon.bench import host_report
from sglang_photon.bench.host_samples import GOALS, LOOPS, Load, Results, Sample
from sglang_photon.bench.host_stages import stages
from sglang_photon.errors import UsageError

if TYPE_CHECKING:
    from sglang_photon.upstream.bench_host import HostBench

BATCHES = {
    "steady": (1, 16, 64, 256),
    "churn": (16, 64, 256),
    "mrope": (64,),
    "special": (64,),
}
"""Modes, and the rows or clients of each."""

KINDS = {"mrope": "mrope", "special": "special"}
"""What rows are, where they are not text."""

STEP_MS = (0.0, 1.0, 2.0)
STEPS = 200
EACH = 6
REPS = 5
SMALLEST_ROOM = 200
"""Tokens of a closed-loop client's longest request, and some."""


def main(argv: Sequence[str]) -> int:
    """Measure, or read what was measured; print and write the tables."""
    options = _options(argv)
    if options.stages:
        return stages(_again(options), steps=options.steps, requests=options.requests)
    results = Results()
    if options.read:
        for path in options.read:
            _read(path, results)
    else:
        results.machines.add(host_report.machine())
        for sample in _measure(options):
            results.add(sample)
    print(host_report.tables(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results.as_json(), indent=1) + "\n")
    if options.md is not None:
        host_report.write_section(options.md, results)
    if options.plot is not None:
        host_report.draw(options.plot, results)
    return 0


def loads(options: argparse.Namespace) -> list[Load]:
    """What is measured, in the order in which it is."""
    if options.short:
        return sorted({goal.load for goal in GOALS})
    return [
        Load(mode=mode, stream=stream, step_ms=step_ms, batch=batch)
        for mode in options.mode
        for stream in options.stream
        for step_ms in options.step_ms
        for batch in options.batch or BATCHES[mode]
    ]


def _measure(options: argparse.Namespace) -> Iterator[Sample]:
    """Every repetition of every load, loop by loop."""
    from sglang_photon.upstream.bench_host import HostBench

    wanted = loads(options)
    kinds = {KINDS.get(load.mode, "text"): None for load in wanted}
    with _progress(len(wanted) * len(LOOPS) * options.reps) as bar:
        for _ in range(options.reps):
            for kind in kinds:
                mine = [load for load in wanted if KINDS.get(load.mode, "text") == kind]
                for loop in options.loop:
                    rows = max(load.batch for load in mine)
                    room = max(options.steps + 64, SMALLEST_ROOM)
                    with HostBench.open(loop=loop, rows=rows, kind=kind, longest=room) as bench:
                        for load in mine:
                            bar.set_description(f"{loop}: {load}")
                            yield Sample(load=load, loop=loop, **_run(bench, load, options))
                            bar.update()


def _run(bench: HostBench, load: Load, options: argparse.Namespace) -> dict[str, Any]:
    if load.mode == "churn":
        return bench.churn(
            clients=load.batch,
            step_s=load.step_ms / 1e3,
            stream=load.stream,
            each=options.requests,
        )
    return bench.decode(
        batch=load.batch, step_s=load.step_ms / 1e3, stream=load.stream, steps=options.steps
    )


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar where somebody looks."""
    with tqdm(total=total, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield bar


def _read(path: Path, results: Results) -> None:
    try:
        results.add_json(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Give a file") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no report of this benchmark", "Make one with --json FILE"
        ) from error


def _again(options: argparse.Namespace) -> list[str]:
    """The arguments that decide what is measured."""
    batch = ["--batch", *map(str, options.batch)] if options.batch else []
    return [
        *(["--short"] if options.short else []),
        *("--mode", *options.mode),
        *batch,
        *("--step-ms", *map(str, options.step_ms)),
        *("--stream", *(str(int(stream)) for stream in options.stream)),
    ]


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench host", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--mode", nargs="+", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--batch", type=int, nargs="+", help="rows, or clients")
    parser.add_argument("--step-ms", type=float, nargs="+", default=list(STEP_MS))
    parser.add_argument("--stream", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument("--short", action="store_true", help="only the loads that have a goal")
    parser.add_argument("--loop", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--steps", type=int, default=STEPS, help="decode steps measured per cell")
    parser.add_argument("--requests", type=int, default=EACH, help="of each churning client")
    parser.add_argument("--reps", type=int, default=REPS, help="repetitions; medians are shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the tables there: into its "
                        "marked section, if it has one")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a bar chart (PNG)")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="make tables of "
                        "reports written with --json, instead of measuring")  # fmt: skip
    parser.add_argument("--stages", action="store_true", help="run under py-spy instead, and "
                        "print where the time of each loop goes")  # fmt: skip
    options = parser.parse_args(list(argv))
    options.stream = [bool(flag) for flag in options.stream]
    if min(options.batch or [1]) < 1 or min(options.step_ms) < 0 or options.reps < 1:
        raise UsageError("A batch or repetitions below 1, or a negative step time", "Mend it")
    if options.steps < 10 or options.requests < 3:
        raise UsageError("Less than 10 steps or 3 requests show nothing", "Give more")
    return options
