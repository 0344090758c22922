"""`Ledger`: which request is which row, and what is still to be released.

The engine says that a request has ended, and how to give its resources back. While a step in flight
still computes the request, that is put aside; `Pipeline` says when the last reference has gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from sglang_photon.loop.host import Release
from sglang_photon.slots.state import Pipeline, PipelineError


class RidesTwiceError(PipelineError):
    """A request that is in one step twice: it would be committed twice."""


class Ledger:
    """Requests that ride, by identity, and the releases that wait.

    Args:
        pipeline: names rows and counts their references.
    """

    def __init__(self, *, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._rows: dict[Hashable, int] = {}
        self._parked: dict[int, Release] = {}
        self._last: tuple[Sequence[Hashable], frozenset[int]] = ((), frozenset())

    def __len__(self) -> int:
        return len(self._rows) + len(self._parked)

    def rows(self, requests: Sequence[Hashable]) -> frozenset[int]:
        """The rows of a step's requests, opened for those that ride for the first time.

        A decode batch rides in step after step: the same sequence object has the same rows, until
        one of its requests leaves.

        Raises:
            RidesTwiceError: a request is in the sequence twice.
        """
        if requests is self._last[0]:
            return self._last[1]
        rows = frozenset(map(self._row, requests))
        if len(rows) != len(requests):
            raise RidesTwiceError("A request is in one step twice")
        self._last = (requests, rows)
        return rows

    def finalize(self, request: Hashable, release: Release) -> None:
        """The request has its result: release now, or when its last step is committed. P5.

        A request that never rode holds nothing that a step could use, and is released at once.
        """
        row = self._leave(request)
        if row is None or self._pipeline.finalize(row):
            release()
        else:
            self._parked[row] = release

    def withdraw(self, request: Hashable) -> None:
        """The request leaves without a result (retracted) and may come back as another row.

        Raises:
            RowInFlightError: a step still computes it.
        """
        row = self._leave(request)
        if row is not None:
            self._pipeline.withdraw(row)

    def take(self, rows: Iterable[int]) -> list[Release]:
        """The releases of rows that the pipeline has let go."""
        return [self._parked.pop(row) for row in rows]

    def _row(self, request: Hashable) -> int:
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = self._pipeline.open_row()
        return row

    def _leave(self, request: Hashable) -> int | None:
        self._last = ((), frozenset())
        return self._rows.pop(request, None)
