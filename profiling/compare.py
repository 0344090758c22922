"""`photon profile compare A B`: what changed between two recordings, and how sure that is.

Both are cut into windows of time; the confidence interval of a difference comes from drawing
windows (neighbouring steps are alike, so single steps would promise too much). Phases are counted
in milliseconds per step from the step records where both recordings have them, else in percent of
the time from the stacks.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_photon.errors import UsageError
from sglang_photon.observe import layout
from sglang_photon.observe.phases import NAMES
from sglang_photon.profiling import flame, samples
from sglang_photon.profiling.folder import Part, Recording
from sglang_photon.profiling.phases import PHASES, phase_of, scheduler_thread
from sglang_photon.profiling.samples import ThreadSamples
from sglang_photon.profiling.verdict import FEWEST_STEPS, timed

WINDOWS = 20
DRAWS = 2000
ROUNDING = 1e-9
PER_STEP = "ms per step"
MOVERS = 10
SKELETON_PCT = 90.0

Floats = npt.NDArray[np.float64]
Series = dict[str, tuple[Floats, Floats]]
"""For each row of the table, its value in each window and the window's weight; 0 where a window has
none."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: a phase, or a figure of the device.
        unit: of the values.
        before: mean over the first recording.
        after: over the second.
        low, high: 95 % interval of the difference.
    """

    name: str
    unit: str
    before: float
    after: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out 0, and more than rounding."""
        return self.low > ROUNDING or self.high < -ROUNDING


@dataclass(frozen=True, kw_only=True)
class Mover:
    """A function whose share of the scheduler's time changed; calls of others included."""

    function: str
    before_pct: float
    after_pct: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two recordings side by side."""

    before: str
    after: str
    rows: tuple[Row, ...]
    movers: tuple[Mover, ...]

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            **asdict(self),
            "rows": [{**asdict(row), "sure": row.sure} for row in self.rows],
        }


def compare(before: Recording, after: Recording) -> Comparison:
    """Set two recordings of a scheduler side by side.

    Raises:
        UsageError: one has neither steps nor stacks of a scheduler.
    """
    first, second = _scheduler(before), _scheduler(after)
    if _has_steps(first) and _has_steps(second):
        rows = _rows(_step_series(first), _step_series(second))
    else:
        rows = _rows(_stack_series(first), _stack_series(second))
    return Comparison(
        before=str(before.path), after=str(after.path), rows=rows, movers=_movers(first, second)
    )


def difference_svg(before: Recording, after: Recording) -> str:
    """The differential flame graph, with the second recording's widths."""
    parts = [_scheduler(recording) for recording in (before, after)]
    lines = [samples.collapse(part.samples) if part.samples else {} for part in parts]
    tree = flame.difference(lines[0], lines[1])
    return flame.svg(tree, title="red: more than before, blue: less", unit="of the time")


def text(comparison: Comparison) -> str:
    """The table for a terminal."""
    lines = [f"{'':28}{'before':>11}{'after':>11}{'change':>11}   95 % interval"]
    lines += [
        f"{row.name:28}{row.before:>11.3f}{row.after:>11.3f}{row.after - row.before:>+11.3f}   "
        f"{row.low:+.3f} to {row.high:+.3f} {row.unit}{'' if row.sure else '  (unsure)'}"
        for row in comparison.rows
    ]
    if comparison.movers:
        lines += ["", "functions, in percent of the scheduler's time"]
    lines += [
        f"{mover.after_pct - mover.before_pct:>+7.1f}  {mover.before_pct:5.1f} → "
        f"{mover.after_pct:5.1f}  {mover.function}"
        for mover in comparison.movers
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Compare two folders."""
    from sglang_photon.profiling.report import write_report

    parser = argparse.ArgumentParser(
        prog="photon profile compare", description="What changed between two recordings."
    )
    parser.add_argument("before", type=Path, metavar="BEFORE")
    parser.add_argument("after", type=Path, metavar="AFTER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report of both")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the differential flame graph")
    options = parser.parse_args(list(argv))
    before, after = Recording.open(options.before), Recording.open(options.after)
    comparison = compare(before, after)
    print(text(comparison))
    if options.json is not None:
        options.json.write_text(json.dumps(comparison.to_json(), indent=1) + "\n")
    if options.svg is not None:
        options.svg.write_text(difference_svg(before, after))
    if options.html is not None:
        print(f"report: {write_report(after, before=before, file=options.html)}")
    return 0


def _scheduler(recording: Recording) -> Part:
    part = recording.scheduler
    if part is None or (part.steps is None and part.samples is None):
        raise UsageError(f"{recording.path} has no scheduler", "Record one with --role scheduler")
    return part


def _has_steps(part: Part) -> bool:
    return part.steps is not None and len(timed(part)) >= FEWEST_STEPS


def _step_series(part: Part) -> Series:
    """Milliseconds per step by phase, and the device's figures, for each window."""
    records = timed(part)
    starts = records["start"]
    edges = np.linspace(starts[0], records["end"][-1], WINDOWS + 1)
    window = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, WINDOWS - 1)[1:]
    rested = (records["flags"][1:] & layout.RESTED) > 0
    kept = window[~rested]
    count: Floats = np.bincount(kept, minlength=WINDOWS).astype(float)
    spent = np.diff(records["spent"], axis=0)[~rested]

    def per_step(seconds: Any) -> tuple[Floats, Floats]:
        sums = np.bincount(kept, weights=seconds, minlength=WINDOWS)
        return sums / np.maximum(count, 1) * 1e3, count

    found = {f"{name}, ms": per_step(spent[:, i]) for i, name in enumerate(NAMES)}
    idle = (records["idle"] + records["gap"])[1:][~rested].astype(float)
    busy = (records["end"] - records["start"] - records["gap"])[1:][~rested]
    found["device busy, ms"] = per_step(busy)
    found["device idle, ms"] = per_step(idle)
    step, _ = found["step, ms"] = per_step(busy + idle)
    share = found["device idle, ms"][0] / np.where(step > 0, step, 1.0) * 100
    found["device idle, %"] = share, count * step
    return found


def _stack_series(part: Part) -> Series:
    """Percent of the scheduler's time by phase, for each window."""
    thread = _thread(part)
    if thread is None:
        raise UsageError(
            f"{part.folder} has no stacks of a scheduler's loop", "Record it under load"
        )
    edges = np.linspace(thread.intervals[0].start, thread.intervals[-1].end, WINDOWS + 1)
    sums = {f"{name}, %": np.zeros(WINDOWS) for name in PHASES}
    for interval in thread.intervals:
        name = f"{phase_of(interval.stack, part.device)}, %"
        first = int(np.searchsorted(edges, interval.start, side="right")) - 1
        for at in range(max(first, 0), WINDOWS):
            if edges[at] >= interval.end:
                break
            shared = min(interval.end, edges[at + 1]) - max(interval.start, edges[at])
            sums[name][at] += max(0.0, shared) / (edges[1] - edges[0]) * 100
    return {name: (values, np.ones(WINDOWS)) for name, values in sums.items()}


def _rows(before: Series, after: Series) -> tuple[Row, ...]:
    random = np.random.default_rng(0)
    found = []
    for name in before:
        pair = (before[name], after[name])
        if not any(values.any() for values, _ in pair) or not all(w.any() for _, w in pair):
            continue
        drawn = []
        for values, weights in pair:
            chosen = random.integers(0, WINDOWS, (DRAWS, WINDOWS))
            total = np.maximum(weights[chosen].sum(axis=1), 1e-12)
            drawn.append((values * weights)[chosen].sum(axis=1) / total)
        low, high = np.percentile(drawn[1] - drawn[0], (2.5, 97.5))
        title, _, unit = name.rpartition(", ")
        found.append(
            Row(
                name=title,
                unit=PER_STEP if unit == "ms" else unit,
                before=float(np.average(pair[0][0], weights=pair[0][1])),
                after=float(np.average(pair[1][0], weights=pair[1][1])),
                low=float(low),
                high=float(high),
            )
        )
    return tuple(found)


def _thread(part: Part) -> ThreadSamples | None:
    return None if part.samples is None else scheduler_thread(part.samples)


def _shares(part: Part) -> dict[str, float]:
    thread = _thread(part)
    found: dict[str, float] = defaultdict(float)
    if thread is None:
        return found
    for interval in thread.intervals:
        for name in {frame.label() for frame in interval.stack}:
            found[name] += interval.seconds
    return {name: spent / thread.seconds * 100 for name, spent in found.items()}


def _movers(before: Part, after: Part) -> tuple[Mover, ...]:
    first, second = _shares(before), _shares(after)
    # What is always on the stack is the loop itself.
    moved = {
        name
        for name in {*first, *second}
        if max(first.get(name, 0.0), second.get(name, 0.0)) < SKELETON_PCT
    }
    ranked = sorted(moved, key=lambda name: -abs(second.get(name, 0.0) - first.get(name, 0.0)))
    return tuple(
        Mover(function=name, before_pct=first.get(name, 0.0), after_pct=second.get(name, 0.0))
        for name in ranked[:MOVERS]
        if first and second
    )
