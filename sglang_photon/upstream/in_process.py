"""The real scheduler in this process: no sockets, no tokenizer, no HTTP; for tests and benchmarks.

Requests come from a `Source`, which every tick of every loop asks once, and messages to the
detokenizer and the tokenizer end in a list. Everything between is SGLang's own code with one of
three loops: `blocking`, `sglang` (SGLang's overlap loop), `photon`.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from sglang.srt.arg_groups.lora_hook import check_lora_server_args
from sglang.srt.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
from sglang.srt.server_args import PortArgs, prepare_server_args

from sglang_photon.errors import UsageError
from sglang_photon.slots.lane import InlineLane, Lane
from sglang_photon.upstream.metered import MeteredScheduler
from sglang_photon.upstream.row_stream import PackedTokens
from sglang_photon.upstream.scheduler import PhotonScheduler

LOOPS = ("blocking", "sglang", "photon")

QUIET = (
    ("--device", "cpu"),
    ("--attention-backend", "torch_native"),
    ("--dtype", "float32"),
    ("--cuda-graph-backend-decode", "disabled"),
    ("--cuda-graph-backend-prefill", "disabled"),
    ("--mem-fraction-static", "0.1"),
    ("--random-seed", "1"),
    ("--log-level", "error"),
    ("--watchdog-timeout", "100000"),
)
"""Arguments of a scheduler without a GPU; given ones win."""


class Source(Protocol):
    """Where requests come from."""

    def poll(self, scheduler: Any) -> list[Any]:
        """The messages that have arrived since the last tick."""

    def exhausted(self) -> bool:
        """Whether nothing more will come."""


@dataclass(slots=True)
class Outbox:
    """Everything that the scheduler sent, in order."""

    to_detokenizer: list[Any] = field(default_factory=list)
    to_tokenizer: list[Any] = field(default_factory=list)


class _Sink:
    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages
        self.socket = None

    def send_output(self, output: Any, recv_obj: Any = None) -> None:  # noqa: ARG002 - upstream's
        self.messages.append(output.received() if isinstance(output, PackedTokens) else output)


class _Receiver:
    """In place of SGLang's request receiver: hands out a source, ends the loop when all is done."""

    def __init__(self, scheduler: Any, source: Source) -> None:
        self._scheduler = scheduler
        self._source = source
        self._arrived: list[Any] | None = None

    def look(self) -> bool:
        """Ask the source, once until the next round; whether a round has something to do."""
        if self._arrived is None:
            self._arrived = self._source.poll(self._scheduler)
        return bool(self._arrived) or (self._source.exhausted() and self._scheduler.is_fully_idle())

    def forget(self) -> None:
        """The source may be asked again."""
        self._arrived = None

    def recv_requests(self, local_reqs: Sequence[Any] | None = None) -> list[Any]:
        scheduler = self._scheduler
        self.look()
        arrived, self._arrived = self._arrived or (), None
        messages = [*arrived, *(local_reqs or ())]
        if not messages and self._source.exhausted() and scheduler.is_fully_idle():
            scheduler.gracefully_exit = True
        return messages


def _without_sockets(base: type) -> type:
    class InProcess(base):  # type: ignore[misc, valid-type]
        outbox: Outbox
        lane_factory: Callable[[], Lane] | None

        def init_ipc_channels(self, port_args: Any) -> None:  # noqa: ARG002 - upstream's
            self.outbox = Outbox()
            self.load_snapshot_writer = self.recv_from_tokenizer = None
            self.ipc_channels = SimpleNamespace(
                recv_from_tokenizer=None,
                recv_from_rpc=None,
                send_to_tokenizer=_Sink(self.outbox.to_tokenizer),
                send_to_detokenizer=_Sink(self.outbox.to_detokenizer),
                send_metrics_from_scheduler=None,
            )

        def make_lane(self) -> Lane:
            return super().make_lane() if self.lane_factory is None else self.lane_factory()

        def ingest_requests(self, stop_at_pause: bool = False) -> list[Any]:
            # As an `Inbox` does: no round without news.
            receiver = self.request_receiver
            own = isinstance(receiver, _Receiver) and isinstance(self, PhotonScheduler)
            if own and not receiver.look():
                receiver.forget()
                return []
            return super().ingest_requests(stop_at_pause)

    return InProcess


@contextmanager
def in_process_scheduler(
    arguments: Sequence[str],
    *,
    loop: str,
    make_lane: Callable[[], Lane] | None = InlineLane,
    metered: bool = False,
    defaults: Sequence[tuple[str, str]] = QUIET,
) -> Iterator[Any]:
    """Construct a scheduler, and take it and its process groups down afterwards.

    One at a time: SGLang's configuration and groups are global to the process.

    Args:
        arguments: SGLang's, over `defaults`; `--model-path` is needed.
        loop: one of `LOOPS`.
        make_lane: makes the lane of each run of the photon loop; None: the device's own.
        metered: record the steps of the other loops as well.
        defaults: arguments where none are given.
    """
    if loop not in LOOPS:
        raise UsageError(f"There is no loop {loop!r}", f"Choose one of: {', '.join(LOOPS)}")
    given = [part for pair in defaults if pair[0] not in arguments for part in pair]
    given += [*arguments, *(("--disable-overlap-schedule",) if loop == "blocking" else ())]
    server_args = prepare_server_args(given)
    check_lora_server_args(server_args)
    ports = _ports(server_args)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    kind = _without_sockets(_scheduler_class(loop, metered=metered))
    scheduler = None
    try:
        scheduler = kind(server_args, ports)
        scheduler.lane_factory = make_lane
        yield scheduler
    finally:
        if loop == "photon" and scheduler is not None:
            scheduler.photon_compilers.close()
        del scheduler
        destroy_model_parallel()
        destroy_distributed_environment()
        reset_context()
        gc.collect()


def _scheduler_class(loop: str, *, metered: bool) -> type:
    if loop == "photon":
        return PhotonScheduler
    return MeteredScheduler if metered else Scheduler


def _ports(server_args: Any) -> PortArgs:
    """A port for the process groups, and addresses that nothing will listen on.

    Upstream makes files for the latter. It draws the port at random, after a scheduler before has
    seeded the generator: programs that run side by side would draw the same ones.
    """
    usual, state = tempfile.tempdir, random.getstate()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        random.seed()
        try:
            return PortArgs.init_new(server_args)
        finally:
            tempfile.tempdir = usual
            random.setstate(state)


def run(scheduler: Any, source: Source) -> Outbox:
    """Run the scheduler's loop until the source is exhausted and everything has ended.

    Returns:
        What it sent since it was last run.
    """
    before = len(scheduler.outbox.to_detokenizer), len(scheduler.outbox.to_tokenizer)
    scheduler.request_receiver = _Receiver(scheduler, source)
    scheduler.gracefully_exit = False
    scheduler.run_event_loop()
    return Outbox(
        to_detokenizer=scheduler.outbox.to_detokenizer[before[0] :],
        to_tokenizer=scheduler.outbox.to_tokenizer[before[1] :],
    )
