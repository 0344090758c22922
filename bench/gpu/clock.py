"""Time on a device: events where it has a queue of its own, the host's clock otherwise."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch


def milliseconds(work: Callable[[], object], *, device: str, repeats: int, warm: int = 3) -> float:
    """Median time of a piece of work on the device, ms."""
    for _ in range(warm):
        work()
    if device != "cuda":
        return statistics.median(_on_host(work) for _ in range(repeats))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    times: list[float] = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times)


def _on_host(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def spin(seconds: float) -> None:
    """Keep this thread busy, as host work does, for a time that the clock measures."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Gaps:
    """The device's idle time between two forwards, from events around each forward.

    Args:
        device: `cuda`; on any other nothing is marked.
        count: forwards to be marked.
    """

    def __init__(self, *, device: str, count: int) -> None:
        make = device == "cuda"
        self._starts = [torch.cuda.Event(enable_timing=True) for _ in range(count if make else 0)]
        self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(count if make else 0)]
        self._begun = self._ended = 0

    def begin(self) -> None:
        """Lane: a forward begins."""
        if self._begun < len(self._starts):
            self._starts[self._begun].record()
        self._begun += 1

    def end(self) -> None:
        """Lane: a forward ends."""
        if self._ended < len(self._ends):
            self._ends[self._ended].record()
        self._ended += 1

    def between(self, *, skip: int) -> list[float]:
        """Milliseconds from each forward's end to the next one's beginning; device at rest."""
        last = min(self._begun, self._ended, len(self._starts))
        return [
            self._ends[i].elapsed_time(self._starts[i + 1])
            for i in range(skip, max(skip, last - 1))
        ]
