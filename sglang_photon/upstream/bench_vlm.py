"""The measurements of `photon bench vlm`, on the real scheduler with its real sockets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from sglang_photon.bench import chats, feeder
from sglang_photon.records import StepKind
from sglang_photon.reference.models import names
from sglang_photon.upstream.picture_messages import PictureMessages
from sglang_photon.upstream.sim_worker import SimDevice
from sglang_photon.upstream.with_sockets import MODEL, scheduler_with_sockets

PICTURE = 1024
PICTURE_TOKENS = 1369
"""A square of that many pixels: 37 x 37 tokens of 28 x 28 pixels."""
ANSWER_TOKENS = (80, 141)
ROOM_PER_CHAT = 2048
"""Tokens of the pool: more than any chat has."""


class VlmBench:
    """One scheduler with one loop on a simulated GPU, and chats about pictures.

    Args:
        scheduler: in this process.
        loop: the loop it runs.
        address: makes an address of a word.
        chats: how many at once.
        hashed: whether the tokenizer process hashes the pixels.
        gpu: seconds of a step: `decode(rows, context)` and `prefill(tokens, image tokens)`.
    """

    def __init__(
        self, *, scheduler: Any, loop: str, address: Any, at_once: int, hashed: bool, gpu: Any
    ) -> None:
        self._scheduler = scheduler
        self._hashed = hashed
        self._address = address
        self._at_once = at_once
        self._gpu = gpu
        self._next = dict.fromkeys(StepKind, 1e-3)
        self._messages = PictureMessages(scheduler)
        self._device = SimDevice(
            scheduler=scheduler, loop=loop, step_time=lambda kind: self._next[kind]
        )
        self._watch_plans()

    @classmethod
    @contextmanager
    def open(cls, *, loop: str, at_once: int, hashed: bool, gpu: Any) -> Iterator[VlmBench]:
        """A scheduler for that many chats at once."""
        arguments = [
            *("--model-path", names.resolve(MODEL).path),
            *("--max-running-requests", str(at_once)),
            *("--max-total-tokens", str(at_once * ROOM_PER_CHAT)),
            *("--chunked-prefill-size", "8192", "--disable-radix-cache"),
        ]
        with scheduler_with_sockets(arguments, loop=loop) as (scheduler, address):
            bench = cls(
                scheduler=scheduler,
                loop=loop,
                address=address,
                at_once=at_once,
                hashed=hashed,
                gpu=gpu,
            )
            try:
                yield bench
            finally:
                bench._messages.close()

    def measure(self, *, requests: int) -> dict[str, float]:
        """Serve so many chats; figures of those between the first and the last `at_once`."""
        shortest, longest = ANSWER_TOKENS
        lengths = [shortest + (i * 37) % (longest - shortest) for i in range(requests)]
        messages = [
            self._messages.pictures(
                due=0.0, count=1, size=PICTURE, tokens=length, hashed=self._hashed
            )
            for length in lengths
        ]
        log = _Log()
        with zmq.Context() as context, context.socket(zmq.PUSH) as told:
            told.connect(self._address("answers"))

            def receive_output(output: Any, recv_obj: Any = None) -> None:  # noqa: ARG001
                ended = log.note(output, self._device.lane.idle)
                for _ in range(ended):
                    told.send(b"")
                if len(log.ended) == requests:
                    self._scheduler.gracefully_exit = True

            self._scheduler.ipc_channels.send_to_detokenizer.send_output = receive_output
            self._scheduler.gracefully_exit = False
            process = chats.start(
                self._address("requests"),
                self._address("answers"),
                messages,
                at_once=self._at_once,
            )
            try:
                self._scheduler.run_event_loop()
                process.join()
            finally:
                process.terminate()
                feeder.remove(messages)
                told.close(linger=0)
        return log.figures(self._at_once)

    def _watch_plans(self) -> None:
        """Tell the device how long the step takes that is planned now."""
        plan_next = self._scheduler.get_next_batch_to_run

        def plan(*args: Any, **kwargs: Any) -> Any:
            planned = plan_next(*args, **kwargs)
            batch = planned.batch_to_run
            if batch is not None and batch.forward_mode.is_extend():
                images = sum(req.multimodal_inputs is not None for req in batch.reqs)
                share = min(batch.extend_num_tokens, images * PICTURE_TOKENS)
                self._next[StepKind.PREFILL] = self._gpu.prefill(batch.extend_num_tokens, share)
            elif batch is not None:
                rows = len(batch.reqs)
                context = sum(req.seqlen for req in batch.reqs) // rows
                self._next[StepKind.DECODE] = self._gpu.decode(rows, context)
            return planned

        self._scheduler.get_next_batch_to_run = plan


class _Log:
    """What the scheduler sent: per request its first and last moment, and the order of the ends."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.tokens: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self.marks: list[tuple[float, float, int]] = []
        self._sent = 0

    def note(self, output: Any, idle: float) -> int:
        """One message; how many requests it ended."""
        if not hasattr(output, "finished_reasons"):
            return 0
        now, before = time.perf_counter(), len(self.ended)
        for index, rid in enumerate(output.rids):
            self.first.setdefault(rid, now)
            self._sent += output.completion_tokens[index] - self.tokens.get(rid, 0)
            self.tokens[rid] = output.completion_tokens[index]
            if output.finished_reasons[index] is not None:
                self.ended[rid] = now
        new = len(self.ended) - before
        # Where everything stood when a request ended.
        self.marks += [(now, idle, self._sent)] * new
        return new

    def figures(self, at_once: int) -> dict[str, float]:
        """Of the time in which all chats were going on."""
        (began, idle, sent), (ended, later_idle, later_sent) = (
            self.marks[at_once],
            self.marks[-at_once],
        )
        told = sorted(self.ended.values())
        rids = list(self.first)[at_once:-at_once]
        # Request i asks when answer i - at_once is told.
        waits = [
            first - asked
            for first, asked in zip(list(self.first.values())[at_once:], told, strict=False)
        ][: len(rids)]
        per_token = [(self.ended[rid] - self.first[rid]) / (self.tokens[rid] - 1) for rid in rids]
        return {
            "tok_s": (later_sent - sent) / (ended - began),
            "ttft_p50_ms": statistics.median(waits) * 1e3,
            "tpot_p50_ms": statistics.median(per_token) * 1e3,
            "idle_pct": (later_idle - idle) / (ended - began) * 100,
        }
