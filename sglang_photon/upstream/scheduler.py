"""`PhotonScheduler`: SGLang's scheduler, in a process of ours.

Imported only in processes that have SGLang's scheduler loaded: SGLang loads plugins in its main and
detokenizer processes too, which must not pay for this import.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.managers import scheduler as upstream
from sglang.srt.managers.io_struct import (
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
)
from sglang.srt.utils.common import DynamicGradMode

import sglang_photon
from sglang_photon.config import PhotonConfig
from sglang_photon.errors import PhotonError, refuse
from sglang_photon.loop.eligibility import PHOTON, LoopChoice, choose_loop
from sglang_photon.loop.tick import PhotonLoop, PrefillOverlap
from sglang_photon.slots.lane import Lane
from sglang_photon.upstream.facts import lane_for, loop_facts, make_slots
from sglang_photon.upstream.grammars import GrammarDeadlines
from sglang_photon.upstream.host import SchedulerHost
from sglang_photon.upstream.inflight import InFlight
from sglang_photon.upstream.metered import MeteredScheduler
from sglang_photon.upstream.metering import make_meter
from sglang_photon.upstream.takeover import takeover
from sglang_photon.upstream.waiting import SocketWaiter

logger = logging.getLogger(__name__)

OVERLAPPING_MESSAGES = (
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
        super().__init__(server_args, port_args)
        self.photon_choice = self._choose_loop()

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
            self.photon_loop.drain()
        super().process_input_requests(recv_reqs)

    def update_running_batch(self, batch: Any) -> Any:
        """Plan a decode; before anything is retracted, everything in flight is committed."""
        if self._must_settle_before(batch):
            return None
        return super().update_running_batch(batch)

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
        channels = self.ipc_channels
        host = SchedulerHost(
            scheduler=self,
            waiter=SocketWaiter([self.recv_from_tokenizer, channels.recv_from_rpc]),
            grammars=GrammarDeadlines(self.grammar_manager),
        )
        lane = self.make_lane()
        loop = PhotonLoop(
            host=host,
            lane=lane,
            slots=make_slots(self),
            prefill_overlap=PrefillOverlap(self.photon_config.prefill_overlap),
            follows_clock=self.tp_size == 1,
            meter=make_meter(self, lane=lane.name),
        )
        self.photon_loop = loop
        self.result_queue = InFlight(loop)
        self.enable_skip_finishing_decode = True
        try:
            with takeover(loop, host.penalties):
                loop.run()
        finally:
            lane.close()

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
