"""`InFlight`: the slots, as SGLang's readers of `result_queue` want to see them.

Admission, idle checks and load reports ask the scheduler's `result_queue` what is in flight. On the
two-slot loop the slots are the truth; this is a read-only view of them, not a second queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from sglang_photon.loop.tick import PhotonLoop


class InFlight(Sequence[tuple[Any, None]]):
    """Pairs of (what has `reqs`, nothing): upstream never looks at a result before its turn.

    Args:
        loop: whose slots are shown.
    """

    def __init__(self, loop: PhotonLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return self._loop.pipeline.in_flight

    @overload
    def __getitem__(self, index: int) -> tuple[Any, None]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Any, None]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return [(work, None) for work in self._loop.in_flight()][index]
