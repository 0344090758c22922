"""`Step`: one planned `ScheduleBatch` on its way through the lane, as `loop.host.Work`.

SGLang's `run_batch` does three things in one call: it counts, it runs the device, it relays and
copies the result. Here they are apart, since each runs at another time and perhaps in another
thread. The device part sees a frozen copy of the batch: the scheduler goes on to change its own
(merge, filter, extend) while the forward waits for its turn.

Sampling is always asked for separately (SGLang's `SGLANG_ENABLE_DELAY_SAMPLE`), so that a step
whose sampling needs the token before is the same code with one part run later.
"""

from __future__ import annotations

import copy
from typing import Any

from sglang.srt.managers.overlap_utils import resolve_forward_inputs
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.utils import EmbeddingBatchResult, GenerationBatchResult

from sglang_photon.records import StepKind
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.upstream.counting import NO_EVENT, count_launch, leave_out
from sglang_photon.upstream.takeover import CUMULATE


class Step:
    """A batch, its frozen copy, and the result that grows on the lane.

    Args:
        scheduler: whose batch it is; asked on the host only, except for the model worker and the
            token relay, which belong to the lane.
        batch: the planned batch, as `get_next_batch_to_run` returned it.
        penalties_due: the batch's penalties have not seen the newest token yet, since it was in
            flight when the batch was planned.
    """

    def __init__(self, *, scheduler: Any, batch: ScheduleBatch, penalties_due: bool) -> None:
        self._scheduler = scheduler
        self._batch = batch
        self._penalties_due = penalties_due
        self._result: Any = None
        self.kind = StepKind.PREFILL if batch.forward_mode.is_extend() else StepKind.DECODE
        self.riders = tuple(batch.reqs)
        self.lockstep = _lockstep_reason(batch)
        self.samples_later = scheduler.is_generation and needs_newest_token(batch)
        self.owes_first_token = self.kind is StepKind.PREFILL and any(
            req.inflight_middle_chunks <= 0 for req in batch.reqs
        )
        count_launch(scheduler, batch)
        self._forward_batch = _freeze(batch)
        # What the result processor reads, as it is now: the live batch moves on.
        self._committed = batch.copy()
        self._extend_lens = list(batch.extend_lens) if batch.forward_mode.is_extend() else None
        self._logprob_starts = batch.extend_logprob_start_lens
        # The relay carries the tokens from here on.
        batch.input_ids = None
        batch.prefill_input_ids_cpu = None
        batch.mix_running_indices = None

    @property
    def reqs(self) -> list[Any]:
        """The requests, for upstream's readers of steps in flight."""
        return self._committed.reqs

    def stage(self, slot: DecodeSlot) -> None:
        """Nothing: a batch of SGLang's brings its own tensors."""

    def forward(self) -> None:
        """Run the model; sample as well, unless the sampling has to wait."""
        scheduler, batch = self._scheduler, self._forward_batch
        if scheduler.photon_rows is not None:
            scheduler.photon_rows.relay.flush_on_lane()
        resolve_forward_inputs(batch, scheduler.future_map)
        if scheduler.is_generation:
            self._result = scheduler.model_worker.forward_batch_generation(batch)
            if not self.samples_later:
                self.sample()
        else:
            self._result = self._embed()
        # Keeps what the host writes next behind this forward's reads of the same buffers.
        scheduler._apply_war_barrier()

    def prepare_sampling(self) -> None:
        """Feed the newest token to the penalties, now that it is on the host."""
        if not self._penalties_due:
            return
        CUMULATE(self._batch)
        live, frozen = self._batch.sampling_info, self._forward_batch.sampling_info
        live.update_penalties()
        frozen.acc_additive_penalties = live.acc_additive_penalties
        frozen.acc_scaling_penalties = live.acc_scaling_penalties

    def sample(self) -> None:
        """Sample (masks are built here, from grammars that know the newest token) and relay."""
        result = self._result
        asked = result.delay_sample_func is not None
        if asked:
            result.delay_sample_func()
            result.delay_sample_func = None
        self._scheduler._relay_forward_payload(
            self._forward_batch, self._forward_batch.req_pool_indices, result
        )
        if asked:
            # As large as the batch times the vocabulary: not kept until the commit.
            result.logits_output.next_token_logits = None

    def read_back(self, slot: DecodeSlot) -> None:
        """Copy the tokens into the slot's buffer, and whatever else the commit will read."""
        result = self._result
        result.copy_done = NO_EVENT
        if isinstance(result, EmbeddingBatchResult):
            result.copy_to_cpu()
        else:
            rows = len(result.next_token_ids)
            host = slot.token_ids[:rows]
            host.copy_(result.next_token_ids, non_blocking=True)
            result.next_token_ids = host
            result.copy_to_cpu(
                return_logprob=self._committed.return_logprob,
                return_hidden_states=self._committed.return_hidden_states,
            )
        result.copy_done = None

    def commit(self, *, zombies: int) -> None:
        """Hand the result to SGLang's result processing."""
        result = self._result
        if isinstance(result, GenerationBatchResult):
            wants = self._committed.return_logprob
            hidden = self._committed.return_hidden_states
            result.extend_input_len_per_req = self._extend_lens if wants or hidden else None
            result.extend_logprob_start_len_per_req = self._logprob_starts if wants else None
            leave_out(zombies, result)
        self._scheduler.process_batch_result(self._committed, result)

    def _embed(self) -> EmbeddingBatchResult:
        output, used_graph = self._scheduler.tp_worker.forward_batch_embedding(self._forward_batch)
        return EmbeddingBatchResult(
            embeddings=output.embeddings,
            pooled_hidden_states=output.pooled_hidden_states,
            can_run_cuda_graph=used_graph,
        )


def _freeze(batch: ScheduleBatch) -> ScheduleBatch:
    """A copy of the batch that later planning cannot reach; tensors are shared, never written."""
    frozen = copy.copy(batch)
    frozen.reqs = list(batch.reqs)
    if batch.sampling_info is not None:
        frozen.sampling_info = batch.sampling_info.copy_for_forward()
        if frozen.sampling_info.custom_params is not None:
            # Upstream's merge extends this list in place.
            frozen.sampling_info.custom_params = list(frozen.sampling_info.custom_params)
    return frozen


def needs_newest_token(batch: ScheduleBatch) -> bool:
    """Whether some row's sampling depends on a token that may still be in flight.

    A row that is prefilled has no such token: its text begins here, or was committed before.
    """
    if not (batch.forward_mode.is_decode() or batch.decoding_reqs):
        return False
    info = batch.sampling_info
    return bool(
        batch.has_grammar
        or info.has_custom_logit_processor
        or info.penalizer_orchestrator.is_required
    )


def _lockstep_reason(batch: ScheduleBatch) -> str | None:
    if any(req.beam_group is not None for req in batch.reqs):
        return "beam search selects rows on the host"
    if any(req.session is not None for req in batch.reqs):
        return "a session hands its rows to its next request"
    return None
