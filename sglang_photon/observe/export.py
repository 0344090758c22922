"""The loop's counters on SGLang's `/metrics`, with SGLang's labels.

SGLang collects the metrics of all its processes through files (`PROMETHEUS_MULTIPROC_DIR`), which
`prometheus_client` picks up when it is first imported: so it is imported where a scheduler has been
constructed with `--enable-metrics`, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_photon.observe.phases import NAMES

if TYPE_CHECKING:
    from sglang_photon.observe.meter import LoopStats

PREFIX = "sglang:photon_"

COUNTERS: dict[str, tuple[str | None, str]] = {
    "steps": ("kind", "Steps launched."),
    "rows": (None, "Rows of all steps launched."),
    "zombie_rows": (None, "Of these rows, those that had ended when their step was committed."),
    "commits": (None, "Steps committed."),
    "drains": (None, "Times that everything in flight was committed before going on."),
    "settled": ("reason", "Plans that had to see every step committed."),
    "lockstep": ("reason", "Steps committed before anything else was planned."),
    "late_steps": ("cause", "Launches that found the device dry while rows were runnable."),
    "device_busy_seconds": (None, "Seconds in which the device worked."),
    "device_idle_seconds": (
        "cause",
        "Seconds in which the device was idle while rows were runnable, by the host's phase.",
    ),
    "device_unfed_seconds": (None, "Seconds in which it was idle with nothing to run."),
    "host_seconds": ("phase", "Seconds of the scheduler's thread."),
}
"""Names without prefix and `_total`; the label besides SGLang's; what is counted."""


class PrometheusExport:
    """Publishes the counters of one loop.

    Args:
        labels: SGLang's, of this scheduler.
        loop: the loop in use.
        reason: why it was chosen.
    """

    def __init__(self, *, labels: Mapping[str, Any], loop: str, reason: str) -> None:
        from prometheus_client import Counter, Gauge

        own = list(labels)
        self._labels = dict(labels)
        self._counters = {
            name: Counter(PREFIX + name, text, [*own, *([label] if label else [])])
            for name, (label, text) in COUNTERS.items()
        }
        self._stats: LoopStats | None = None
        self._shown: dict[tuple[str, str], float] = {}
        self._in_flight = Gauge(
            f"{PREFIX}slots_in_flight", "Steps in flight.", own, multiprocess_mode="mostrecent"
        ).labels(**self._labels)
        Gauge(
            f"{PREFIX}loop",
            "1 for the loop in use, with the reason.",
            [*own, "loop", "reason"],
            multiprocess_mode="mostrecent",
        ).labels(**self._labels, loop=loop, reason=reason).set(1)

    def publish(self, stats: LoopStats) -> None:
        """Add what has come since the last time; a new loop counts from 0 again."""
        if stats is not self._stats:
            self._stats = stats
            self._shown.clear()
        self._add("steps", stats.prefills, "prefill")
        self._add("steps", stats.steps - stats.prefills, "decode")
        self._add("rows", stats.rows)
        self._add("zombie_rows", stats.zombies)
        self._add("commits", stats.commits)
        self._add("drains", stats.drains)
        self._add("device_busy_seconds", stats.busy_s)
        self._add("device_unfed_seconds", stats.unfed_s)
        for name, counts in (
            ("settled", stats.settled),
            ("lockstep", stats.lockstep),
            ("late_steps", stats.late),
            ("device_idle_seconds", stats.late_s),
        ):
            for word, count in counts.items():
                self._add(name, count, word)
        for phase, seconds in zip(NAMES, stats.host_s, strict=True):
            self._add("host_seconds", seconds, phase)
        self._in_flight.set(stats.steps - stats.commits)

    def _add(self, name: str, total: float, word: str = "") -> None:
        label = COUNTERS[name][0]
        labels = {**self._labels, label: word} if label else self._labels
        self._counters[name].labels(**labels).inc(total - self._shown.get((name, word), 0.0))
        self._shown[name, word] = total
