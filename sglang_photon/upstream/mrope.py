"""Positions of rows with pictures, without waiting for the device.

In models with multimodal rotary embeddings each decode step adds a row's offset to its position.
SGLang makes a tensor of the offsets on the device from a Python list: a copy from pageable memory,
after which PyTorch waits for the stream, and with it for the step in flight. In every decode step
with a picture the next forward then starts on a device that has run dry. Here the copy starts from
pinned memory, and nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_exec

COMPUTE: Callable[..., None] = ForwardBatch._compute_mrope_positions_decode
"""Upstream's own."""


def positions_of_decode(self: ForwardBatch, model_runner: Any, batch: Any) -> None:
    """In place of `ForwardBatch._compute_mrope_positions_decode`: (3, rows) int64 positions."""
    inputs = batch.multimodal_inputs
    if _is_special(inputs, self.seq_lens_cpu):
        COMPUTE(self, model_runner, batch)
        return
    offsets = [_offset(one) for one in inputs]
    on_host = torch.tensor(offsets, dtype=torch.int64, pin_memory=model_runner.device == "cuda")
    on_device = on_host.to(model_runner.device, non_blocking=True)
    positions = on_device - 1 + self.seq_lens.to(torch.int64)
    self.mrope_positions = positions.unsqueeze(0).repeat(3, 1)


def _is_special(inputs: list[Any], lengths: torch.Tensor) -> bool:
    """No pictures at all, or positions that are not an offset: upstream's affair."""
    if get_exec().deterministic.rl_on_policy_target is not None:
        return True
    ends = zip(inputs, lengths.tolist(), strict=True)
    shown = [(one, length) for one, length in ends if one is not None]
    return not shown or any(
        one.mrope_positions is not None and one.mrope_positions.shape[1] >= length
        for one, length in shown
    )


def _offset(one: Any) -> int:
    return 0 if one is None else int(one.mrope_position_delta)
