"""Results in the order of the input, although they come in another.

The results file holds them as they came; of each, only its place in that file is remembered.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from sglang_photon.batch.journal import disk_problem
from sglang_photon.batch.store import Span


class Ordered:
    """Follows the results file in the order of the input.

    Args:
        results: the file with the results as they came.
        output: file to copy them into, as far as nothing is missing before; None only remembers
            the order.
    """

    def __init__(self, *, results: Path, output: Path | None) -> None:
        self._results = os.open(results, os.O_RDONLY)
        self._path = output or results
        try:
            self._output: IO[bytes] | None = None if output is None else output.open("wb")
        except OSError as error:
            os.close(self._results)
            raise disk_problem(self._path, error) from None
        self._early: dict[int, Span | None] = {}
        self._next = 0
        self._order = array("Q")

    def add(self, place: int, span: Span | None) -> None:
        """The row at that place (from 0) has ended; with a result, or without one.

        Raises:
            PhotonError: the output cannot be written.
        """
        self._early[place] = span
        while self._next in self._early:
            self._put(self._early.pop(self._next))
            self._next += 1

    def flush(self) -> None:
        """Let others see what has been written."""
        if self._output is not None:
            try:
                self._output.flush()
            except OSError as error:
                raise disk_problem(self._path, error) from None

    def finish(self, others: Iterable[Span]) -> None:
        """No more rows will come: gaps close, and results of rows outside the input follow.

        Raises:
            PhotonError: the output cannot be written.
        """
        for place in sorted(self._early):
            self._put(self._early[place])
        self._early.clear()
        for span in others:
            self._put(span)
        self.flush()
        if self._output is not None:
            os.fsync(self._output.fileno())

    def spans(self) -> Iterator[Span]:
        """Where the results stand, in order."""
        for index in range(0, len(self._order), 2):
            yield Span(self._order[index], self._order[index + 1])

    def close(self) -> None:
        """Close both files."""
        os.close(self._results)
        if self._output is not None:
            self._output.close()

    def _put(self, span: Span | None) -> None:
        if span is None:
            return
        self._order.extend(span)
        if self._output is not None:
            try:
                self._output.write(os.pread(self._results, span.length, span.offset))
            except OSError as error:
                raise disk_problem(self._path, error) from None
