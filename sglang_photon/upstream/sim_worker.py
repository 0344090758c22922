"""A simulated device under each of the three loops, for benchmarks on a real clock.

The model worker still builds SGLang's `ForwardBatch` (that is host work, and belongs to the step);
the forward itself is replaced by whole numbers. When its result arrives is up to a `SimLane`: the
photon loop runs on it by itself, SGLang's loops meet it where they wait for the copy of a result.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sglang_photon.records import StepKind
from sglang_photon.slots.sim import RealClock, SimLane, StepTime
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.timing import TURNS, Busy

FIRST_TOKEN = 1000
"""Tokens are counted from here on, away from every end of a sequence."""


def next_token(last: int, vocab: int) -> int:
    """The token after a token, or after a prompt of that length."""
    return FIRST_TOKEN + (last + 1) % (vocab - FIRST_TOKEN)


class SimDevice:
    """Replaces a scheduler's forward by a device of a given step time.

    Args:
        scheduler: constructed for one of the three loops; changed in place.
        loop: which.
        step_time: seconds of a forward, by its kind.

    Attributes:
        lane: the device's clock, with what it was busy and idle.
    """

    def __init__(self, *, scheduler: Any, loop: str, step_time: StepTime) -> None:
        self.clock = RealClock()
        self.lane = SimLane(step_time=step_time, clock=self.clock)
        self._runner = scheduler.tp_worker.model_runner
        vocab = scheduler.model_config.vocab_size
        self._next = torch.tensor([next_token(token, vocab) for token in range(vocab)])
        self._slots = [DecodeSlot.allocate(index=i, max_rows=1, pinned=False) for i in range(TURNS)]
        self._turn = 0
        if loop == "photon":
            scheduler.lane_factory = lambda: self.lane
            forward = self._compute
        elif loop == "sglang":
            forward = self._compute_timed
            self._gate_copies(scheduler)
        else:
            forward = self._compute_gated
        scheduler.tp_worker.forward_batch_generation = forward
        scheduler.device_times = self

    def of(self, slot: int) -> Busy | None:
        """When the device works on a step, for loops that record their steps."""
        return self.lane.worked(self._slots[slot])

    def _compute(self, batch: Any, forward_batch: Any = None, **_: Any) -> GenerationBatchResult:
        forward = forward_batch or ForwardBatch.init_new(
            batch, self._runner, return_hidden_states_before_norm=False
        )
        last = forward.input_ids
        if not forward.forward_mode.is_decode():
            last = forward.seq_lens
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=self._next.index_select(0, last),
        )

    def _compute_timed(self, batch: Any, **_: Any) -> GenerationBatchResult:
        result = self._compute(batch)
        slot = self._slots[self._turn % len(self._slots)]
        self._turn += 1
        kind = StepKind.DECODE if batch.forward_mode.is_decode() else StepKind.PREFILL
        self.lane.submit(slot, _nothing, kind=kind)
        self.lane.copy(slot, _nothing)
        return result

    def _compute_gated(self, batch: Any, **_: Any) -> GenerationBatchResult:
        result = self._compute_timed(batch)
        result.copy_done = _Arrival(self.lane, self._slots[(self._turn - 1) % len(self._slots)])
        return result

    def _gate_copies(self, scheduler: Any) -> None:
        copy = scheduler._copy_result_to_cpu

        def copy_and_gate(result: Any, batch: Any) -> None:
            copy(result, batch)
            result.copy_done = _Arrival(self.lane, self._slots[(self._turn - 1) % len(self._slots)])

        scheduler._copy_result_to_cpu = copy_and_gate


class _Arrival:
    """What SGLang's loops wait on."""

    def __init__(self, lane: SimLane, slot: DecodeSlot) -> None:
        self._lane = lane
        self._slot = slot

    def synchronize(self) -> None:
        self._lane.wait(self._slot)


def _nothing() -> None:
    """The result is there already; only its arrival is simulated."""
