"""`DecodeSlot`: the buffers of one step, made once, at fixed addresses.

A step's inputs go to the device, and its tokens come back, while another step runs. A buffer that
is allocated per step would take pinned memory from the driver in the middle of serving, which waits
for the device; a buffer shared by both steps would be overwritten while it is read. So each of the
two slots owns its own, sized for the largest batch, and `Pipeline` decides when they may be used
again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STAGED_ROWS = 6
"""Numbers that a decode step reads of each of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSlot:
    """The working set of one step.

    Attributes:
        index: 0 or 1; `LaunchHandle.slot` refers to it.
        token_ids: (max_rows,) int64 in host memory, pinned beside a CUDA device: the sampled
            tokens as the host reads them.
        staged: (6 * max_rows,) int64 in host memory, pinned likewise: what a decode step reads of
            its rows, as the host writes it. A step of `rows` uses the first 6 * rows of it.
        inputs: the same on the device; the same memory where host and device are one.
        input_ids: (max_rows,) int64 on the device: the tokens that a decode step reads.
        kv_slots: (max_rows,) int64 on the device: the KV slots that a decode step writes.
    """

    index: int
    token_ids: torch.Tensor
    staged: torch.Tensor
    inputs: torch.Tensor
    input_ids: torch.Tensor
    kv_slots: torch.Tensor

    @classmethod
    def allocate(
        cls, *, index: int, max_rows: int, pinned: bool = False, device: str = "cpu"
    ) -> DecodeSlot:
        """Make the buffers of one slot.

        Args:
            index: which slot.
            max_rows: rows of the largest batch, prefill included.
            pinned: page-locked, so that copies run beside the forward.
            device: where forwards run.
        """
        staged = torch.zeros(STAGED_ROWS * max_rows, dtype=torch.int64, pin_memory=pinned)
        return cls(
            index=index,
            token_ids=torch.zeros(max_rows, dtype=torch.int64, pin_memory=pinned),
            staged=staged,
            inputs=staged if device == "cpu" else staged.to(device),
            input_ids=torch.zeros(max_rows, dtype=torch.int64, device=device),
            kv_slots=torch.zeros(max_rows, dtype=torch.int64, device=device),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the slot holds."""
        return int(self.token_ids.nbytes + self.staged.nbytes)

    def describe(self) -> str:
        """One line for the log at start."""
        kind = "pinned" if self.token_ids.is_pinned() else "pageable"
        return f"slot {self.index}: {len(self.token_ids)} rows, {self.nbytes} bytes, {kind}"
