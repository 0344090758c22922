"""Receiving in the scheduler: frames are fetched cheaply, worked on when there is time.

SGLang polls its two sockets by asking for a message and catching the error, in every tick, and
takes in whatever is there. Here a socket is asked whether it has something first, and what it has
goes through an `Intake`. With several ranks, rank 0 decides what is taken in and when; the others
follow its broadcast, so nothing that only one rank sees changes a plan.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable
from typing import Any

import zmq
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import (
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
    msgpack_decode,
)
from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver
from sglang.srt.runtime_context import get_parallel

from sglang_photon.ingest.intake import Intake
from sglang_photon.ingest.slack import ForwardClock
from sglang_photon.ipc.producers import ProducerEnded, Watch
from sglang_photon.records import StepKind
from sglang_photon.upstream.ipc_binding import IpcBinding

COMMANDS_EVERY = 8
"""Rounds between two looks at the socket of remote commands, while forwards are in flight."""
REQUESTS = (TokenizedGenerateReqInput, TokenizedEmbeddingReqInput)


@dataclasses.dataclass(kw_only=True, frozen=True)
class PhotonReceiver(SchedulerRequestReceiver):
    """SGLang's receiver, which gets its messages from an inbox.

    Args:
        inbox: asked once in every tick.
    """

    inbox: Inbox

    def _pull_raw_reqs(self) -> list[Any]:
        return self.inbox.pull()


class Inbox:
    """What has arrived at this rank's sockets.

    Args:
        scheduler: fully constructed; its receiver is replaced.
        forwards: tells how much time there is.
        paced: whether forwards run beside the host; where they do not, waiting gains nothing.
        binding: of pools of device memory; None without a device.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        forwards: ForwardClock,
        paced: bool,
        binding: IpcBinding | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._forwards = forwards
        self._paced = paced
        self._upstream = scheduler.request_receiver
        self._binding = binding
        self._watch = Watch()
        self._prepared: list[tuple[Any, bool]] = []
        self.intake: Intake[Any, Any] = Intake(
            decode=_decoder(),
            prepare=self._prepare if _alone(scheduler) else None,
            preparable=_preparable,
            release=self._release,
            ready=self._ready,
        )
        self._requests = scheduler.recv_from_tokenizer
        self._commands = scheduler.ipc_channels.recv_from_rpc
        self._round = 0
        self._short = _alone(scheduler) and not (
            envs.SGLANG_REQ_WAITING_TIMEOUT.get() > 0 or envs.SGLANG_REQ_RUNNING_TIMEOUT.get() > 0
        )
        scheduler.request_receiver = PhotonReceiver(
            **{
                field.name: getattr(self._upstream, field.name)
                for field in dataclasses.fields(self._upstream)
            },
            inbox=self,
        )

    @staticmethod
    def fits(scheduler: Any) -> bool:
        """Whether this rank receives by sockets, as the first rank of an ordinary server does."""
        return (
            isinstance(scheduler.request_receiver, SchedulerRequestReceiver)
            and isinstance(scheduler.recv_from_tokenizer, zmq.Socket)
            and isinstance(scheduler.ipc_channels.recv_from_rpc, zmq.Socket)
            and scheduler.scripted_scheduler_hook is None
            and not envs.SGLANG_RUST_SERVER.get()
        )

    def close(self) -> None:
        """Give SGLang its receiver back."""
        self._scheduler.request_receiver = self._upstream
        self._watch.close()

    @property
    def pending(self) -> bool:
        """Whether something has arrived that the scheduler does not know of."""
        return self.intake.pending

    def receive(self) -> None:
        """One round of SGLang's receiving, with as much of it as there is time for."""
        self._round += 1
        self._fetch()
        scheduler = self._scheduler
        waiting = self.intake.pending or scheduler._deferred_input_requests or self._watch.news()
        if self._short and not waiting:
            # Nothing to hand out or to broadcast: what SGLang looks after in each round.
            scheduler.process_input_requests([])
            return
        began = time.perf_counter()
        if scheduler.ingest_requests():
            spent = time.perf_counter() - began
            self.intake.took(spent)
            self._forwards.elsewhere(spent)

    def pull(self) -> list[Any]:
        """The messages of this round, in order."""
        ended = [ProducerEnded(producer) for producer in self._watch.ended()]
        if not self.intake.pending:
            return ended
        unhurried = not self._paced or self._forwards.idle
        slack = float("inf") if unhurried else self._forwards.slack(self._following())
        taken = self.intake.take(slack=slack, attainable=self._forwards.attainable)
        return [*ended, *taken]

    def work(self) -> None:
        """Use what time the forwards in flight leave."""
        slack = self._forwards.offer(self._following())
        if self.intake.pending:
            self.intake.work(slack=slack, attainable=self._forwards.attainable)

    def hold(self, req: Any, *, is_retracted: bool) -> None:
        """A request that is ready but not eligible yet."""
        self._prepared.append((req, is_retracted))

    def _following(self) -> StepKind:
        scheduler = self._scheduler
        waits = scheduler.chunked_req is not None or scheduler.waiting_queue
        return StepKind.PREFILL if waits else StepKind.DECODE

    def _fetch(self) -> None:
        """Whatever has arrived; the socket of rare commands is looked at more rarely."""
        self._drain(self._requests)
        if self._forwards.idle or self._round % COMMANDS_EVERY == 0:
            self._drain(self._commands)

    def _drain(self, socket: Any) -> None:
        if not socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            return
        frames = []
        while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            frames.append((frame, len(frame)))
        self.intake.put(frames)

    def _ready(self, message: Any) -> bool:
        return self._binding is None or self._binding.ready(message, self._watch.lives)

    def _prepare(self, message: Any) -> None:
        messages = [message]
        receiver = self._scheduler.request_receiver
        receiver.unwrap_pickle_wrapper(messages)
        receiver._finalize_shm_features(messages)
        self._scheduler.photon_holds = self.hold
        try:
            self._scheduler.process_input_requests(messages)
        finally:
            self._scheduler.photon_holds = None

    def _release(self) -> None:
        prepared, self._prepared = self._prepared, []
        for req, is_retracted in prepared:
            self._scheduler._add_request_to_queue(req, is_retracted)


def _alone(scheduler: Any) -> bool:
    """Whether this rank may take requests in by itself, outside of SGLang's round."""
    parallel, receiver = get_parallel(), scheduler.request_receiver
    return (
        parallel.tp_size == 1
        and receiver.recv_skipper is None
        and receiver.input_blocker is None
        and receiver.mm_receiver is None
    )


def _decoder() -> Callable[[Any], Any]:
    """As SGLang's `sock_recv` decodes: the sender is a process of the same server."""
    if envs.SGLANG_USE_PICKLE_IPC.get():
        return lambda frame: pickle.loads(frame.buffer)
    return lambda frame: msgpack_decode(frame.bytes)


def _preparable(message: Any) -> bool:
    return isinstance(message, REQUESTS) and getattr(message, "session_params", None) is None
