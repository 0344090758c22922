"""The measurements of `photon bench loops`, on the real scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_photon.records import StepKind
from sglang_photon.reference.models import names
from sglang_photon.upstream.in_process import in_process_scheduler, run
from sglang_photon.upstream.requests import tokenized
from sglang_photon.upstream.sim_worker import SimDevice, next_token

MODEL = "demo:random:qwen2,hidden=64,layers=1,vocab=32768"
PROMPT_TOKENS = 16
LONGEST = 640
SHORT_DECODE_S, SHORT_PREFILL_S = 2e-3, 5e-3


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """Where all counters stood at one moment."""

    wall: float
    host: float
    idle: float
    busy: float
    forwards: int


class _Steady:
    """Sends all requests at once; marks the counters when they all decode, and `steps` later."""

    def __init__(self, *, bench: Bench, messages: Sequence[Any], warm: int, steps: int) -> None:
        self._bench = bench
        self._messages = list(messages)
        self._rows = len(self._messages)
        self._warm = warm
        self._steps = steps
        self._from: int | None = None
        self.marks: list[_Mark] = []

    def poll(self, scheduler: Any) -> list[Any]:
        due, self._messages = self._messages, []
        forwards = self._bench.device.lane.forwards
        if self._from is None and len(scheduler.running_batch.reqs) == self._rows:
            self._from = forwards + self._warm
        if self._from is not None:
            wanted = self._from + len(self.marks) * self._steps
            if len(self.marks) < 2 and forwards >= wanted:
                self.marks.append(self._bench.mark())
        return due

    def exhausted(self) -> bool:
        return not self._messages


class _OneByOne:
    """Sends one request in each tick."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = list(messages)

    def poll(self, scheduler: Any) -> list[Any]:  # noqa: ARG002 - the protocol's
        return [self._messages.pop(0)] if self._messages else []

    def exhausted(self) -> bool:
        return not self._messages


class Bench:
    """One scheduler with one loop on a simulated device.

    Args:
        scheduler: in this process.
        loop: the loop it runs.
    """

    def __init__(self, *, scheduler: Any, loop: str) -> None:
        self._scheduler = scheduler
        self._times = {StepKind.PREFILL: SHORT_PREFILL_S, StepKind.DECODE: SHORT_DECODE_S}
        self._serial = 0
        self._photon = loop == "photon"
        self.device = SimDevice(
            scheduler=scheduler, loop=loop, step_time=lambda kind: self._times[kind]
        )

    @classmethod
    @contextmanager
    def open(cls, *, loop: str, rows: int, metered: bool = False) -> Iterator[Bench]:
        """A scheduler that can decode so many rows at once; `metered` as `in_process_scheduler`."""
        arguments = [
            *("--model-path", names.resolve(MODEL).path),
            *("--max-running-requests", str(rows)),
            *("--max-total-tokens", str(rows * (PROMPT_TOKENS + LONGEST))),
            *("--chunked-prefill-size", "-1", "--disable-radix-cache"),
        ]
        with in_process_scheduler(arguments, loop=loop, metered=metered) as scheduler:
            yield cls(scheduler=scheduler, loop=loop)

    def mark(self) -> _Mark:
        """The counters now."""
        return _Mark(
            wall=time.perf_counter(),
            host=time.thread_time() - self.device.clock.spun,
            idle=self.device.lane.idle,
            busy=self.device.lane.busy,
            forwards=self.device.lane.forwards,
        )

    def steady(
        self, *, batch: int, step_s: float, stream: bool, warm: int, steps: int
    ) -> dict[str, Any]:
        """Decode `batch` rows for `steps` steps; the fields of a `Cell` that are measured."""
        self._times = dict.fromkeys(self._times, step_s)
        longest = warm + steps + 16
        source = _Steady(
            bench=self,
            messages=[self._ask(tokens=longest, stream=stream) for _ in range(batch)],
            warm=warm,
            steps=steps,
        )
        run(self._scheduler, source)
        first, last = source.marks
        count = last.forwards - first.forwards
        wall = last.wall - first.wall
        return {
            "wall_us": wall / count * 1e6,
            "host_us": (last.host - first.host) / count * 1e6,
            "device_us": (last.busy - first.busy) / count * 1e6,
            "idle_pct": (last.idle - first.idle) / wall * 100,
            "tok_s": batch * count / wall,
            "zombie_pct": self._zombie_share() * 100 if self._photon else None,
        }

    def short_answers(self, *, count: int) -> float:
        """Requests per second, of answers of 1 to 4 tokens: prefill after prefill."""
        self._times = {StepKind.PREFILL: SHORT_PREFILL_S, StepKind.DECODE: SHORT_DECODE_S}
        asks = [self._ask(tokens=1 + number % 4, stream=True) for number in range(count)]
        return count / self._timed(lambda: run(self._scheduler, _OneByOne(asks)))

    def alone(self, *, tokens: int, step_s: float) -> float:
        """Milliseconds of one streamed request with nobody beside it."""
        self._times = dict.fromkeys(self._times, step_s)
        ask = self._ask(tokens=tokens, stream=True)
        return self._timed(lambda: run(self._scheduler, _OneByOne([ask]))) * 1e3

    def zombie_tax(self, *, rows: int, length: int) -> float:
        """Share of launched rows that had ended, if no end is known in advance."""
        self._times = dict.fromkeys(self._times, 1e-5)
        asks = [self._ask(tokens=LONGEST, stream=False, stop_at=length) for _ in range(rows)]
        run(self._scheduler, _OneByOne(asks))
        return self._zombie_share()

    def _zombie_share(self) -> float:
        pipeline = self._scheduler.photon_loop.pipeline
        return float(pipeline.zombie_rows / pipeline.launched_rows)

    def _timed(self, work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def _ask(self, *, tokens: int, stream: bool, stop_at: int | None = None) -> Any:
        self._serial += 1
        stops = None if stop_at is None else [self._token_at(stop_at)]
        params = SamplingParams(
            temperature=0.0, max_new_tokens=tokens, ignore_eos=stops is None, stop_token_ids=stops
        )
        params.normalize(self._scheduler.tokenizer)
        return tokenized(
            rid=str(self._serial),
            ids=range(self._serial, self._serial + PROMPT_TOKENS),
            params=params,
            stream=stream,
        )

    def _token_at(self, number: int) -> int:
        """The device's token of that number (from 1) after a prompt of `PROMPT_TOKENS`."""
        token = PROMPT_TOKENS
        for _ in range(number):
            token = next_token(token, self._scheduler.model_config.vocab_size)
        return token
