"""What a job shows while it runs: a bar for people, JSON lines for programs, or nothing."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from sglang_photon.batch.rows import Fate, Outcome, Usage

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

WINDOW_S = 15.0
REFRESH_S = 0.5
LINE_EVERY_S = 10.0


@dataclass(kw_only=True)
class Tally:
    """Counts of a run.

    Attributes:
        total: rows of the input.
        skipped: of them, had a result or had failed for good before this run.
        done: results of this run.
        failed: error rows of this run that will not be tried again unasked.
        unserved: error rows of this run that the next run tries again.
        invalid: results of this run that `--validate` found wanting.
        codes: error rows of this run by their code.
        usage: tokens of this run.
        pictures: sent.
        retries: attempts beyond the first.
        in_flight: requests that wait for an answer now.
        limit: how many may.
        away: whether a server cannot be reached now.
        idle: share of the time in which the device had nothing to do; None where nobody tells.
    """

    total: int = 0
    skipped: int = 0
    done: int = 0
    failed: int = 0
    unserved: int = 0
    invalid: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    usage: Usage = field(default_factory=Usage)
    pictures: int = 0
    retries: int = 0
    in_flight: int = 0
    limit: int = 0
    away: bool = False
    idle: float | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Time counts from now on."""
        self.began = self.clock()
        self._end: float | None = None
        self._window: deque[tuple[float, int, int]] = deque([(self.began, 0, 0)])

    def stop(self) -> None:
        """Time does not count any more."""
        self._end = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds that counted."""
        return (self.clock() if self._end is None else self._end) - self.began

    @property
    def ended(self) -> int:
        """Rows of this run that have ended in one way or the other."""
        return self.done + self.failed + self.unserved

    def count(self, outcome: Outcome) -> None:
        """One more row has ended, and is on disk."""
        if outcome.fate is Fate.DONE:
            self.done += 1
            self.usage += outcome.usage
            self.invalid += outcome.valid is False
            return
        self.codes[outcome.code] += 1
        self.failed += outcome.fate is Fate.FAILED
        self.unserved += outcome.fate is Fate.UNSERVED

    def rates(self) -> tuple[float, float]:
        """Rows and generated tokens per second over the last seconds."""
        now = self.clock()
        self._window.append((now, self.ended, self.usage.completion))
        while len(self._window) > 2 and now - self._window[1][0] > WINDOW_S:
            self._window.popleft()
        then, rows, tokens = self._window[0]
        elapsed = max(now - then, 1e-9)
        return (self.ended - rows) / elapsed, (self.usage.completion - tokens) / elapsed

    def report(self) -> dict[str, Any]:
        """All figures as they stand, for `--json-progress`."""
        rows_s, tokens_s = self.rates()
        left = self.total - self.skipped - self.ended
        return {
            "event": "progress",
            "total": self.total,
            "skipped": self.skipped,
            "done": self.done,
            "failed": self.failed,
            "unserved": self.unserved,
            "invalid": self.invalid,
            "retries": self.retries,
            "in_flight": self.in_flight,
            "limit": self.limit,
            "server_away": self.away,
            "rows_per_s": round(rows_s, 3),
            "tokens_per_s": round(tokens_s, 1),
            "eta_s": round(left / rows_s, 1) if rows_s > 0 else None,
            "elapsed_s": round(self.elapsed_s, 2),
            "device_idle": self.idle,
        }

    def words(self) -> str:
        """What stands beside the bar."""
        rows_s, tokens_s = self.rates()
        parts = [f"{rows_s:.1f} rows/s", f"{tokens_s:.0f} tok/s"]
        parts.append(f"in flight {self.in_flight}/{self.limit}")
        if self.failed + self.unserved:
            parts.append(f"errors {self.failed + self.unserved}")
        if self.idle is not None:
            parts.append(f"GPU idle {self.idle:.1%}")
        if self.away:
            parts.append("waiting for the server")
        return "  ".join(parts)


class Display(Protocol):
    """Shows a tally, again and again."""

    def show(self, tally: Tally) -> None:
        """As it stands now; called every `REFRESH_S` seconds."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def close(self) -> None:
        """No more will be shown."""


class Quiet:
    """Shows nothing."""

    def show(self, tally: Tally) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class JsonLines:
    """One JSON object per line on stdout."""

    def show(self, tally: Tally) -> None:
        """The whole tally."""
        print(orjson.dumps(tally.report()).decode(), flush=True)

    def say(self, text: str) -> None:
        """As an event of its own."""
        print(orjson.dumps({"event": "note", "text": text}).decode(), flush=True)

    def close(self) -> None:
        """The summary follows."""


class PlainLines:
    """A line now and then on stderr, where that is no terminal."""

    def __init__(self) -> None:
        self._last: float | None = None

    def show(self, tally: Tally) -> None:
        """If it is time for a line."""
        if self._last is None:
            self._last = time.monotonic()
        elif time.monotonic() - self._last >= LINE_EVERY_S:
            self._last = time.monotonic()
            self.say(f"{tally.skipped + tally.ended}/{tally.total}  {tally.words()}")

    def say(self, text: str) -> None:
        """On stderr."""
        print(f"batch: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to put away."""


class Bar:
    """A progress bar on a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def show(self, tally: Tally) -> None:
        """Move the bar."""
        if self._progress is None:
            self._open(tally)
        assert self._progress is not None
        assert self._task is not None
        self._progress.update(
            self._task, completed=tally.skipped + tally.ended, words=tally.words()
        )

    def say(self, text: str) -> None:
        """Above the bar."""
        if self._progress is not None:
            self._progress.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()

    def _open(self, tally: Tally) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Eta

        columns = (BarColumn(), MofNCompleteColumn(), Eta(), TextColumn("{task.fields[words]}"))
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=tally.total, words="")
        self._progress.start()


def display(*, quiet: bool, as_json: bool) -> Display:
    """The display that was asked for, or that suits where stderr goes."""
    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    return Bar() if sys.stderr.isatty() else PlainLines()
