"""`RowTable` and `Cohort`: the decode batch as arrays.

SGLang keeps a decode batch as lists and tensors in batch order, rebuilt whenever somebody joins or
leaves, and walks over the requests several times per step. Here a request keeps one place for life,
the index of its row in SGLang's request pool, and what a step needs of it is in numpy arrays by
that index. Who decodes together is a `Cohort`: a list of places. It is replaced when somebody
joins or leaves, never changed, so a step in flight keeps the one that it was launched with.

What would have to be looked for in every step is counted down instead: a cohort knows how many
launches are left until a row reaches its length, or runs out of KV slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_photon.rows.ends import EndTable

Places = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max


class RowTable:
    """What is known of each decoding request, by its place.

    Args:
        places: rows of the request pool.
        vocab: tokens at or above it are no tokens.

    Attributes:
        seq_len: (places,) tokens whose keys and values are in the KV pool once every launched step
            has run.
        reserved: (places,) positions below this have a KV slot in `req_to_token`.
        final_len: (places,) `seq_len` at the last launch, if the request ends by length.
        out_len: (places,) output tokens committed.
        limit: (places,) output tokens at which it ends by length.
        ask_at: (places,) output tokens at which something is due: its end by length, or a chunk.
        delta: (places,) what M-RoPE adds to a position.
        special: (places,) needs a look after every token.
        plain: (places,) streams every token and nothing else.
        ended: (places,) has its result; steps in flight may still compute it.
        ends: the tokens that may end somebody.
    """

    def __init__(self, *, places: int, vocab: int) -> None:
        self.seq_len: Places = np.zeros(places, np.int64)
        self.reserved: Places = np.zeros(places, np.int64)
        self.final_len: Places = np.zeros(places, np.int64)
        self.out_len: Places = np.zeros(places, np.int64)
        self.limit: Places = np.zeros(places, np.int64)
        self.ask_at: Places = np.zeros(places, np.int64)
        self.delta: Places = np.zeros(places, np.int64)
        self.special: NDArray[np.bool_] = np.zeros(places, np.bool_)
        self.plain: NDArray[np.bool_] = np.zeros(places, np.bool_)
        self.ended: NDArray[np.bool_] = np.zeros(places, np.bool_)
        self.ends = EndTable(vocab=vocab)


class Cohort:
    """Requests that decode together, from the last join or leave to the next.

    Args:
        table: where their rows are.
        requests: in batch order, each once.
        places: (rows,) their places, in the same order.

    Attributes:
        requests: as a tuple: one object for all steps of the cohort.
        places: as given.
        lengths: (rows,) their `seq_len` before the first launch.
        launches: so far.
        launches_left: until some row has been launched for its last token.
        kv_left: launches until some row has no KV slot.
        retired: SGLang's own bookkeeping has taken over while a step was in flight.
    """

    def __init__(self, *, table: RowTable, requests: Sequence[Any], places: Places) -> None:
        self._table = table
        self._settled = 0
        self.requests = tuple(requests)
        self.places = places
        self.lengths: Places = table.seq_len[places]
        self.launches = 0
        self.launches_left = int((table.final_len[places] - self.lengths).min())
        self.kv_left = int((table.reserved[places] - self.lengths).min())
        self.retired = False

    def __len__(self) -> int:
        return len(self.requests)

    def launch(self) -> int:
        """Count one launch; the number of launches so far."""
        self.launches += 1
        self.launches_left -= 1
        self.kv_left -= 1
        return self.launches

    def settle(self) -> None:
        """Write the launches into the table: before anybody reads or changes a row."""
        if self.launches > self._settled:
            self._table.seq_len[self.places] += self.launches - self._settled
            self._settled = self.launches

    def slots_were_added(self) -> None:
        """After a reservation for its rows, with launches settled."""
        left = self._table.reserved[self.places] - self._table.seq_len[self.places]
        self.kv_left = int(left.min())
