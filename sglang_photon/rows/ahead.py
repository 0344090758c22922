"""KV slots for the steps to come: how many each row gets, and which cells of the table they fill.

Allocating for every step costs a slice of the free list, a scatter into `req_to_token` and a walk
over the requests. Here each row holds slots for its next steps: one allocation and one scatter in
`STEPS_AHEAD` steps. Where the pool is nearly full, fewer; at the end one step, or one page, which
is what SGLang takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sglang_photon.rows.table import Places, RowTable

STEPS_AHEAD = 32
"""Steps that a row holds KV slots for, while there is room."""

GENEROUS_SHARE = 4
"""More than one step ahead is only taken out of this fraction of the free slots: the rest is for
whoever is waiting."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a reservation takes.

    Attributes:
        places: (rows,) whose rows grow.
        start: (rows,) their first new position; a multiple of the page size.
        counts: (rows,) their new slots; multiples of the page size.
    """

    places: Places
    start: Places
    counts: Places

    @property
    def slots(self) -> int:
        """KV slots in all."""
        return int(self.counts.sum())

    def cells(self, *, width: int) -> Places:
        """(slots,) flat indices into `req_to_token`, (places, width), row after row."""
        count = int(self.counts[0]) if len(self.counts) else 0
        if (self.counts == count).all():
            starts: Places = self.places * width + self.start
            cells: Places = np.add.outer(starts, np.arange(count)).ravel()
            return cells
        first = np.cumsum(self.counts) - self.counts
        offsets = np.arange(self.slots) - np.repeat(first, self.counts)
        apart: Places = np.repeat(self.places * width + self.start, self.counts) + offsets
        return apart


def demand(*, table: RowTable, places: Places, steps: int, page_size: int, width: int) -> Demand:
    """Slots for so many more launches, as far as the rows will live.

    Args:
        table: the rows.
        places: (rows,) which.
        steps: launches to reserve for.
        page_size: slots per KV page.
        width: positions that a row of `req_to_token` has.
    """
    target = np.minimum(table.seq_len[places] + steps, table.final_len[places])
    target = -(-target // page_size) * page_size
    start = table.reserved[places]
    counts = np.minimum(target, width // page_size * page_size) - start
    growing = counts > 0
    if growing.all():
        return Demand(places=places, start=start, counts=counts)
    return Demand(places=places[growing], start=start[growing], counts=counts[growing])


def steps_for(*, free: int, rows: int, page_size: int) -> int:
    """How many steps ahead a pool with so many free slots allows; at least 1.

    Args:
        free: free slots.
        rows: rows that decode.
        page_size: slots per KV page.
    """
    steps = STEPS_AHEAD
    while steps > 1 and rows * max(steps, page_size) * GENEROUS_SHARE > free:
        steps //= 2
    return steps
