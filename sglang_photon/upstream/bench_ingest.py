"""The measurements of `photon bench ingest`, on the real scheduler with its real sockets."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sglang_photon.bench import feeder
from sglang_photon.records import StepKind
from sglang_photon.reference.models import names
from sglang_photon.upstream.picture_messages import PictureMessages
from sglang_photon.upstream.sim_worker import SimDevice
from sglang_photon.upstream.with_sockets import MODEL, scheduler_with_sockets

TEXTS, PROMPT_TOKENS, ANSWER_TOKENS = 32, 16, 8
STEP_S = 2e-3
POOL_TOKENS = 400_000
START_S = 2.0
"""Until the feeding process is up."""
SETTLE_S = 0.05
WINDOW_S = 0.2
QUIET_S = 1.0
"""Text alone at first: what the device idles without pictures is not the pictures' doing."""


@dataclass
class _Sent:
    """What the scheduler sent, by request: when, and whether that was the last of it."""

    times: dict[str, list[float]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    def send_output(self, output: Any, recv_obj: Any = None) -> None:  # noqa: ARG002 - upstream's
        now = time.perf_counter()
        if hasattr(output, "finished_reasons"):
            for rid, reason in zip(output.rids, output.finished_reasons, strict=True):
                self.times.setdefault(rid, []).append(now)
                if reason is not None:
                    self.finished.add(rid)


class IngestBench:
    """One scheduler with one loop on a simulated device, fed by another process.

    Args:
        scheduler: in this process.
        loop: the loop it runs.
        address: of the socket on which it receives.
        hashed: whether the tokenizer process hashes the pixels.
    """

    def __init__(self, *, scheduler: Any, loop: str, address: str, hashed: bool) -> None:
        self._scheduler = scheduler
        self._hashed = hashed
        self._address = address
        self._messages = PictureMessages(scheduler)
        self._times = dict.fromkeys(StepKind, STEP_S)
        self._device = SimDevice(
            scheduler=scheduler, loop=loop, step_time=lambda kind: self._times[kind]
        )
        self._gaps = _log_gaps(self._device.lane)

    @classmethod
    @contextmanager
    def open(cls, *, loop: str, hashed: bool) -> Iterator[IngestBench]:
        """A scheduler with sockets."""
        arguments = [
            *("--model-path", names.resolve(MODEL).path),
            *("--max-running-requests", "64", "--max-total-tokens", str(POOL_TOKENS)),
            *("--chunked-prefill-size", "-1", "--disable-radix-cache"),
        ]
        with scheduler_with_sockets(arguments, loop=loop) as (scheduler, address):
            bench = cls(scheduler=scheduler, loop=loop, address=address("requests"), hashed=hashed)
            try:
                yield bench
            finally:
                bench._messages.close()

    def measure(
        self,
        *,
        count: int,
        size: int,
        rate: float,
        burst: int,
        requests: int,
        prefill_s: float = STEP_S,
    ) -> dict[str, float]:
        """Serve text and pictures until all have ended.

        Args:
            count: pictures per request.
            size: pixels of one side.
            rate: requests per second.
            burst: how many of them come at once.
            requests: with pictures, altogether.
            prefill_s: the device's time for a prefill.
        """
        self._times[StepKind.PREFILL] = prefill_s
        dues = [QUIET_S + (i // burst) * burst / rate for i in range(requests)]
        seconds = dues[-1] + 1.0
        messages = [
            *(
                self._messages.text(
                    due=0.0, prompt=PROMPT_TOKENS, tokens=int(seconds / STEP_S * 0.9)
                )
                for _ in range(TEXTS)
            ),
            *(
                self._messages.pictures(
                    due=due, count=count, size=size, tokens=ANSWER_TOKENS, hashed=self._hashed
                )
                for due in dues
            ),
        ]
        at = time.perf_counter() + START_S
        sent = self._serve(messages, at)
        return self._figures(sent, [at + due for due in dues], quiet=(at + 0.3, at + QUIET_S))

    def _serve(self, messages: Sequence[feeder.Message], at: float) -> _Sent:
        sent = _Sent()
        scheduler = self._scheduler

        def receive_output(output: Any, recv_obj: Any = None) -> None:
            sent.send_output(output, recv_obj)
            if len(sent.finished) == len(messages):
                scheduler.gracefully_exit = True

        scheduler.ipc_channels.send_to_detokenizer.send_output = receive_output
        scheduler.gracefully_exit = False
        self._gaps.clear()
        process = feeder.start(self._address, messages, at=at)
        try:
            scheduler.run_event_loop()
            process.join()
        finally:
            process.terminate()
            feeder.remove(messages)
        return sent

    def _figures(
        self, sent: _Sent, dues: Sequence[float], quiet: tuple[float, float]
    ) -> dict[str, float]:
        pictures = [at for rid, at in sent.times.items() if rid.startswith("pictures")]
        pairs = [
            pair
            for rid, at in sent.times.items()
            if rid.startswith("text")
            for pair in itertools.pairwise(at)
        ]
        # In order of sending: messages do not overtake.
        lives = [(due, at[-1] + SETTLE_S) for at, due in zip(pictures, dues, strict=True)]
        began, ended = lives[0][0], lives[-1][1]
        during = [later - earlier for earlier, later in pairs if began < later < ended]
        worst = [
            max(
                (b - a for a, b in pairs if b > due and a < due + WINDOW_S),
                default=0.0,
            )
            for due in dues
        ]
        firsts = [at[0] - due for at, due in zip(pictures, dues, strict=True)]
        return {
            "idle_ms_per_image": self._idle(lives) / len(dues) * 1e3,
            "idle_pct_text_alone": self._idle([quiet]) / (quiet[1] - quiet[0]) * 100,
            "text_itl_p50_ms": statistics.median(during) * 1e3,
            "text_itl_p99_ms": statistics.quantiles(during, n=100)[98] * 1e3,
            "worst_text_gap_ms": statistics.median(worst) * 1e3,
            "image_ttft_p50_ms": statistics.median(firsts) * 1e3,
        }

    def _idle(self, spans: Sequence[tuple[float, float]]) -> float:
        """Seconds that the device idled in any of the spans."""
        return sum(
            gap for at, gap in self._gaps if any(began < at < ended for began, ended in spans)
        )


def _log_gaps(lane: Any) -> list[tuple[float, float]]:
    """Have a lane write down each gap between two forwards: when it ended, and how long it was."""
    gaps: list[tuple[float, float]] = []
    submit = lane.submit

    def submit_and_log(slot: Any, job: Any, *, kind: Any = None) -> None:
        before = lane.idle
        submit(slot, job, kind=kind)
        if lane.idle > before:
            gaps.append((time.perf_counter(), lane.idle - before))

    lane.submit = submit_and_log
    return gaps
