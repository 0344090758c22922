"""KV slots for steps to come: nobody gets a slot twice, beyond its life, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_photon.rows.ahead import STEPS_AHEAD, demand, steps_for
from sglang_photon.rows.table import RowTable

WIDTH = 200

row = st.tuples(
    st.integers(1, 90), st.integers(0, 40), st.integers(1, 60)
)  # length, slots it has beyond that, tokens it may live


@given(
    rows=st.lists(row, min_size=1, max_size=8),
    steps=st.integers(1, 40),
    page=st.sampled_from([1, 4, 16]),
)
def test_each_row_gets_the_cells_up_to_its_next_steps_or_its_end(
    rows: list[tuple[int, int, int]], steps: int, page: int
) -> None:
    table = RowTable(places=len(rows), vocab=10)
    for place, (length, more, life) in enumerate(rows):
        table.seq_len[place] = length
        table.reserved[place] = -(-(length + more) // page) * page
        table.final_len[place] = length + life
    need = demand(
        table=table, places=np.arange(len(rows)), steps=steps, page_size=page, width=WIDTH
    )
    expected = []
    for place, (length, _, life) in enumerate(rows):
        target = -(-min(length + steps, length + life) // page) * page
        expected += [place * WIDTH + cell for cell in range(int(table.reserved[place]), target)]
    assert need.cells(width=WIDTH).tolist() == expected
    assert need.slots == len(expected)
    assert all(count % page == 0 for count in need.counts.tolist())


def test_a_row_never_gets_cells_beyond_the_table() -> None:
    table = RowTable(places=1, vocab=10)
    table.seq_len[0], table.reserved[0], table.final_len[0] = 190, 192, 900
    need = demand(table=table, places=np.array([0]), steps=50, page_size=16, width=205)
    assert need.slots == 0
    need = demand(table=table, places=np.array([0]), steps=50, page_size=1, width=205)
    assert need.cells(width=205).tolist() == list(range(192, 205))


@pytest.mark.parametrize(
    ("free", "rows", "page", "steps"),
    [
        (10**6, 64, 1, STEPS_AHEAD),
        (10**6, 1, 64, STEPS_AHEAD),
        (64 * STEPS_AHEAD * 4, 64, 1, STEPS_AHEAD),
        (64 * STEPS_AHEAD * 4 - 1, 64, 1, STEPS_AHEAD // 2),
        (0, 64, 1, 1),
        (1000, 64, 64, 1),
    ],
)
def test_fewer_steps_ahead_where_the_pool_is_nearly_full(
    free: int, rows: int, page: int, steps: int
) -> None:
    assert steps_for(free=free, rows=rows, page_size=page) == steps
