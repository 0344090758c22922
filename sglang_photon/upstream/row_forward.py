"""The device's side of a cohort: one `ForwardBatch` per slot, and the tokens from step to step.

SGLang builds a `ForwardBatch` for every step. Here it is built once for a cohort and slot, over the
slot's buffers, and a step gets a copy of its fields; what changes from step to step is written into
the buffers. All methods named `on_lane` run there, in the order of the steps.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


@dataclass(slots=True)
class _Prepared:
    """One slot as a cohort uses it.

    Attributes:
        staged: (6, rows) in host memory.
        launches: of the cohort, when it was staged last.
        inputs: the same on the device; None where host and device are one.
        cells: (rows,) its row of flat indices into `req_to_token`.
        kv_slots: (rows,) where the KV slots go.
        input_ids: (rows,) where the input tokens may go.
        fields: of the slot's `ForwardBatch`; None if it has to be built for every step.
    """

    staged: NDArray[np.int64]
    launches: int
    inputs: tuple[torch.Tensor, torch.Tensor] | None
    cells: torch.Tensor
    kv_slots: torch.Tensor
    input_ids: torch.Tensor
    fields: dict[str, Any] | None


class CohortForward:
    """What forwards of one cohort have in common.

    Args:
        scheduler: whose model runs.
        batch: the running batch, its requests in the cohort's order.
        cohort: who decodes.
        deltas: (rows,) what M-RoPE adds to each row's position.
        width: positions that a row of `req_to_token` has.
        common: fields of a `ForwardBatch` that all cohorts share, by what they return of hidden
            states; filled here.

    Attributes:
        batch: a copy of the running batch that planning does not reach.
        places: (rows,) int64 on the device.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        batch: Any,
        cohort: Cohort,
        deltas: Places,
        width: int,
        common: dict[Any, dict[str, Any]],
    ) -> None:
        self._common = common
        self._runner = scheduler.tp_worker.model_runner
        self._worker = scheduler.model_worker
        self._cells = scheduler.req_to_token_pool.req_to_token.view(-1)
        self._cohort = cohort
        self._rows = len(cohort)
        self._total = int(cohort.lengths.sum())
        self._first_cells = cohort.places * width
        self._deltas = deltas
        self._has_mrope = self._runner.model_config.model_is_mrope
        self._per_step = self._runner.lora_manager is not None
        self._prepared: dict[int, _Prepared] = {}
        self.places = batch.req_pool_indices
        self.batch = self._freeze(batch)

    def stage(self, slot: DecodeSlot) -> int:
        """Host: count a launch, and write what it reads of the rows into its slot.

        Returns:
            The sum of the rows' lengths.
        """
        launches = self._cohort.launch()
        prepared = self._prepared.get(slot.index)
        if prepared is None:
            prepared = self._prepared[slot.index] = self._prepare(slot)
        # Whatever is staged grows by one with every launch: lengths, positions, cells.
        prepared.staged += launches - prepared.launches
        prepared.launches = launches
        return self._total + launches * self._rows

    def run_on_lane(self, slot: DecodeSlot, relay: TokenRelay, *, total: int) -> Any:
        """Forward, without sampling.

        Args:
            slot: the step's, staged.
            relay: where the input tokens come from.
            total: what `stage` returned.
        """
        prepared = self._prepared[slot.index]
        if prepared.inputs is not None:
            device, host = prepared.inputs
            device.copy_(host, non_blocking=True)
        prepared.kv_slots.copy_(self._cells.take(prepared.cells))
        forward_batch = ForwardBatch.__new__(ForwardBatch)
        fields = self._build(slot).__dict__ if prepared.fields is None else prepared.fields
        forward_batch.__dict__.update(fields)
        forward_batch.input_ids = relay.take_on_lane(self, prepared.input_ids)
        forward_batch.seq_lens_sum = total
        return self._worker.forward_batch_generation(None, forward_batch=forward_batch)

    def _prepare(self, slot: DecodeSlot) -> _Prepared:
        rows, count = self._rows, STAGED_ROWS * self._rows
        staged = slot.staged[:count].numpy().reshape(STAGED_ROWS, rows)
        staged[LENGTHS] = self._cohort.lengths
        staged[POSITIONS] = self._cohort.lengths - 1
        staged[CELLS] = staged[POSITIONS] + self._first_cells
        staged[MROPE] = staged[POSITIONS] + self._deltas
        one = slot.inputs is slot.staged
        return _Prepared(
            staged=staged,
            launches=0,
            inputs=None if one else (slot.inputs[:count], slot.staged[:count]),
            cells=slot.inputs[:count].view(STAGED_ROWS, rows)[CELLS],
            kv_slots=slot.kv_slots[:rows],
            input_ids=slot.input_ids[:rows],
            fields=self._fields(slot),
        )

    def _fields(self, slot: DecodeSlot) -> dict[str, Any] | None:
        """A `ForwardBatch`'s fields for the slot, from those of another cohort."""
        if self._per_step:
            return None
        mode = self.batch.return_hidden_states_mode
        common = self._common.get(mode)
        if common is None:
            common = self._common[mode] = self._build(slot).__dict__
        if common["global_num_token_non_padded"] is not None or common["mm_token_modalities"]:
            return self._build(slot).__dict__
        made = ForwardBatch.__new__(ForwardBatch)
        made.__dict__.update(common, **self._own_fields(slot))
        translator = self._runner.kv_index_translator
        translator.own_plan(made).bind(made, translator)
        return made.__dict__

    def _own_fields(self, slot: DecodeSlot) -> dict[str, Any]:
        """What two cohorts' batches do not have in common."""
        batch, rows = self.batch, self._rows
        inputs = slot.inputs[: STAGED_ROWS * rows].view(STAGED_ROWS, rows)
        return {
            "batch_size": rows,
            "req_pool_indices": self.places,
            "seq_lens": inputs[LENGTHS],
            "seq_lens_cpu": slot.staged[:rows],
            "orig_seq_lens": inputs[LENGTHS],
            "out_cache_loc": slot.kv_slots[:rows],
            "input_ids": slot.input_ids[:rows],
            "positions": inputs[POSITIONS],
            "mrope_positions": inputs[MROPE] if self._has_mrope else None,
            "mm_inputs": batch.multimodal_inputs,
            "sampling_info": batch.sampling_info,
            "return_logprob": batch.return_logprob,
            "top_logprobs_nums": batch.top_logprobs_nums,
            "token_ids_logprobs": batch.token_ids_logprobs,
            "global_num_token_non_padded_cpu": rows,
            "lora_ids": [req.lora_id for req in batch.reqs],
            "rids": [req.rid for req in batch.reqs],
            "seq_lens_sum": 0,
        }

    def _build(self, slot: DecodeSlot) -> ForwardBatch:
        """SGLang's own construction, over the slot's buffers."""
        own = self._own_fields(slot)
        batch = copy.copy(self.batch)
        for name in ("seq_lens", "seq_lens_cpu", "orig_seq_lens", "out_cache_loc", "input_ids"):
            setattr(batch, name, own[name])
        batch.seq_lens_sum = 0
        if self._has_mrope:
            # Positions are staged; SGLang would read the requests' deltas one by one.
            batch.multimodal_inputs = [None] * self._rows
        made = ForwardBatch.init_new(batch, self._runner, return_hidden_states_before_norm=False)
        for name in ("mm_inputs", "positions", "mrope_positions"):
            setattr(made, name, own[name])
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
        info.grammars = [req.grammar for req in frozen.reqs] if batch.has_grammar else None
        frozen.sampling_info = info
        return frozen
