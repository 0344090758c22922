"""The device's side of a cohort: one `ForwardBatch` per slot, and the tokens from step to step.

SGLang builds a `ForwardBatch` for every step. Here it is built once for a cohort and slot, over the
slot's buffers, and a step gets a copy of its fields; what changes from step to step is written into
the buffers. All methods named `on_lane` run there, in the order of the steps.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sglang_photon.rows.table import Cohort, Places
from sglang_photon.slots.slot import STAGED_ROWS, DecodeSlot

LENGTHS, CELLS, POSITIONS, MROPE = 0, 1, 2, slice(3, 6)
"""Rows of a slot's staged inputs, seen as (6, rows)."""


class TokenRelay:
    """The newest token of every row, from the step that samples it to the one that reads it.

    While the same cohort decodes, the sampled tensor itself is handed on. It is scattered into
    SGLang's relay buffer only when somebody else is going to read it.

    Args:
        buffer: (places,) int64 on the device, SGLang's `FutureMap.output_tokens_buf`.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer
        self._newest: tuple[CohortForward, torch.Tensor] | None = None

    def put_on_lane(self, forward: CohortForward, tokens: torch.Tensor) -> None:
        """A step of the cohort has sampled these tokens, (rows,)."""
        self._newest = (forward, tokens)

    def take_on_lane(self, forward: CohortForward, out: torch.Tensor) -> torch.Tensor:
        """The cohort's newest tokens, (rows,) int64; `out` may be used to hold them."""
        if self._newest is not None and self._newest[0] is forward:
            return self._newest[1]
        self.flush_on_lane()
        return torch.index_select(self._buffer, 0, forward.places, out=out)

    def flush_on_lane(self) -> None:
        """Before a forward that reads SGLang's buffer."""
        if self._newest is not None:
            forward, tokens = self._newest
            self._buffer.index_copy_(0, forward.places, tokens.to(self._buffer.dtype))
            self._newest = None


class CohortForward:
    """What forwards of one cohort have in common.

    Args:
        scheduler: whose model runs.
        batch: the running batch, its requests in the cohort's order.
        cohort: who decodes.
        deltas: (rows,) what M-RoPE adds to each row's position.
        width: positions that a row of `req_to_token` has.

    Attributes:
        batch: a copy of the running batch that planning does not reach.
        places: (rows,) int64 on the device.
    """

    def __init__(
        self, *, scheduler: Any, batch: Any, cohort: Cohort, deltas: Places, width: int
    ) -> None:
        self._runner = scheduler.tp_worker.model_runner
        self._worker = scheduler.model_worker
        self._cells = scheduler.req_to_token_pool.req_to_token.view(-1)
        self._rows = len(cohort)
        self._first_cells = cohort.places * width
        self._deltas = deltas
        self._has_mrope = self._runner.model_config.model_is_mrope
        self._per_step = self._runner.lora_manager is not None
        self._templates: dict[int, dict[str, Any]] = {}
        self._staged: dict[int, Any] = {}
        self.places = batch.req_pool_indices
        self.batch = self._freeze(batch)

    def stage(self, slot: DecodeSlot, lengths: Places) -> None:
        """Host: write a step's lengths, (rows,), into its slot."""
        staged = self._staged.get(slot.index)
        if staged is None:
            used = slot.staged[: STAGED_ROWS * self._rows]
            staged = self._staged[slot.index] = used.numpy().reshape(STAGED_ROWS, self._rows)
        staged[LENGTHS] = lengths
        positions = staged[POSITIONS]
        np.subtract(lengths, 1, out=positions)
        np.add(positions, self._first_cells, out=staged[CELLS])
        if self._has_mrope:
            np.add(positions, self._deltas, out=staged[MROPE])
        if not self._per_step and slot.index not in self._templates:
            self._templates[slot.index] = self._build(slot).__dict__

    def run_on_lane(self, slot: DecodeSlot, relay: TokenRelay, *, total: int) -> Any:
        """Forward, without sampling.

        Args:
            slot: the step's, staged.
            relay: where the input tokens come from.
            total: the sum of the staged lengths.
        """
        count = STAGED_ROWS * self._rows
        if slot.inputs is not slot.staged:
            slot.inputs[:count].copy_(slot.staged[:count], non_blocking=True)
        cells = slot.inputs[:count].view(STAGED_ROWS, self._rows)[CELLS]
        slot.kv_slots[: self._rows].copy_(self._cells.take(cells))
        tokens = relay.take_on_lane(self, slot.input_ids[: self._rows])
        forward_batch = self._fresh(slot)
        forward_batch.input_ids = tokens
        forward_batch.seq_lens_sum = total
        return self._worker.forward_batch_generation(None, forward_batch=forward_batch)

    def _fresh(self, slot: DecodeSlot) -> ForwardBatch:
        if self._per_step:
            return self._build(slot)
        forward_batch = ForwardBatch.__new__(ForwardBatch)
        forward_batch.__dict__.update(self._templates[slot.index])
        return forward_batch

    def _build(self, slot: DecodeSlot) -> ForwardBatch:
        """SGLang's own construction, over the slot's buffers."""
        rows = self._rows
        inputs = slot.inputs[: STAGED_ROWS * rows].view(STAGED_ROWS, rows)
        batch = copy.copy(self.batch)
        batch.seq_lens = inputs[LENGTHS]
        batch.seq_lens_cpu = slot.staged[:rows]
        batch.orig_seq_lens = inputs[LENGTHS]
        batch.seq_lens_sum = None
        batch.out_cache_loc = slot.kv_slots[:rows]
        batch.input_ids = slot.input_ids[:rows]
        if self._has_mrope:
            # Positions are staged; SGLang would read the requests' deltas one by one.
            batch.multimodal_inputs = [None] * rows
        made = ForwardBatch.init_new(batch, self._runner, return_hidden_states_before_norm=False)
        made.mm_inputs = self.batch.multimodal_inputs
        made.positions = inputs[POSITIONS]
        if self._has_mrope:
            made.mrope_positions = inputs[MROPE]
        return made

    @staticmethod
    def _freeze(batch: Any) -> Any:
        frozen = copy.copy(batch)
        frozen.reqs = list(batch.reqs)
        info = dataclasses.replace(batch.sampling_info, penalizer_orchestrator=None)
        info.acc_additive_penalties = info.acc_scaling_penalties = None
        if info.custom_params is not None:
            # SGLang's merge extends this list in place.
            info.custom_params = list(info.custom_params)
        frozen.sampling_info = info
        return frozen
