"""What the host did before late launches, by phase and function."""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sglang_photon.observe.reader import Records
from sglang_photon.profiling.folder import Part
from sglang_photon.profiling.phases import (
    HOST,
    IDLE,
    OTHER,
    Device,
    blamed,
    is_forward,
    is_library,
    phase_of,
    scheduler_thread,
    table_phase,
)
from sglang_photon.profiling.samples import Frame, Interval, Stack

DOMINANT = 0.5
"""A caller's share that one of its calls must have to be named in its place."""

WAITS_HERE = {
    ("loop/tick.py", "_commit_oldest"),
    ("upstream/metered.py", "process_batch_result"),
    ("managers/scheduler.py", "process_batch_result"),
    ("batch_result_processor.py", "process_batch_result_decode"),
    ("batch_result_processor.py", "process_batch_result_prefill"),
}
"""Where the loops are meant to wait for the device."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One phase's share.

    Attributes:
        phase: of the tick.
        function: where most of it was spent.
        seconds: before late launches.
        waits_for_device: not work, but a wait in the wrong place.
    """

    phase: str
    function: str
    seconds: float
    waits_for_device: bool


@dataclass(slots=True)
class Blame:
    """Who made launches late.

    Attributes:
        entries: largest first.
        samples: how many changes of stack were seen before late launches.
        hidden_wait_s: seconds of waiting in the wrong place, in the whole recording.
    """

    entries: list[Entry] = field(default_factory=list)
    samples: int = 0
    hidden_wait_s: float = 0.0


def blame(part: Part, records: Records, is_late: npt.NDArray[np.bool_]) -> Blame:
    """Look at the stacks between each late launch and the launch before it."""
    found = Blame()
    thread = None if part.samples is None else scheduler_thread(part.samples)
    if thread is None:
        return found
    device = part.device
    late = np.flatnonzero(is_late[1:]) + 1
    spans = [(float(records["launched"][i - 1]), float(records["launched"][i])) for i in late]
    stacks: dict[tuple[str, bool], list[tuple[Stack, float]]] = defaultdict(list)
    for interval in thread.intervals:
        kind = _kind(interval.stack, device)
        if kind is None:
            continue
        if kind[1]:
            found.hidden_wait_s += interval.seconds
        seconds = _overlap(interval, spans)
        if seconds > 0:
            stacks[kind].append((interval.stack, seconds))
            found.samples += 1
    found.entries = sorted(
        (
            Entry(
                phase=phase,
                function=_function(entries, hidden),
                seconds=sum(seconds for _, seconds in entries),
                waits_for_device=hidden,
            )
            for (phase, hidden), entries in stacks.items()
        ),
        key=lambda entry: -entry.seconds,
    )
    return found


def _kind(stack: Stack, device: Device) -> tuple[str, bool] | None:
    """The phase that a stack counts for, and whether it is a hidden wait; None: nobody's fault."""
    phase = phase_of(stack, device)
    if phase in HOST:
        return phase, False
    if phase in (IDLE, OTHER):
        return None
    if device.on_cpu and not device.simulated and any(is_forward(frame) for frame in stack):
        return None
    waiting = blamed(stack)
    if any(waiting.function == name and waiting.file.endswith(path) for path, name in WAITS_HERE):
        return None
    for frame in reversed(stack):
        outer = table_phase(frame.file, frame.function)
        if outer in HOST:
            return outer, True
    return None


def _overlap(interval: Interval, spans: list[tuple[float, float]]) -> float:
    """Seconds of an interval that lie in any of the spans, which are in order."""
    first = max(0, bisect.bisect_right(spans, (interval.start, float("inf"))) - 1)
    seconds = 0.0
    for start, end in spans[first:]:
        if start >= interval.end:
            break
        seconds += max(0.0, min(end, interval.end) - max(start, interval.start))
    return seconds


def _function(entries: list[tuple[Stack, float]], hidden: bool) -> str:
    """The innermost function below the phase's own that still holds most of the phase's time."""
    if hidden:
        totals: dict[str, float] = defaultdict(float)
        for stack, seconds in entries:
            totals[blamed(stack).label()] += seconds
        return max(totals, key=totals.__getitem__)
    paths = [(_below_phase(stack), seconds) for stack, seconds in entries]
    total = sum(seconds for _, seconds in paths)
    depth, chosen = 0, ""
    while True:
        shares: dict[str, float] = defaultdict(float)
        for path, seconds in paths:
            if len(path) > depth:
                shares[path[depth].label()] += seconds
        if not shares:
            return chosen
        best = max(shares, key=shares.__getitem__)
        if chosen and shares[best] < DOMINANT * total:
            return chosen
        paths = [
            (path, seconds)
            for path, seconds in paths
            if len(path) > depth and path[depth].label() == best
        ]
        chosen = best
        depth += 1


def _below_phase(stack: Stack) -> tuple[Frame, ...]:
    """From the function that decides the phase inwards, without libraries' functions."""
    for index in range(len(stack) - 1, -1, -1):
        frame = stack[index]
        if table_phase(frame.file, frame.function) is not None:
            inner = [f for f in stack[index:] if not is_library(f.file)]
            return tuple(inner) or (frame,)
    return stack[-1:]
