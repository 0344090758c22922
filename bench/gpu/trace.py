"""A stretch of a run as the driver saw it: kernels, waits, copies; what part d's verdicts rest on.

Only CUDA's own records are taken: torch's operator records would slow the very host work whose
effect is looked for. A gap between two kernels counts as idle from `MIN_GAP_NS` on: below that lie
the launches inside one graph, which no scheduler can close.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

MIN_GAP_NS = 5000
WAITS = ("Synchronize",)
PAGEABLE = "Pageable -> Device"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record.

    Attributes:
        name: of the kernel, the copy or the driver's call.
        on_device: a kernel or a copy; otherwise a call of the host.
        start_ns, end_ns: when.
    """

    name: str
    on_device: bool
    start_ns: int
    end_ns: int

    @property
    def is_kernel(self) -> bool:
        """Whether it kept the multiprocessors busy."""
        return self.on_device and not self.name.startswith(("Memcpy", "Memset"))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A stretch, per decode step.

    Attributes:
        span_us: from one step to the next.
        idle_us: no kernel ran.
        waits: calls of the host that waited for the device, by name.
        pageable_copies: to the device, from memory that is not pinned: torch waits for these.
    """

    span_us: float
    idle_us: float
    waits: dict[str, float]
    pageable_copies: float

    @property
    def busy_us(self) -> float:
        """A kernel ran."""
        return self.span_us - self.idle_us

    @property
    def stream_waits(self) -> float:
        """Waits for a whole stream or the device, which a step in flight prolongs."""
        return sum(count for name, count in self.waits.items() if "Event" not in name)

    def text(self) -> str:
        """Waits and copies in words."""
        waits = ", ".join(f"{name} {count:.2g}" for name, count in sorted(self.waits.items()))
        return f"per step: {waits or 'no wait'}; pageable copies {self.pageable_copies:.2g}"


def summarise(records: Iterable[Record], *, steps: int) -> Summary | None:
    """What a stretch of so many steps shows; None if no kernel ran in it."""
    kept = list(records)
    kernels = sorted((r.start_ns, r.end_ns) for r in kept if r.is_kernel)
    if not kernels:
        return None
    idle, until = 0, kernels[0][1]
    for start, end in kernels:
        if start - until >= MIN_GAP_NS:
            idle += start - until
        until = max(until, end)
    waits = Counter(r.name for r in kept if not r.on_device and any(w in r.name for w in WAITS))
    return Summary(
        span_us=(until - kernels[0][0]) / steps / 1e3,
        idle_us=idle / steps / 1e3,
        waits={name: count / steps for name, count in waits.items()},
        pageable_copies=sum(r.on_device and PAGEABLE in r.name for r in kept) / steps,
    )


class Window:
    """Records from `start` to `stop`; nothing on a device that is not CUDA.

    Args:
        device: as torch spells it.
    """

    def __init__(self, *, device: str) -> None:
        self._profiler: Any = None
        self._cuda = device == "cuda"

    def start(self) -> None:
        """Begin, with the device at rest: what was launched before is not in it."""
        if not self._cuda:
            return
        torch.cuda.synchronize()
        from torch.profiler import ProfilerActivity, profile

        self._profiler = profile(activities=[ProfilerActivity.CUDA])
        self._profiler.start()

    def stop(self) -> None:
        """End; the device comes to rest for it."""
        if self._profiler is not None:
            torch.cuda.synchronize()
            self._profiler.stop()

    def records(self) -> list[Record]:
        """What was recorded."""
        if self._profiler is None:
            return []
        # The finished events of torch.profiler's own tables cost a second per ten thousand.
        events = self._profiler.profiler.kineto_results.events()
        return [
            Record(
                name=event.name(),
                on_device=str(event.device_type()).endswith("CUDA"),
                start_ns=event.start_ns(),
                end_ns=event.start_ns() + event.duration_ns(),
            )
            for event in events
            if not event.is_user_annotation()
        ]
