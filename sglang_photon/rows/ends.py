"""`EndTable`: which of a step's tokens may end a request, in two vector operations.

A token is looked up in one table for all requests, so a hit means "may end somebody": whether it
ends the request that sampled it is then asked of that request alone. Tokens outside the vocabulary
(a NaN in the logits) are always hits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FORGET_AT = 4096
"""Watched tokens at which the table is begun anew: clients may choose stop ids at will."""


class EndTable:
    """The tokens that may end a request.

    Args:
        vocab: size of the vocabulary.
    """

    def __init__(self, *, vocab: int) -> None:
        self._vocab = np.uint64(vocab)
        self._marks = np.zeros(vocab + 1, np.bool_)
        self._marks[vocab] = True
        self._watched: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether so much is watched that it should be forgotten, and asked for again."""
        return len(self._watched) >= FORGET_AT

    def watch(self, tokens: Iterable[int]) -> None:
        """Watch these tokens too; what is outside the vocabulary is watched anyway."""
        new = {token for token in tokens if 0 <= token < int(self._vocab)} - self._watched
        if new:
            self._marks[list(new)] = True
            self._watched |= new

    def forget(self) -> None:
        """Watch nothing; the requests that run have to be watched again."""
        self._marks[list(self._watched)] = False
        self._watched.clear()

    def hits(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the tokens, (rows,), may end a request."""
        found: NDArray[np.bool_] = self._marks[np.minimum(tokens.view(np.uint64), self._vocab)]
        return found
