"""The server's bubble meter: how long its device was idle, with work waiting or without.

A server started with `--enable-metrics` counts it on `/metrics`, if its loop measures it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

COUNTERS = "sglang:photon_device_(?:idle|unfed)_seconds_total"
LINE = re.compile(rf"^{COUNTERS}(?:\{{(?P<labels>[^}}]*)\}})? (?P<value>\S+)$", re.MULTILINE)
CAUSE = re.compile(r'cause="[^"]*",?')


class IdleMeter:
    """Share of the time since the first sample in which the device was idle; of one server."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def reads(self, metrics: Any) -> bool:
        """Whether there is anything to read in what `/metrics` says."""
        return isinstance(metrics, str) and idle_seconds(metrics) is not None

    def sample(self, metrics: Any, now: float) -> float | None:
        """Take what `/metrics` says; None where it does not count idle time, or at the first."""
        seconds = idle_seconds(metrics) if isinstance(metrics, str) else None
        if seconds is None:
            return None
        if self._first is None:
            self._first = (now, seconds)
            return None
        elapsed = now - self._first[0]
        return (seconds - self._first[1]) / elapsed if elapsed > 0 else None


def idle_seconds(metrics: str) -> float | None:
    """Seconds that a device was idle, the mean over ranks; None where nobody counts."""
    ranks: defaultdict[str, float] = defaultdict(float)
    for match in LINE.finditer(metrics):
        rank = CAUSE.sub("", match["labels"] or "").strip(",")
        ranks[rank] += float(match["value"])
    return sum(ranks.values()) / len(ranks) if ranks else None
