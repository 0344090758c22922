"""The measurements of `photon bench host`: the time of the scheduler itself, per step.

Requests are injected at SGLang's receiver, after the socket, and what the scheduler sends is
pickled and written to a socket whose other end is drained by another process: as dear as the real
thing, without a tokenizer that could not keep up. The harness measures what it costs by itself.
"""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from sglang_photon.records import StepKind
from sglang_photon.upstream.bench_loops import Bench
from sglang_photon.upstream.in_process import run

DRAIN = """
import sys, zmq
socket = zmq.Context().socket(zmq.PULL)
socket.connect(sys.argv[1])
while socket.recv() != b"end":
    pass
"""


class Wire:
    """Where the scheduler's output goes: pickled, sent to a process that throws it away.

    Attributes:
        finished: requests that ended since somebody looked.
        seconds: what the harness itself took of the scheduler's thread.
        arrivals: for each open request, when its newest token was sent; and the gaps so far.
    """

    def __init__(self, address: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)
        self.finished: list[str] = []
        self.seconds = 0.0
        self.socket = None
        self.last: dict[str, float] = {}
        self.gaps: list[float] = []

    def send_output(self, output: Any, recv_obj: Any = None) -> None:  # noqa: ARG002 - upstream's
        """As SGLang's `SenderWrapper`."""
        self._socket.send(pickle.dumps(output, protocol=pickle.HIGHEST_PROTOCOL), copy=False)
        if not hasattr(output, "finished_reasons"):
            return
        started = time.thread_time()
        now = time.perf_counter()
        for rid, reason in zip(output.rids, output.finished_reasons, strict=True):
            before = self.last.get(rid)
            if before is not None:
                self.gaps.append(now - before)
            self.last[rid] = now
            if reason is not None:
                self.finished.append(rid)
                del self.last[rid]
        self.seconds += time.thread_time() - started

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


@dataclass
class Churn:
    """Clients that each send a new request as soon as their last one has ended.

    The counters are marked once every client has decoded for a while, and at the end.
    """

    bench: HostBench
    clients: int
    requests: int
    stream: bool
    marks: list[tuple[Any, int]] = field(default_factory=list)
    _sent: int = 0
    _ended: int = 0
    _tokens: int = 0
    _open: dict[str, int] = field(default_factory=dict)
    _lengths: random.Random = field(default_factory=lambda: random.Random(5))

    def poll(self, scheduler: Any) -> list[Any]:  # noqa: ARG002 - the protocol's
        """One new request for each that has ended."""
        end = self.bench.wire
        self._ended += len(end.finished)
        self._tokens += sum(self._open.pop(rid) for rid in end.finished)
        due = self.clients if self._sent == 0 else len(end.finished)
        end.finished = []
        if not self.marks and self._ended >= max(self.clients, self.requests // 4):
            end.gaps.clear()
            self.marks.append((self.bench.mark(), self._tokens))
        if len(self.marks) == 1 and self._ended >= self.requests - self.clients:
            self.marks.append((self.bench.mark(), self._tokens))
        due = min(due, self.requests - self._sent)
        self._sent += due
        return [self._ask() for _ in range(due)]

    def _ask(self) -> Any:
        tokens = self._lengths.randint(50, 149)
        message = self.bench.ask(tokens=tokens, stream=self.stream)
        self._open[message.rid] = tokens
        return message

    def exhausted(self) -> bool:
        """Whether all have been sent."""
        return self._sent >= self.requests


class HostBench(Bench):
    """A `Bench` whose output goes over a wire."""

    wire: Wire

    def attach(self, end: Wire) -> None:
        """Send output there from now on."""
        self.wire = end
        self._scheduler.output_streamer.send_to_detokenizer = end

    def ask(self, *, tokens: int, stream: bool) -> Any:
        """One request."""
        return self._ask(tokens=tokens, stream=stream)

    def churn(
        self, *, clients: int, step_s: float, stream: bool, requests: int
    ) -> dict[str, float]:
        """Closed-loop clients; the fields of a cell that are measured."""
        self._times = dict.fromkeys(StepKind, step_s)
        before = self.wire.seconds
        source = Churn(bench=self, clients=clients, requests=requests, stream=stream)
        run(self._scheduler, source)
        (first, first_tokens), (last, last_tokens) = source.marks
        wall = last.wall - first.wall
        steps = last.forwards - first.forwards
        harness = self.wire.seconds - before
        return {
            "wall_us": wall / steps * 1e6,
            "host_us": (last.host - first.host - harness) / steps * 1e6,
            "idle_pct": (last.idle - first.idle) / wall * 100,
            "tok_s": (last_tokens - first_tokens) / wall,
        }
