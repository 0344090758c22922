"""Recordings made up by hand: stacks and steps of known length, in a real folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_photon.observe import layout
from sglang_photon.observe.phases import COMMIT, LAUNCH, NAMES, PLAN, RECEIVE, WAIT
from sglang_photon.observe.reader import Records
from sglang_photon.profiling.folder import Recording, write_meta

SITE = "/x/site-packages/sglang"
TICK, HOST = "/x/sglang_photon/loop/tick.py", "/x/sglang_photon/upstream/host.py"
LOOP = [("<module>", "/x/serve.py", 1), ("PhotonLoop.run", TICK, 60), ("PhotonLoop.tick", TICK, 70)]
COMMIT_STACK = [*LOOP, ("PhotonLoop._commit_oldest", TICK, 150)]
WAIT_STACK = [*COMMIT_STACK, ("CudaLane.wait", "/x/sglang_photon/slots/lane.py", 9)]
PLAN_STACK = [*LOOP, ("SchedulerHost.plan", HOST, 80)]
RECEIVE_STACK = [LOOP[0], LOOP[1], ("SchedulerHost.receive", HOST, 50)]
LAUNCH_STACK = [*LOOP, ("PhotonLoop._launch", TICK, 120)]

Call = tuple[str, str, int]


def trace(stacks: Sequence[tuple[Sequence[Call], float]], *, tid: int = 7) -> list[dict[str, Any]]:
    """Events as py-spy writes them, from stacks and their seconds."""
    events: list[dict[str, Any]] = []
    now, before = 0.0, list[Call]()

    def event(kind: str, call: Call) -> None:
        name, file, line = call
        events.append(
            {
                "args": {"filename": file, "line": line},
                "cat": "py-spy",
                "name": name,
                "ph": kind,
                "pid": 1,
                "tid": tid,
                "ts": round(now * 1e6),
            }
        )

    for stack, seconds in [*stacks, ((), 0.0)]:
        same = 0
        while same < min(len(before), len(stack)) and before[same] == stack[same]:
            same += 1
        for call in reversed(before[same:]):
            event("E", call)
        for call in stack[same:]:
            event("B", call)
        before = list(stack)
        now += seconds
    return events


def steps(
    count: int,
    *,
    device_s: float = 5e-3,
    idle_s: float = 0.0,
    host_s: float = 1e-3,
    every: int = 1,
    rested: bool = False,
    cause: int = PLAN,
    zombies: int = 0,
    settled: int = 0,
) -> Records:
    """Step records; every so many steps, the device was idle before one."""
    records = np.zeros(count, layout.RECORD)
    now, spent = 0.0, np.zeros(len(NAMES))
    for number in range(count):
        idle = idle_s if number and number % every == 0 else 0.0
        spent[[RECEIVE, PLAN, LAUNCH, COMMIT]] += host_s / 4
        spent[WAIT] += device_s
        flags = layout.TIMED | (layout.RESTED if rested and idle else 0)
        flags |= layout.LATE if idle and not rested else 0
        start = now + idle
        records[number] = (
            *(number, int(number > 0), cause, flags, 0, settled, 0, 4, zombies),
            *(start - 1e-4, start, start, start + device_s, start + device_s, start + device_s),
            *(0.0, idle, spent),
        )
        now = start + device_s
    return records


def recording(
    folder: Path,
    *,
    stacks: Sequence[tuple[Sequence[Call], float]] | None = None,
    records: Records | None = None,
    facts: dict[str, Any] | None = None,
    reasons: Sequence[str] = (),
    sampler: str = "py-spy 0.4.3",
    **part: Any,
) -> Recording:
    """A folder with one scheduler."""
    folder.mkdir(parents=True, exist_ok=True)
    if stacks is not None:
        (folder / "scheduler.trace.json").write_text(json.dumps(trace(stacks)))
    if records is not None:
        np.save(folder / "scheduler.steps.npy", records)
    return write_meta(
        folder,
        {
            "photon": "0.1.0",
            "made": "2026-01-01T00:00:00+00:00",
            "span": {
                "start": 0.0,
                "end": 10.0,
                "seconds": 10.0,
                "asked": 10.0,
                "interrupted": False,
            },
            "rate": 100,
            "sampler": sampler,
            "server": {"pid": 1, "port": 1, "command": ["serve"], "skipped": [[9, "sleep"]]},
            "machine": {"system": "Linux", "cores": 2, "load": 0.0},
            "perturbation": {"text": "none"},
            "parts": [
                {
                    "pid": 1,
                    "role": "scheduler",
                    "name": "scheduler",
                    "offset": 0.0,
                    "samples": 100,
                    "errors": 0,
                    "facts": {"loop": "photon", "lane": "cuda", "device": "cuda", **(facts or {})},
                    "reasons": list(reasons),
                    **part,
                }
            ],
        },
    )
