"""`SchedulerHost`: SGLang's scheduler as the loop's `Host`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_photon.loop.host import Release, Work
from sglang_photon.upstream.grammars import GrammarDeadlines
from sglang_photon.upstream.receiving import Inbox
from sglang_photon.upstream.step import Step
from sglang_photon.upstream.takeover import PenaltyClock
from sglang_photon.upstream.waiting import IDLE_SECONDS, STALLED_SECONDS, SocketWaiter


class SchedulerHost:
    """Admission, prefill scheduling and idle housekeeping stay SGLang's; this calls them.

    Args:
        scheduler: the scheduler, fully constructed.
        waiter: what blocks while nothing can run.
        grammars: time limits of grammars that compile.
        inbox: what has arrived at this rank's sockets; None where it has none.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        waiter: SocketWaiter,
        grammars: GrammarDeadlines,
        inbox: Inbox | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._rows = scheduler.photon_rows
        self._inbox = inbox
        self._waiter = waiter
        self._grammars = grammars
        self.penalties = PenaltyClock(settled=lambda: not scheduler.result_queue)

    @property
    def exiting(self) -> bool:
        """Whether a shutdown was asked for."""
        return self._scheduler.gracefully_exit

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return self._scheduler._engine_paused

    def receive(self) -> None:
        """Receive, broadcast to the other ranks, and dispatch."""
        if self._inbox is None:
            self._scheduler.ingest_requests()
        else:
            self._inbox.receive()

    def chores(self) -> None:
        """Take requests in while the forwards in flight leave time."""
        if self._inbox is not None:
            self._inbox.work()

    def settle_reason(self) -> str | None:
        """What planning would do to a row that may be in flight."""
        scheduler = self._scheduler
        if scheduler._pending_chunked_abort_req is not None:
            return "a chunked prefill is being aborted"
        if scheduler.enable_priority_preemption and scheduler.waiting_queue:
            return "a waiting request may preempt a running one"
        if scheduler.is_mixed_chunk and self.expects_prefill() and self._any_penalties():
            return "penalties of rows that a prefill is mixed with"
        return None

    def expects_prefill(self) -> bool:
        """Whether somebody waits who could be admitted."""
        scheduler = self._scheduler
        return scheduler.chunked_req is not None or bool(
            scheduler.waiting_queue and not scheduler.running_batch.batch_is_full
        )

    def plan(self) -> Work | None:
        """Let SGLang decide the next batch and reserve its rows and pages."""
        scheduler, rows = self._scheduler, self._rows
        if rows is not None and rows.again():
            return rows.step(penalties_due=self.penalties.take())
        self._grammars.enforce()
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        batch = plan.batch_to_run
        scheduler.running_batch = plan.running_batch
        scheduler.last_batch = scheduler.cur_batch_for_debug = batch
        penalties_due = self.penalties.take()
        if batch is None:
            scheduler._sched_idled = True
            return None
        if rows is not None and rows.is_prepared(batch):
            return rows.step(penalties_due=penalties_due)
        return Step(scheduler=scheduler, batch=batch, penalties_due=penalties_due)

    def rest(self) -> None:
        """SGLang's idle checks, then sleep until a message arrives."""
        scheduler = self._scheduler
        if self._inbox is not None and self._inbox.pending:
            return
        scheduler.on_idle()
        self._waiter.wait(IDLE_SECONDS if scheduler.is_fully_idle() else STALLED_SECONDS)

    def wait_paused(self) -> None:
        """Keep the activity metrics, sleep until a message arrives."""
        self._scheduler._record_scheduler_state_for_paused_engine()
        self._waiter.wait(IDLE_SECONDS)

    def release(self, releases: Sequence[Release]) -> None:
        """Free the rows of a step as one group: each free on its own copies the free list."""
        allocator = self._scheduler.token_to_kv_pool_allocator
        allocator.free_group_begin()
        for release in releases:
            release()
        allocator.free_group_end()

    def _any_penalties(self) -> bool:
        batches = (self._scheduler.running_batch, self._scheduler.last_batch)
        return any(
            batch is not None
            and batch.reqs
            and batch.sampling_info is not None
            and batch.sampling_info.penalizer_orchestrator.is_required
            for batch in batches
        )
