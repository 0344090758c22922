"""Stacks over time, from py-spy's Chrome trace (the one of its formats that keeps their order).

py-spy writes the begin and the end of each frame, and merges samples that are alike. So a stack is
known from one change to the next, for each thread: that is what is kept here, as intervals on the
clock of the step records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_photon.errors import UsageError


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack.

    Attributes:
        name: of the function, with its class where Python knows it.
        file: where it is defined.
        line: where it was.
    """

    name: str
    file: str
    line: int

    @property
    def function(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]

    def label(self) -> str:
        """For people: the function and the end of its path."""
        return f"{self.name} ({'/'.join(self.file.split('/')[-2:])})"


Stack = tuple[Frame, ...]
"""Outermost first."""


@dataclass(slots=True)
class Interval:
    """A thread's stack from one moment to another.

    Attributes:
        start: seconds of `time.perf_counter`.
        end: when the stack changed, or the recording ended.
        stack: what was seen.
    """

    start: float
    end: float
    stack: Stack

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.start


@dataclass(slots=True)
class ThreadSamples:
    """The stacks of one thread, in order."""

    tid: int
    intervals: list[Interval] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """For how long it was seen."""
        return sum(interval.seconds for interval in self.intervals)


@dataclass(slots=True)
class Samples:
    """The stacks of one process.

    Attributes:
        threads: by order of appearance.
        start: the first sample, in seconds of `time.perf_counter`.
        end: the last.
    """

    threads: list[ThreadSamples]
    start: float
    end: float

    def __iter__(self) -> Iterator[tuple[ThreadSamples, Interval]]:
        for thread in self.threads:
            for interval in thread.intervals:
                yield thread, interval


def parse(events: list[dict[str, Any]], *, offset: float) -> Samples:
    """Read a Chrome trace of frames.

    Args:
        events: begin and end events; moments in µs since the profiler's start.
        offset: that start, in seconds of `time.perf_counter`.
    """
    frames: dict[tuple[str, str, int], Frame] = {}
    threads: dict[int, ThreadSamples] = {}
    stacks: dict[int, list[Frame]] = {}
    since: dict[int, float] = {}
    for event in events:
        if event.get("ph") not in ("B", "E"):
            continue
        tid, moment = event["tid"], offset + event["ts"] * 1e-6
        stack = stacks.setdefault(tid, [])
        thread = threads.setdefault(tid, ThreadSamples(tid))
        if stack and moment > since[tid]:
            thread.intervals.append(Interval(since[tid], moment, tuple(stack)))
        since[tid] = moment
        if event["ph"] == "B":
            where = event.get("args", {})
            key = (event["name"], where.get("filename", ""), where.get("line", 0))
            stack.append(frames.setdefault(key, Frame(*key)))
        elif stack:
            stack.pop()
    spans = [
        (thread.intervals[0].start, thread.intervals[-1].end)
        for thread in threads.values()
        if thread.intervals
    ]
    return Samples(
        threads=[thread for thread in threads.values() if thread.intervals],
        start=min((span[0] for span in spans), default=offset),
        end=max((span[1] for span in spans), default=offset),
    )


def load(path: Path, *, offset: float) -> Samples:
    """Read a file that py-spy wrote.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        return parse(json.loads(path.read_text()), offset=offset)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no Chrome trace of stacks ({error})", "Record again"
        ) from error


def collapse(samples: Samples, *, seconds_per_count: float = 1e-3) -> dict[str, int]:
    """Brendan Gregg's collapsed stacks: frames joined by semicolons, and a count.

    Args:
        samples: of one process.
        seconds_per_count: what one count stands for; 1 ms.
    """
    seconds: dict[str, float] = {}
    for _, interval in samples:
        line = ";".join(frame.label().replace(";", ",") for frame in interval.stack)
        seconds[line] = seconds.get(line, 0.0) + interval.seconds
    counts = {line: round(spent / seconds_per_count) for line, spent in seconds.items()}
    return {line: count for line, count in counts.items() if count}


def speedscope(samples: Samples, *, name: str) -> dict[str, Any]:
    """The same in speedscope's file format, one profile for each thread."""
    numbers: dict[Frame, int] = {}
    profiles = [
        {
            "type": "sampled",
            "name": f"{name}, thread {thread.tid}",
            "unit": "seconds",
            "startValue": 0,
            "endValue": thread.seconds,
            "samples": [
                [numbers.setdefault(frame, len(numbers)) for frame in interval.stack]
                for interval in thread.intervals
            ],
            "weights": [interval.seconds for interval in thread.intervals],
        }
        for thread in samples.threads
    ]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "shared": {
            "frames": [
                {"name": frame.name, "file": frame.file, "line": frame.line} for frame in numbers
            ]
        },
        "profiles": profiles,
    }
