"""The measurements of `photon bench host`: the real scheduler's own time per step.

Requests are handed to the scheduler where SGLang's receiver would, and what it sends is pickled and
written to a socket by SGLang's own function; another process drains it. A tokenizer that cannot
keep up would hide the difference. What the harness costs by itself is measured, and left out.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from sglang.srt.managers.io_struct import sock_send
from sglang.srt.managers.schedule_batch import MultimodalInputs

from sglang_photon.records import StepKind
from sglang_photon.reference.models import names
from sglang_photon.upstream.bench_loops import MODEL, PROMPT_TOKENS, Bench, _Steady
from sglang_photon.upstream.bench_sampling import NARROW, SampledSteps, dress
from sglang_photon.upstream.in_process import Source, in_process_scheduler, run

MODELS = {
    "text": MODEL,
    "mrope": "demo:random:qwen2.5-vl,hidden=64,layers=1,vocab=32768,vision_layers=1",
    "special": "demo:random:qwen2,hidden=64,layers=1,vocab=151936",
}
"""What the rows are: text, text after a picture, or a quarter each of four kinds."""

SHORTEST, LONGEST = 50, 149
"""Output tokens of a closed-loop client's request."""

WARM_STEPS = 20
MROPE_DELTA = -7

DRAIN = """
import sys, zmq
socket = zmq.Context().socket(zmq.PULL)
socket.connect(sys.argv[1])
while socket.recv() != b"end":
    pass
"""


class Wire:
    """Where the scheduler's output goes: to a process that throws it away.

    Attributes:
        sent: of each message with tokens its time, its requests and how they ended, if they did.
        finished: requests that ended since somebody looked.
        seconds: what the harness itself took of the scheduler's thread.
    """

    def __init__(self, address: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)
        self.socket = None
        self.sent: list[tuple[float, Any, Any]] = []
        self.finished: list[str] = []
        self.seconds = 0.0

    def send_output(self, output: Any, recv_obj: Any = None) -> None:  # noqa: ARG002 - upstream's
        """As SGLang's `SenderWrapper`."""
        sock_send(self._socket, output)
        reasons = getattr(output, "finished_reasons", None)
        if reasons is None:
            return
        now = time.perf_counter()
        self.sent.append((now, output.rids, reasons))
        if any(reasons):
            pairs = zip(output.rids, reasons, strict=True)
            self.finished += [rid for rid, reason in pairs if reason is not None]
        self.seconds += time.perf_counter() - now

    def forget(self) -> None:
        """Begin anew."""
        self.sent, self.finished = [], []

    def gaps(self, start: float, end: float) -> list[float]:
        """Seconds between two chunks of one request, for all chunks sent between two moments."""
        last: dict[str, float] = {}
        found = []
        for moment, rids, reasons in self.sent:
            for rid, reason in zip(rids, reasons, strict=True):
                before = last.get(rid)
                if before is not None and start < moment <= end:
                    found.append(moment - before)
                if reason is None:
                    last[rid] = moment
                else:
                    last.pop(rid, None)
        return found

    def close(self) -> None:
        """End the other process."""
        self._socket.send(b"end")
        self._socket.close(linger=5000)


@contextmanager
def wire() -> Iterator[Wire]:
    """A wire with a process at its other end."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{Path(folder) / 'wire'}"
        end = Wire(address)
        drain = subprocess.Popen([sys.executable, "-c", DRAIN, address])
        try:
            yield end
        finally:
            end.close()
            drain.wait(timeout=30)


class _Lookup:
    """The device's table of next tokens, and what reading it takes of the host.

    Args:
        table: its tensor.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self.seconds = 0.0

    def index_select(self, dim: int, index: Any) -> Any:
        """As the tensor's."""
        started = time.perf_counter()
        found = self._table.index_select(dim, index)
        self.seconds += time.perf_counter() - started
        return found


class _Arrivals:
    """When the results of decode steps were there, as the host saw it.

    Args:
        lane: the device's; its `submit` and `wait` are watched.
    """

    def __init__(self, lane: Any) -> None:
        self._kinds: dict[int, StepKind | None] = {}
        self._submit, self._wait = lane.submit, lane.wait
        self.moments: list[float] = []
        lane.submit, lane.wait = self._submitting, self._waiting

    def gaps(self, start: float, end: float) -> list[float]:
        """Seconds between two arrivals, for all between two moments."""
        inside = [moment for moment in self.moments if start <= moment <= end]
        return list(np.diff(inside))

    def _submitting(self, slot: Any, job: Any, *, kind: StepKind | None = None) -> None:
        if kind is not None:
            self._kinds[slot.index] = kind
        self._submit(slot, job, kind=kind)

    def _waiting(self, slot: Any) -> None:
        self._wait(slot)
        if self._kinds.get(slot.index) is StepKind.DECODE:
            self.moments.append(time.perf_counter())


class _Together:
    """Sends requests at once."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = list(messages)

    def poll(self, scheduler: Any) -> list[Any]:  # noqa: ARG002 - the protocol's
        due, self._messages = self._messages, []
        return due

    def exhausted(self) -> bool:
        return not self._messages


class Churn:
    """Clients that each send a new request as soon as their last one has ended.

    The counters are marked when every client's first request has ended, and when the last of them
    has nothing more to send.

    Args:
        bench: whose counters.
        clients: how many.
        messages: all that they will send.
        lengths: the output tokens of each.

    Attributes:
        tokens: of the requests that ended between the two marks.
    """

    def __init__(
        self, *, bench: HostBench, clients: int, messages: list[Any], lengths: list[int]
    ) -> None:
        self._bench = bench
        self._clients = clients
        self._messages = messages
        self._lengths = {
            message.rid: tokens for message, tokens in zip(messages, lengths, strict=True)
        }
        self._marks_at = [clients, len(messages) - clients]
        self._sent = self._ended = 0
        self.tokens = 0

    def poll(self, scheduler: Any) -> list[Any]:  # noqa: ARG002 - the protocol's
        """One new request for each that has ended."""
        if not self._sent:
            self._sent = self._clients
            return self._messages[: self._clients]
        wire = self._bench.wire
        if not wire.finished:
            return []
        started = time.perf_counter()
        ended, wire.finished = wire.finished, []
        self._ended += len(ended)
        if len(self._marks_at) == 1:
            self.tokens += sum(map(self._lengths.__getitem__, ended))
        wire.seconds += time.perf_counter() - started
        if self._marks_at and self._ended >= self._marks_at[0]:
            del self._marks_at[0]
            self._bench.mark()
        sent = self._sent
        self._sent = min(sent + len(ended), len(self._messages))
        return self._messages[sent : self._sent]

    def exhausted(self) -> bool:
        """Whether all have been sent."""
        return self._sent >= len(self._messages)


class HostBench(Bench):
    """A `Bench` whose output goes over a wire.

    Args:
        scheduler: in this process.
        loop: the loop it runs.
        kind: a key of `MODELS`.
        end: the wire.
    """

    def __init__(self, *, scheduler: Any, loop: str, kind: str, end: Wire) -> None:
        vocab = scheduler.model_config.vocab_size
        if kind == "special":
            scheduler.model_config.vocab_size = NARROW
        super().__init__(scheduler=scheduler, loop=loop)
        self._kind = kind
        self._asked = 0
        self._marks: list[tuple[Any, float]] = []
        self.wire = end
        scheduler.output_streamer.send_to_detokenizer = end
        self._sampled = None
        if kind == "special":
            self._sampled = SampledSteps(
                device=self.device, scheduler=scheduler, loop=loop, vocab=vocab
            )
            # The grammar is compiled before anything is timed.
            run(scheduler, _Together([self._ask(tokens=4, stream=False) for _ in range(4)]))
        self._arrivals = _Arrivals(self.device.lane)
        self._lookup = self.device._next = _Lookup(self.device._next)

    @classmethod
    @contextmanager
    def open(
        cls, *, loop: str, rows: int, kind: str = "text", longest: int = 640
    ) -> Iterator[HostBench]:
        """A scheduler that can decode so many rows at once, each of so many tokens."""
        arguments = [
            *("--model-path", names.resolve(MODELS[kind]).path),
            *("--max-running-requests", str(rows)),
            *("--max-total-tokens", str(rows * (PROMPT_TOKENS + longest))),
            *("--chunked-prefill-size", "-1", "--disable-radix-cache"),
        ]
        with in_process_scheduler(arguments, loop=loop) as scheduler, wire() as end:
            bench = cls(scheduler=scheduler, loop=loop, kind=kind, end=end)
            # As SGLang's /freeze_gc does: else a collection of all its modules is timed.
            gc.collect()
            gc.freeze()
            try:
                yield bench
            finally:
                gc.unfreeze()
                del bench, scheduler

    def mark(self) -> Any:
        """The counters now; what masks, harness and simulation took is not the host's."""
        masks = 0.0 if self._sampled is None else self._sampled.seconds
        mark = super().mark()
        mark = dataclasses.replace(
            mark,
            host=mark.host - masks - self.wire.seconds - self._lookup.seconds,
            # The lane counts an idle time when it ends.
            idle=mark.idle + max(0.0, mark.wall - self.device.lane._free_at),
        )
        self._marks.append((mark, masks))
        return mark

    def decode(self, *, batch: int, step_s: float, stream: bool, steps: int) -> dict[str, Any]:
        """Decode `batch` rows for `steps` steps; the fields of a `Sample` that are measured."""
        self._forget()
        source = _Steady(
            bench=self,
            messages=self._asks([WARM_STEPS + steps + 16] * batch, stream=stream),
            warm=WARM_STEPS,
            steps=steps,
        )
        return self._measure(
            source, step_s=step_s, stream=stream, tokens=lambda count: batch * count
        )

    def churn(self, *, clients: int, step_s: float, stream: bool, each: int) -> dict[str, Any]:
        """Closed-loop clients with `each` requests; the fields of a `Sample` that are measured."""
        self._forget()
        lengths = random.Random(5)
        drawn = [lengths.randint(SHORTEST, LONGEST) for _ in range(clients * each)]
        asks = self._asks(drawn, stream=stream)
        source = Churn(bench=self, clients=clients, messages=asks, lengths=drawn)
        return self._measure(source, step_s=step_s, stream=stream, tokens=lambda _: source.tokens)

    def _measure(
        self, source: Source, *, step_s: float, stream: bool, tokens: Callable[[int], int]
    ) -> dict[str, Any]:
        self._times = dict.fromkeys(StepKind, step_s)
        run(self._scheduler, source)
        (first, masks_before), (last, masks) = self._marks
        wall, steps = last.wall - first.wall, last.forwards - first.forwards
        seen = self.wire if stream else self._arrivals
        gaps = seen.gaps(first.wall, last.wall)
        p50, p99 = np.percentile(gaps, (50, 99)) * 1e3
        return {
            "wall_us": wall / steps * 1e6,
            "host_us": (last.host - first.host) / steps * 1e6,
            "mask_us": None if self._sampled is None else (masks - masks_before) / steps * 1e6,
            "idle_pct": (last.idle - first.idle) / wall * 100,
            "tok_s": tokens(steps) / wall,
            "itl_p50_ms": float(p50),
            "itl_p99_ms": float(p99),
        }

    def _forget(self) -> None:
        self._marks.clear()
        self._arrivals.moments.clear()
        self.wire.forget()
        self._asked = 0
        gc.collect()

    def _asks(self, lengths: Sequence[int], *, stream: bool) -> list[Any]:
        return [self._ask(tokens=tokens, stream=stream) for tokens in lengths]

    def _ask(self, *, tokens: int, stream: bool, stop_at: int | None = None) -> Any:
        message = super()._ask(tokens=tokens, stream=stream, stop_at=stop_at)
        if self._kind == "special":
            dress(message, self._asked)
        elif self._kind == "mrope":
            message.mm_inputs = _after_a_picture(list(message.input_ids))
        self._asked += 1
        return message


def _after_a_picture(ids: list[int]) -> MultimodalInputs:
    """Positions as those of a prompt with a picture, whose tensor is gone."""
    return MultimodalInputs(
        mm_items=[],
        padded_input_ids=ids,
        mrope_positions=torch.arange(len(ids)).expand(3, -1).contiguous(),
        mrope_position_delta=torch.tensor([[MROPE_DELTA]]),
    )
