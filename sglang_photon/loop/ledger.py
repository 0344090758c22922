"""`Ledger`: which request is which row, and what is still to be released.

The engine says that a request has ended, and how to give its resources back. While a step in flight
still computes the request, that is put aside; `Pipeline` says when the last reference has gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from sglang_photon.loop.host import Release
from sglang_photon.slots.state import Pipeline


class Ledger:
    """Requests that ride, by identity, and the releases that wait.

    Args:
        pipeline: names rows and counts their references.
    """

    def __init__(self, *, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._rows: dict[Hashable, int] = {}
        self._parked: dict[int, Release] = {}

    def __len__(self) -> int:
        return len(self._rows) + len(self._parked)

    def row(self, request: Hashable) -> int:
        """The request's row, opened if it rides for the first time."""
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = self._pipeline.open_row()
        return row

    def finalize(self, request: Hashable, release: Release) -> None:
        """The request has its result: release now, or when its last step is committed. P5.

        A request that never rode holds nothing that a step could use, and is released at once.
        """
        row = self._rows.pop(request, None)
        if row is None or self._pipeline.finalize(row):
            release()
        else:
            self._parked[row] = release

    def withdraw(self, request: Hashable) -> None:
        """The request leaves without a result (retracted) and may come back as another row.

        Raises:
            RowInFlightError: a step still computes it.
        """
        row = self._rows.pop(request, None)
        if row is not None:
            self._pipeline.withdraw(row)

    def take(self, rows: Iterable[int]) -> list[Release]:
        """The releases of rows that the pipeline has let go."""
        return [self._parked.pop(row) for row in rows]
