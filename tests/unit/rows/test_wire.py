"""Packed columns: what goes in comes out, and belongs to whoever unpacked it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_photon.rows import wire

NAMES = ("rid", "count", "details")
values = st.tuples(st.text(), st.integers(), st.none() | st.dictionaries(st.text(), st.integers()))


@given(rows=st.lists(values, min_size=1, max_size=5))
def test_columns_come_back_in_order(rows: list[tuple[Any, ...]]) -> None:
    header = wire.pack_header(NAMES, [wire.pack_row(row) for row in rows])
    found = wire.columns(header)
    assert list(found) == list(NAMES)
    assert list(zip(*found.values(), strict=True)) == rows


def test_a_receiver_may_change_its_lists() -> None:
    header = wire.pack_header(("rid",), [wire.pack_row(("a",)), wire.pack_row(("b",))])
    wire.columns(header)["rid"].clear()
    assert wire.columns(header)["rid"] == ["a", "b"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_tokens_come_back(tokens: list[int]) -> None:
    assert wire.tokens_of(np.array(tokens, np.int64).tobytes()) == tokens
    assert [list(one) for one in wire.each_alone(tokens)] == [[token] for token in tokens]
