"""Rows by place, and what a cohort counts down."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_photon.rows.table import Cohort, RowTable


def table_of(*rows: tuple[int, int, int]) -> tuple[RowTable, Cohort]:
    """Rows of (length, reserved, final length) at places 3, 2, 1, ..."""
    table = RowTable(places=len(rows) + 1, vocab=100)
    places = np.arange(len(rows), 0, -1)
    for place, (length, reserved, final) in zip(places, rows, strict=True):
        table.seq_len[place] = length
        table.reserved[place] = reserved
        table.final_len[place] = final
    return table, Cohort(table=table, requests=[object() for _ in rows], places=places)


def test_a_cohort_counts_down_to_the_first_end_and_the_first_missing_slot() -> None:
    _, cohort = table_of((5, 9, 30), (7, 20, 12), (1, 8, 40))
    assert (cohort.launches_left, cohort.kv_left) == (5, 4)
    assert cohort.lengths.tolist() == [5, 7, 1]
    assert [cohort.launch(), cohort.launch()] == [1, 2]
    assert (cohort.launches_left, cohort.kv_left) == (3, 2)


def test_launches_reach_the_table_when_they_are_settled_and_once() -> None:
    table, cohort = table_of((5, 9, 30), (7, 20, 12))
    for _ in range(3):
        cohort.launch()
    assert table.seq_len[cohort.places].tolist() == [5, 7]
    cohort.settle()
    cohort.settle()
    assert table.seq_len[cohort.places].tolist() == [8, 10]
    cohort.launch()
    cohort.settle()
    assert table.seq_len[cohort.places].tolist() == [9, 11]


def test_more_slots_start_the_countdown_again() -> None:
    table, cohort = table_of((5, 6, 30), (7, 8, 30))
    cohort.launch()
    assert cohort.kv_left == 0
    cohort.settle()
    table.reserved[cohort.places] += 16
    cohort.slots_were_added()
    assert cohort.kv_left == 16


@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6),
    launches=st.integers(0, 60),
)
def test_the_countdown_is_what_walking_over_the_rows_would_find(
    rows: list[tuple[int, int]], launches: int
) -> None:
    table, cohort = table_of(*((length, 1000, length + left) for length, left in rows))
    for _ in range(launches):
        cohort.launch()
    cohort.settle()
    left = table.final_len[cohort.places] - table.seq_len[cohort.places]
    assert cohort.launches_left == left.min()
