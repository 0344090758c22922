"""`RowStep`: one decode step of a cohort, as `loop.host.Work`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_photon.records import StepKind
from sglang_photon.rows.table import Cohort
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.upstream.counting import NO_EVENT, count_launch, count_step, leave_out
from sglang_photon.upstream.row_forward import CohortForward
from sglang_photon.upstream.takeover import CUMULATE

if TYPE_CHECKING:
    from sglang_photon.upstream.row_batch import RowBatch


class RowStep:
    """A cohort, and the result that grows on the lane.

    Args:
        scheduler: whose step it is.
        cohort: who decodes.
        forward: how.
        rows: what commits it, and where its tokens go.
        live: the running batch, for penalties.
        samples_later: sampling waits for the commit of the step before.
        penalties_due: penalties have not seen the newest token yet.
    """

    kind = StepKind.DECODE
    owes_first_token = False
    lockstep = None

    def __init__(
        self,
        *,
        scheduler: Any,
        cohort: Cohort,
        forward: CohortForward,
        rows: RowBatch,
        live: Any,
        samples_later: bool,
        penalties_due: bool,
    ) -> None:
        self._scheduler = scheduler
        self._forward = forward
        self._rows = rows
        self._live = live
        self._penalties_due = penalties_due
        self._result: Any = None
        self._slot: DecodeSlot | None = None
        self._total = 0
        self.cohort = cohort
        self.batch = forward.batch
        self.samples_later = samples_later
        self.riders = cohort.requests
        self._launch = count_launch(scheduler, forward.batch)

    @property
    def reqs(self) -> tuple[Any, ...]:
        """The requests, for SGLang's readers of steps in flight."""
        return self.riders

    def stage(self, slot: DecodeSlot) -> None:
        """Count the launch; write what it reads into its slot."""
        self._slot = slot
        self._total = self._forward.stage(slot)

    def forward(self) -> None:
        """Run the model; sample as well, unless the sampling has to wait."""
        assert self._slot is not None, "a step is staged before it runs"
        self._result = self._forward.run_on_lane(self._slot, self._rows.relay, total=self._total)
        if not self.samples_later:
            self.sample()
        self._scheduler._apply_war_barrier()

    def prepare_sampling(self) -> None:
        """Feed the newest token to the penalties, now that it is on the host."""
        live, batch = self._live, self._forward.batch
        if not live.sampling_info.penalizer_orchestrator.is_required:
            return
        if self._penalties_due:
            CUMULATE(live)
        live.sampling_info.update_penalties()
        batch.sampling_info.acc_additive_penalties = live.sampling_info.acc_additive_penalties
        batch.sampling_info.acc_scaling_penalties = live.sampling_info.acc_scaling_penalties

    def sample(self) -> None:
        """Sample, and hand the tokens on."""
        result = self._result
        if result.delay_sample_func is not None:
            result.delay_sample_func()
            result.delay_sample_func = None
            # As large as the batch times the vocabulary: not kept until the commit.
            result.logits_output.next_token_logits = None
        self._rows.relay.put_on_lane(self._forward, result.next_token_ids)

    def read_back(self, slot: DecodeSlot) -> None:
        """Copy the tokens into the slot's buffer, and whatever else the commit will read."""
        result, batch = self._result, self._forward.batch
        rows = len(self.cohort)
        slot.token_ids[:rows].copy_(result.next_token_ids, non_blocking=True)
        if batch.return_logprob or batch.return_hidden_states:
            result.copy_done = NO_EVENT
            result.copy_to_cpu(
                return_logprob=batch.return_logprob,
                return_hidden_states=batch.return_hidden_states,
            )
            result.copy_done = None

    def commit(self, *, zombies: int) -> None:
        """Append, end, stream; then count."""
        slot = self._slot
        assert slot is not None, "a step is committed after its launch"
        rows = len(self.cohort)
        self._rows.commit(self, self._result, slot.token_ids[:rows].numpy(), zombies=zombies)
        leave_out(zombies, self._result)
        count_step(
            self._scheduler,
            self.batch,
            self._result,
            launch=self._launch,
            tokens=rows - zombies,
        )
