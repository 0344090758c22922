"""Sample this process's own threads, where nobody may attach from outside.

A thread of Python can look only when it holds the GIL, which others give up where it suits them: in
calls that wait, and every few milliseconds otherwise. So waiting is seen too often, and compiled
code that keeps the GIL never. It is the second choice, and what it writes says so.

The file is a Chrome trace of frames like py-spy's, with the clock's offset in its first event.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

MAX_RATE = 1000
MAX_SECONDS = 600.0

Key = tuple[str, str, int]


class StackSampler:
    """Samples all other threads for a while, then writes a file; returns at once.

    Args:
        file: written when done, first under another name.
        rate: samples per second.
        seconds: for how long.
    """

    def __init__(self, *, file: Path, rate: int, seconds: float) -> None:
        self._file = file
        self._period = 1 / min(max(rate, 1), MAX_RATE)
        self._seconds = min(seconds, MAX_SECONDS)
        self._events: list[dict[str, Any]] = []
        self._stacks: dict[int, list[Key]] = {}
        self.thread = threading.Thread(target=self._run, name="photon-sampler", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        own = threading.get_ident()
        began = now = time.perf_counter()
        number = 0
        while now - began < self._seconds:
            for tid, frame in sys._current_frames().items():
                if tid != own:
                    self._note(tid, _stack(frame), now - began)
            number += 1
            time.sleep(max(0.0, began + number * self._period - time.perf_counter()))
            now = time.perf_counter()
        for tid in list(self._stacks):
            self._note(tid, [], now - began)
        first = {"ph": "M", "name": "clock", "args": {"offset": began, "samples": number}}
        unfinished = self._file.with_suffix(".part")
        unfinished.write_text(json.dumps([first, *self._events]))
        unfinished.rename(self._file)

    def _note(self, tid: int, stack: list[Key], moment: float) -> None:
        before = self._stacks.get(tid, [])
        same = 0
        while same < min(len(before), len(stack)) and before[same] == stack[same]:
            same += 1
        for key in reversed(before[same:]):
            self._events.append(_event("E", key, tid, moment))
        for key in stack[same:]:
            self._events.append(_event("B", key, tid, moment))
        self._stacks[tid] = stack


def _stack(frame: FrameType | None) -> list[Key]:
    """Outermost first."""
    found: list[Key] = []
    while frame is not None:
        code = frame.f_code
        found.append((code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return found[::-1]


def _event(phase: str, key: Key, tid: int, moment: float) -> dict[str, Any]:
    name, file, line = key
    return {
        "ph": phase,
        "name": name,
        "tid": tid,
        "pid": os.getpid(),
        "ts": round(moment * 1e6),
        "args": {"filename": file, "line": line},
    }
