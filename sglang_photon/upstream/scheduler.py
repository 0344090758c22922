"""`PhotonScheduler`: SGLang's scheduler, in a process of ours.

Imported only in processes that have SGLang's scheduler loaded: SGLang loads plugins in its main and
detokenizer processes too, which must not pay for this import.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from sglang.srt.managers import scheduler as upstream
from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
)
from sglang.srt.managers.scheduler import _MultimodalInputProcessingError
from sglang.srt.utils.common import DynamicGradMode

import sglang_photon
from sglang_photon.config import PhotonConfig
from sglang_photon.errors import PhotonError, refuse
from sglang_photon.ingest.slack import ForwardClock
from sglang_photon.ipc.handles import HandleError
from sglang_photon.ipc.producers import PoolAnnouncement, ProducerEnded
from sglang_photon.loop.eligibility import PHOTON, LoopChoice, choose_loop
from sglang_photon.loop.tick import PhotonLoop, PrefillOverlap
from sglang_photon.records import StepKind
from sglang_photon.slots.lane import Lane
from sglang_photon.upstream.compiling import CompilerProcess, compile_elsewhere
from sglang_photon.upstream.facts import lane_for, loop_facts, make_slots
from sglang_photon.upstream.grammars import GrammarDeadlines
from sglang_photon.upstream.host import SchedulerHost
from sglang_photon.upstream.inflight import InFlight
from sglang_photon.upstream.ipc_binding import IpcBinding
from sglang_photon.upstream.metered import MeteredScheduler
from sglang_photon.upstream.metering import make_meter
from sglang_photon.upstream.receiving import Inbox
from sglang_photon.upstream.release import released_aside
from sglang_photon.upstream.row_batch import RowBatch
from sglang_photon.upstream.row_facts import rows_fit
from sglang_photon.upstream.takeover import takeover
from sglang_photon.upstream.waiting import SocketWaiter

logger = logging.getLogger(__name__)

OVERLAPPING_MESSAGES = (
    PoolAnnouncement,
    ProducerEnded,
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
)
"""Messages that may be handled with steps in flight. Everything else (pause, flush, weights, LoRA,
profiler, reports) is rare and finds the scheduler at rest."""


class PhotonScheduler(MeteredScheduler):
    """The scheduler that SGLang constructs once the plugin has replaced its class.

    SGLang's plugin framework rebinds the module attribute `Scheduler` everywhere, in our modules
    too: use `super()`, never the name.
    """

    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.photon_config = PhotonConfig.from_environment(os.environ)
        self.photon_loop: PhotonLoop | None = None
        # Forked before there is a device or a thread.
        self.photon_compilers = CompilerProcess()
        self.photon_rows: RowBatch | None = None
        self.photon_holds: Callable[..., None] | None = None
        self.photon_ipc: IpcBinding | None = None
        self.photon_inbox: Inbox | None = None
        super().__init__(server_args, port_args)
        self.photon_choice = self._choose_loop()
        if self.photon_choice.loop != PHOTON:
            self.photon_compilers.close()

    def photon_state(self) -> dict[str, str]:
        """Version of this package, the loop in use and why it was chosen."""
        return {
            "version": sglang_photon.__version__,
            "loop": self.photon_choice.loop,
            "reason": self.photon_choice.reason,
        }

    def run_event_loop(self) -> None:
        """Say which loop runs, then run it until shutdown."""
        state = self.photon_state()
        logger.info(
            "sglang-photon %s: loop %s, because %s",
            state["version"],
            state["loop"],
            state["reason"],
        )
        super().run_event_loop()

    @DynamicGradMode()
    def event_loop_overlap(self) -> None:
        """Run the two-slot loop where it is eligible, else SGLang's."""
        if self.photon_choice.loop == PHOTON:
            self._run_photon_loop()
        else:
            super().event_loop_overlap()

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        """Dispatch; messages that change what steps in flight rely on wait for them first."""
        if self.photon_loop is not None and not all(
            isinstance(message, OVERLAPPING_MESSAGES) for message in recv_reqs
        ):
            self._come_to_rest()
        if self.photon_rows is not None and recv_reqs:
            self.photon_rows.messages_arrived()
        super().process_input_requests([one for one in recv_reqs if not self._is_ours(one)])

    def update_running_batch(self, batch: Any) -> Any:
        """Plan a decode: on rows where they fit, else as upstream.

        Before anything is retracted, or goes from rows to upstream's bookkeeping, everything in
        flight is committed.
        """
        rows = self.photon_rows
        if rows is None:
            return None if self._must_settle_before(batch) else super().update_running_batch(batch)
        finishing = self._launched_for_their_last_token(batch)
        if finishing:
            batch.filter_batch(reqs_to_exclude=finishing)
            batch.batch_is_full = False
        if not batch.reqs:
            return batch
        forced = upstream.TEST_RETRACT and self.forward_ct % upstream.TEST_RETRACT_INTERVAL == 0
        if rows.takes(batch) and not forced and rows.prepare(batch):
            self.new_token_ratio_tracker.decay_step()
            return batch
        rows.hand_back(batch)
        return None if self._must_settle_before(batch) else super().update_running_batch(batch)

    def pause_generation(self, recv_req: Any) -> None:
        """Pause with nothing in flight, as the blocking loop would."""
        if self.photon_loop is None:
            super().pause_generation(recv_req)
            return
        # Upstream's overlap loop keeps one result back, which it processes here; we keep none.
        self.enable_overlap = False
        try:
            super().pause_generation(recv_req)
        finally:
            self.enable_overlap = True

    def release_host_resources(self) -> None:
        """On a graceful shutdown."""
        self.photon_compilers.close()
        super().release_host_resources()

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        """A request is eligible, unless the inbox prepares it ahead of its turn."""
        if self.photon_holds is None:
            super()._add_request_to_queue(req, is_retracted)
        else:
            self.photon_holds(req, is_retracted=is_retracted)

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Plan; a prefill's pictures must have been copied before its forward runs."""
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        batch = plan.batch_to_run
        if self.photon_ipc is not None and batch is not None and batch.forward_mode.is_extend():
            self.photon_ipc.arrive(batch.reqs, self.forward_stream)
        return plan

    def _get_multimodal_inputs(self, mm_inputs: Any) -> Any:
        """Take pictures in; one that cannot be read ends its request, not the scheduler."""
        if self.photon_ipc is None:
            return super()._get_multimodal_inputs(mm_inputs)
        # Without its hash a tensor is read at once.
        items = getattr(mm_inputs, "mm_items", ())
        self.photon_ipc.beside = all(item.hash is not None for item in items)
        try:
            return super()._get_multimodal_inputs(mm_inputs)
        except HandleError as error:
            raise _MultimodalInputProcessingError(str(error)) from error
        finally:
            self.photon_ipc.beside = False

    def _is_ours(self, message: Any) -> bool:
        """Handle what a producer of pictures, or the first rank about one, has to say."""
        if isinstance(message, PoolAnnouncement):
            if self.photon_ipc is not None:
                self.photon_ipc.announce(message)
        elif isinstance(message, ProducerEnded):
            if self.photon_ipc is not None:
                self.photon_ipc.ended(message.producer)
        else:
            return False
        return True

    def make_lane(self) -> Lane:
        """Where forwards run; in-process schedulers bring their own."""
        return lane_for(self, self.photon_config.lane)

    def _choose_loop(self) -> LoopChoice:
        insist = self.photon_config.loop == PHOTON
        choice = choose_loop(loop_facts(self), insist=insist)
        if insist and choice.loop != PHOTON:
            refuse(
                PhotonError(
                    f"--photon-loop photon cannot serve this configuration: {choice.reason}",
                    "Use --photon-loop auto",
                )
            )
        return choice

    def _run_photon_loop(self) -> None:
        grammars = GrammarDeadlines(self.grammar_manager)
        compile_elsewhere(
            self.grammar_manager.grammar_backend, self.photon_compilers, limit_s=grammars.seconds
        )
        lane = self.make_lane()
        self.photon_rows = RowBatch(self) if rows_fit(self) else None
        forwards = ForwardClock()
        if self.device == "cuda":
            self.photon_ipc = IpcBinding.on_cuda(torch.cuda.current_device())
        if Inbox.fits(self):
            self.photon_inbox = Inbox(
                scheduler=self,
                forwards=forwards,
                paced=lane.asynchronous,
                binding=self.photon_ipc,
            )
        host = SchedulerHost(
            scheduler=self,
            waiter=SocketWaiter([self.recv_from_tokenizer, self.ipc_channels.recv_from_rpc]),
            grammars=grammars,
            inbox=self.photon_inbox,
        )
        loop = PhotonLoop(
            host=host,
            lane=lane,
            slots=make_slots(self),
            prefill_overlap=PrefillOverlap(self.photon_config.prefill_overlap),
            follows_clock=self.tp_size == 1,
            meter=make_meter(self, lane=lane.name),
            forwards=forwards,
        )
        self.photon_loop = loop
        self.result_queue = InFlight(loop)
        self.enable_skip_finishing_decode = True
        with ExitStack() as stack:
            if self.photon_ipc is not None:
                stack.enter_context(self.photon_ipc.bound())
            stack.callback(lane.close)
            if self.photon_inbox is not None:
                stack.callback(self.photon_inbox.close)
            stack.enter_context(takeover(loop, host.penalties, self.photon_rows))
            stack.enter_context(released_aside())
            loop.run()
            if self.photon_rows is not None:
                self.photon_rows.close()

    def _come_to_rest(self) -> None:
        """Nothing in flight, and upstream's bookkeeping up to date."""
        assert self.photon_loop is not None
        self.photon_loop.drain()
        if self.photon_rows is not None:
            self.photon_rows.hand_back(self.running_batch)

    def _launched_for_their_last_token(self, batch: Any) -> list[Any]:
        assert self.photon_rows is not None
        assert self.photon_loop is not None
        # What rows do not know yet: a prefill in flight that brings somebody's only token.
        prefills = any(work.kind is StepKind.PREFILL for work in self.photon_loop.in_flight())
        upstream_knows = self._reqs_finishing_inflight(batch) if prefills else []
        return [*upstream_knows, *self.photon_rows.finishing(batch)]

    def _must_settle_before(self, batch: Any) -> bool:
        loop = self.photon_loop
        if loop is None or loop.pipeline.is_empty:
            return False
        finishing = self._reqs_finishing_inflight(batch)
        staying = [i for i, req in enumerate(batch.reqs) if req not in finishing]
        forced = upstream.TEST_RETRACT and self.forward_ct % upstream.TEST_RETRACT_INTERVAL == 0
        if not staying or not (forced or not batch.check_decode_mem(selected_indices=staying)):
            return False
        loop.meter.settles("the KV pool is full")
        return True
