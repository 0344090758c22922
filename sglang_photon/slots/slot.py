"""`DecodeSlot`: the buffers and events of one step, made once, at fixed addresses.

A step's tokens are copied to the host while the next step runs. A buffer allocated per step would
take pinned memory from the driver in the middle of serving, which waits for the device; a buffer
shared by both steps would be overwritten while the host reads it. So each of the two slots owns
one, sized for the largest batch, and `Pipeline` decides when it may be used again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSlot:
    """The working set of one step.

    Attributes:
        index: 0 or 1; `LaunchHandle.slot` refers to it.
        token_ids: (max_rows,) int64 in host memory, pinned beside a CUDA device: the sampled
            tokens as the host reads them.
    """

    index: int
    token_ids: torch.Tensor

    @classmethod
    def allocate(cls, *, index: int, max_rows: int, pinned: bool) -> DecodeSlot:
        """Make the buffers of one slot.

        Args:
            index: which slot.
            max_rows: rows of the largest batch, prefill included.
            pinned: page-locked, so that a copy from the device runs beside the forward.
        """
        return cls(
            index=index,
            token_ids=torch.zeros(max_rows, dtype=torch.int64, pin_memory=pinned),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the slot holds."""
        return int(self.token_ids.nbytes)

    def describe(self) -> str:
        """One line for the log at start."""
        kind = "pinned" if self.token_ids.is_pinned() else "pageable"
        return f"slot {self.index}: {len(self.token_ids)} rows, {self.nbytes} bytes, {kind}"
