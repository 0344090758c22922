"""`photon profile timeline`: a trace for https://ui.perfetto.dev or chrome://tracing.

Three tracks of a scheduler on one clock: what its thread did, by phases from the samples; the steps
as the device ran them; and the bubbles between them, by what made the launch late.
"""

from __future__ import annotations

from typing import Any

from sglang_photon.observe import layout
from sglang_photon.observe.phases import NAMES
from sglang_photon.profiling.folder import Part, Recording
from sglang_photon.profiling.phases import phase_of, scheduler_thread

CPU, LANE, BUBBLES = 1, 2, 3
TRACKS = {CPU: "CPU: phases of the scheduler's thread", LANE: "lane: steps", BUBBLES: "bubbles"}


def events(recording: Recording) -> dict[str, Any]:
    """The trace of all schedulers, times in µs from the start of the recording."""
    found: list[dict[str, Any]] = []
    for part in recording.parts:
        if part.role == "scheduler" or part.steps is not None:
            found += _events_of(part, recording.span[0])
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _events_of(part: Part, zero: float) -> list[dict[str, Any]]:
    pid = part.meta["pid"]
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": part.name}}
    ]
    found += [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in TRACKS.items()
    ]

    def box(tid: int, name: str, start: float, end: float, **args: Any) -> None:
        found.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "name": name,
                "ts": round((start - zero) * 1e6, 1),
                "dur": round((end - start) * 1e6, 1),
                "args": args,
            }
        )

    thread = None if part.samples is None else scheduler_thread(part.samples)
    for interval in thread.intervals if thread is not None else ():
        leaf = interval.stack[-1]
        box(
            CPU,
            phase_of(interval.stack, part.device),
            interval.start,
            interval.end,
            function=leaf.label(),
        )
    for record in part.steps if part.steps is not None else ():
        if not record["flags"] & layout.TIMED:
            continue
        start, end = float(record["start"]), float(record["end"])
        box(
            LANE,
            layout.KINDS[record["kind"]],
            start,
            end,
            step=int(record["step"]),
            rows=int(record["rows"]),
            zombies=int(record["zombies"]),
        )
        idle = float(record["idle"])
        if idle > 0:
            rested = bool(record["flags"] & layout.RESTED)
            name = "nothing to run" if rested else NAMES[record["cause"]]
            box(BUBBLES, name, start - idle, start, step=int(record["step"]))
    return found
