"""Tokens that may end a request, against a walk over sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_photon.rows.ends import FORGET_AT, EndTable

VOCAB = 300


@given(
    watched=st.sets(st.integers(-5, VOCAB + 5)),
    tokens=st.lists(st.integers(-(2**62), 2**62) | st.integers(0, VOCAB - 1)),
)
def test_a_hit_is_a_watched_token_or_no_token_at_all(watched: set[int], tokens: list[int]) -> None:
    table = EndTable(vocab=VOCAB)
    table.watch(watched)
    expected = [token in watched or not 0 <= token < VOCAB for token in tokens]
    assert table.hits(np.array(tokens, np.int64)).tolist() == expected


def test_what_is_forgotten_is_no_hit_any_more_and_can_be_watched_again() -> None:
    table = EndTable(vocab=VOCAB)
    table.watch({3, 4})
    table.forget()
    assert not table.hits(np.array([3, 4])).any()
    assert table.hits(np.array([-1, VOCAB])).all()
    table.watch({4})
    assert table.hits(np.array([3, 4])).tolist() == [False, True]


@pytest.mark.parametrize(("count", "full"), [(FORGET_AT - 1, False), (FORGET_AT, True)])
def test_stop_ids_of_clients_do_not_pile_up_for_ever(count: int, full: bool) -> None:
    table = EndTable(vocab=2 * FORGET_AT)
    table.watch(range(count))
    assert table.is_full is full
