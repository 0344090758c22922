"""`RowBatch`: SGLang's decode batch on a `RowTable`.

SGLang decides who decodes: admission, priorities, retraction and the running batch's list of
requests stay its own. What it keeps per step is kept here instead, so its copies lag behind while
rows are on the fast path: the running batch's tensors, the requests' KV lengths and stream offsets.
`hand_back` brings them up to date, and comes before anything of SGLang's that reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_photon.rows.ahead import Demand, demand, steps_for
from sglang_photon.rows.table import NEVER, Cohort, RowTable
from sglang_photon.upstream.row_commit import Committer
from sglang_photon.upstream.row_facts import end_tokens, is_plain_decode, is_special
from sglang_photon.upstream.row_forward import CohortForward, TokenRelay
from sglang_photon.upstream.row_step import RowStep
from sglang_photon.upstream.row_stream import RowStream
from sglang_photon.upstream.step import needs_newest_token


class RowBatch:
    """The rows of one scheduler.

    Args:
        scheduler: fully constructed.

    Attributes:
        relay: the newest tokens, on the lane.
    """

    def __init__(self, scheduler: Any) -> None:
        pool = scheduler.req_to_token_pool
        self._scheduler = scheduler
        self._width = pool.req_to_token.shape[1]
        self._cells = pool.req_to_token.view(-1)
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._page = self._allocator.page_size
        self._table = RowTable(
            places=pool.req_to_token.shape[0], vocab=scheduler.model_config.vocab_size
        )
        self._stream = RowStream(scheduler)
        self._committer = Committer(scheduler=scheduler, table=self._table, stream=self._stream)
        self._members: dict[Any, int] = {}
        self._joined_at: dict[Any, int] = {}
        self._batch: Any = None
        self._cohort: Cohort | None = None
        self._launched: Cohort | None = None
        self._forward: CohortForward | None = None
        self._samples_later = False
        self._common: dict[Any, dict[str, Any]] = {}
        self.relay = TokenRelay(scheduler.future_map.output_tokens_buf)

    def close(self) -> None:
        """The loop has ended, with nothing in flight."""
        self.hand_back(self._scheduler.running_batch)
        self._stream.close()

    def again(self) -> bool:
        """Prepare the same step once more, if nobody came, left, waits, or needs a KV slot."""
        scheduler, cohort = self._scheduler, self._cohort
        running = scheduler.running_batch
        if (
            cohort is None
            or cohort.launches_left <= 0
            or running is not self._batch
            or scheduler.last_batch is not running
            or scheduler.chunked_req is not None
            or scheduler._pending_chunked_abort_req is not None
            or scheduler.grammar_manager.grammar_queue
            or (scheduler.waiting_queue and not self._is_closed(running))
            or (cohort.kv_left <= 0 and not self._reserve(cohort))
        ):
            return False
        scheduler.new_token_ratio_tracker.decay_step()
        self._count_penalties(running)
        return True

    def takes(self, batch: Any) -> bool:
        """Whether all requests of a decode batch can run as rows."""
        members = self._members
        return all(req in members or is_plain_decode(req) for req in batch.reqs)

    def prepare(self, batch: Any) -> bool:
        """In place of SGLang's `prepare_for_decode`: take in who is new, reserve KV slots.

        Returns:
            False if the KV pool has no room for one more step.
        """
        cohort = self._compose(batch)
        if cohort.kv_left <= 0 and not self._reserve(cohort):
            self._cohort = None
            return False
        batch.forward_mode = ForwardMode.DECODE
        batch.input_embeds = batch.replace_embeds = batch.replace_positions = None
        batch.seq_lens_sum = None
        self._count_penalties(batch)
        self._forward = CohortForward(
            scheduler=self._scheduler,
            batch=batch,
            cohort=cohort,
            deltas=self._table.delta[cohort.places],
            width=self._width,
            common=self._common,
        )
        self._samples_later = needs_newest_token(batch)
        return True

    def is_prepared(self, batch: Any) -> bool:
        """Whether this batch was the last one prepared, and has not been taken apart since."""
        return batch is self._batch and self._cohort is not None

    def step(self, *, penalties_due: bool) -> RowStep:
        """The step that was prepared."""
        assert self._cohort is not None
        assert self._forward is not None
        self._launched = self._cohort
        return RowStep(
            scheduler=self._scheduler,
            cohort=self._cohort,
            forward=self._forward,
            rows=self,
            live=self._batch,
            samples_later=self._samples_later,
            penalties_due=penalties_due,
        )

    def commit(self, step: RowStep, result: Any, tokens: Any, *, zombies: int) -> None:
        """Append a step's tokens, find ends, stream."""
        self._committer.commit(
            cohort=step.cohort, batch=step.batch, result=result, tokens=tokens, zombies=zombies
        )

    def messages_arrived(self) -> None:
        """Somebody may have been told to stop."""
        self._committer.abort_is_possible = True

    def finishing(self, batch: Any) -> list[Any]:
        """Requests that have been launched for their last token, as their length says."""
        if self._launched is None or self._launched.launches_left > 0:
            return []
        table, members = self._table, self._members
        self._settle()
        return [
            req
            for req in batch.reqs
            if (place := members.get(req)) is not None
            and table.seq_len[place] >= table.final_len[place]
        ]

    def end(self, req: Any) -> None:
        """A request has its result; its place is its own until it is released."""
        if req.kv.req_pool_idx is not None:
            self._table.ended[req.kv.req_pool_idx] = True
        if req in self._members:
            self._cohort = None

    def leave(self, req: Any) -> None:
        """A request is about to be released: its spare slots go back first."""
        self._committer.forget(req)
        place = self._members.pop(req, None)
        if place is not None:
            self._settle()
            self._give_back(req, place)

    def withdraw(self, req: Any) -> None:
        """A request goes back to the queue; nothing in flight refers to it."""
        place = self._members.get(req)
        if place is not None:
            self._cohort = None
            self._committer.settle()
            self._catch_up(req, place)
            self.leave(req)
        # It has been retracted once more than its chunks say.
        self._stream.forget(req)

    def hand_back(self, batch: Any) -> None:
        """Leave the fast path: SGLang's own bookkeeping is as it would be.

        A step that is in flight is still committed on its rows; it tells SGLang's streamer what it
        has sent.

        Args:
            batch: the running batch, whose tensors are brought up to date.
        """
        if not self._members:
            return
        self._cohort = None
        if self._launched is not None:
            self._launched.retired = True
        self._settle()
        self._committer.settle()
        self._sync(batch)
        self._allocator.free_group_begin()
        for req, place in self._members.items():
            self._catch_up(req, place)
            self._give_back(req, place)
        self._allocator.free_group_end()
        self._members.clear()

    def _is_closed(self, running: Any) -> bool:
        """Whether nobody who waits can be admitted."""
        return running.batch_is_full and not self._scheduler.enable_priority_preemption

    def _settle(self) -> None:
        """Write down the launches of the cohort that was launched last."""
        if self._launched is not None:
            self._launched.settle()

    def _catch_up(self, req: Any, place: int) -> None:
        if self._table.plain[place] and not self._table.ended[place]:
            self._stream.catch_up(req, sent=int(self._table.out_len[place]))

    def _count_penalties(self, batch: Any) -> None:
        if batch.sampling_info.penalizer_orchestrator.is_required:
            batch.cumulate_penalty_output_tokens()

    def _compose(self, batch: Any) -> Cohort:
        self._settle()
        members = self._members
        new = [index for index, req in enumerate(batch.reqs) if req not in members]
        if new:
            lengths = batch.seq_lens_cpu.tolist()
            for index in new:
                self._join(batch.reqs[index], lengths[index])
        places = np.fromiter(map(members.__getitem__, batch.reqs), np.int64, len(batch.reqs))
        self._batch = batch
        self._cohort = Cohort(table=self._table, requests=batch.reqs, places=places)
        return self._cohort

    def _join(self, req: Any, length: int) -> None:
        table, place = self._table, req.kv.req_pool_idx
        self._members[req] = place
        self._joined_at[req] = length
        table.seq_len[place] = length
        # The last token is computed by a step, and never fed to one.
        limit = req.sampling_params.max_new_tokens
        table.final_len[place] = len(req.origin_input_ids) + limit - 1
        table.reserved[place] = self._to_page_end(place, length)
        table.special[place] = is_special(self._scheduler, req)
        table.plain[place] = table.ended[place] = False
        table.ask_at[place] = NEVER
        delta = (
            None if req.multimodal_inputs is None else req.multimodal_inputs.mrope_position_delta
        )
        table.delta[place] = 0 if delta is None else int(delta)
        if table.ends.is_full:
            table.ends.forget()
            for other in self._members:
                table.ends.watch(end_tokens(other))
        table.ends.watch(end_tokens(req))
        self._committer.expect(req, place)

    def _to_page_end(self, place: int, length: int) -> int:
        """The rest of a row's last page is its own already: write the slots down."""
        end = -(-length // self._page) * self._page
        if end > length:
            start = place * self._width + length
            steps = torch.arange(1, end - length + 1, dtype=torch.int32, device=self._cells.device)
            self._cells[start : start + end - length] = self._cells[start - 1] + steps
        return end

    def _reserve(self, cohort: Cohort) -> bool:
        """KV slots for the cohort's next steps; False if not even one step has room."""
        cohort.settle()
        free = self._allocator.available_size()
        steps = steps_for(free=free, rows=len(cohort), page_size=self._page)
        need = self._demand(cohort, steps)
        if need.slots > free:
            need = self._demand(cohort, 1)
            if not self._allocator.check_decode_capacity(
                num_tokens=need.slots, tree_cache=self._scheduler.tree_cache
            ):
                return False
        slots = self._allocator.alloc(need.slots)
        if slots is None:
            return False
        cells = torch.from_numpy(need.cells(width=self._width)).to(self._cells.device)
        self._cells.index_copy_(0, cells, slots.to(torch.int32))
        self._table.reserved[need.places] += need.counts
        cohort.slots_were_added()
        return True

    def _demand(self, cohort: Cohort, steps: int) -> Demand:
        return demand(
            table=self._table,
            places=cohort.places,
            steps=steps,
            page_size=self._page,
            width=self._width,
        )

    def _give_back(self, req: Any, place: int) -> None:
        """The request's KV length as SGLang counts it; its spare slots to the pool."""
        length = int(self._table.seq_len[place])
        req.kv.kv_committed_len = req.kv.kv_allocated_len = length
        req.decode_batch_idx += length - self._joined_at.pop(req)
        start = -(-length // self._page) * self._page
        end = int(self._table.reserved[place])
        if end > start:
            first = place * self._width
            self._allocator.free(self._cells[first + start : first + end].to(torch.int64))

    def _sync(self, batch: Any) -> None:
        """The running batch's own tensors."""
        if not batch.reqs:
            return
        lengths = batch.seq_lens_cpu.tolist()
        for index, req in enumerate(batch.reqs):
            if (place := self._members.get(req)) is not None:
                lengths[index] = int(self._table.seq_len[place])
        batch.seq_lens_cpu = torch.tensor(lengths, dtype=batch.seq_lens_cpu.dtype)
        batch.seq_lens = batch.seq_lens_cpu.to(batch.seq_lens.device, batch.seq_lens.dtype)
        batch.orig_seq_lens = batch.seq_lens.to(batch.orig_seq_lens.dtype)
        batch.seq_lens_sum = None
