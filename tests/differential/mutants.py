"""Each invariant of the two-slot loop, broken on purpose: the tests must notice every one.

A mutant is a context in which one thing is done wrong; `tests/differential/test_mutants.py` plays
the same schedule inside it and asks what gave it away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from sglang_photon.loop.ledger import Ledger
from sglang_photon.records import PendingCommit
from sglang_photon.rows.ends import EndTable
from sglang_photon.slots.slot import DecodeSlot
from sglang_photon.slots.state import Pipeline
from sglang_photon.upstream import row_batch, row_step
from sglang_photon.upstream.row_batch import RowBatch
from sglang_photon.upstream.row_step import RowStep
from sglang_photon.upstream.takeover import CUMULATE, PenaltyClock


@contextmanager
def _replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, make(getattr(owner, name)))
        yield


def commit_out_of_order() -> AbstractContextManager[None]:
    """P2: the newest step is committed first."""

    def mutate(original: Any) -> Any:
        def begin_commit(self: Pipeline) -> PendingCommit:
            self._flight.reverse()
            pending: PendingCommit = original(self)
            self._flight.reverse()
            return pending

        return begin_commit

    return _replacing(Pipeline, "begin_commit", mutate)


@contextmanager
def slot_free_at_pop() -> Iterator[None]:
    """P4: a slot is free as soon as its step is popped."""

    def early(original: Any) -> Any:
        def begin_commit(self: Pipeline) -> PendingCommit:
            pending: PendingCommit = original(self)
            self._free.append(pending.handle.slot)
            return pending

        return begin_commit

    def late(original: Any) -> Any:
        def finish_commit(self: Pipeline, pending: PendingCommit) -> tuple[int, ...]:
            released: tuple[int, ...] = original(self, pending)
            self._free.pop()
            return released

        return finish_commit

    with _replacing(Pipeline, "begin_commit", early), _replacing(Pipeline, "finish_commit", late):
        yield


def freed_at_finalize() -> AbstractContextManager[None]:
    """P5: a row's pages go at once, while a step in flight still writes to them."""

    def mutate(original: Any) -> Any:
        def finalize(self: Ledger, request: Any, release: Callable[[], None]) -> None:
            release()
            original(self, request, lambda: None)

        return finalize

    return _replacing(Ledger, "finalize", mutate)


def never_freed() -> AbstractContextManager[None]:
    """P5: the release of a zombie is forgotten."""

    def mutate(original: Any) -> Any:
        def take(self: Ledger, rows: Any) -> list[Callable[[], None]]:
            return []

        return take

    return _replacing(Ledger, "take", mutate)


def mask_of_another_row() -> AbstractContextManager[None]:
    """A grammar's mask lands on the next row."""

    def mutate(original: Any) -> Any:
        def update(self: SamplingBatchInfo) -> None:
            if self.grammars:
                self.grammars = self.grammars[-1:] + self.grammars[:-1]
            original(self)

        return update

    return _replacing(SamplingBatchInfo, "update_regex_vocab_mask", mutate)


def stale_token() -> AbstractContextManager[None]:
    """The relay hands on the tokens of the step before."""

    def mutate(original: Any) -> Any:
        kept: list[torch.Tensor] = []

        @wraps(original)
        def stash(self: FutureMap, indices: torch.Tensor, payload: Any) -> None:
            kept.append(payload.bonus_tokens)
            if len(kept) > 1 and len(kept[-1]) == len(kept[-2]):
                payload.bonus_tokens = kept[-2]
            original(self, indices, payload)

        return stash

    return _replacing(FutureMap, "stash", mutate)


def zombie_counted() -> AbstractContextManager[None]:
    """A zombie's token is counted as if a client had seen it."""

    def mutate(original: Any) -> Any:
        def commit(self: RowStep, *, zombies: int) -> None:
            with _replacing(
                row_step, "count_step", lambda count: _counting(count, len(self.riders))
            ):
                original(self, zombies=zombies)

        return commit

    return _replacing(RowStep, "commit", mutate)


def _counting(count: Any, tokens: int) -> Any:
    def count_step(*args: Any, **rest: Any) -> None:
        count(*args, **{**rest, "tokens": tokens})

    return count_step


def penalty_of_the_token_before() -> AbstractContextManager[None]:
    """Penalties are counted when the step is planned, as SGLang's overlap loop does."""
    return _replacing(
        PenaltyClock, "cumulate", lambda original: lambda self, batch: CUMULATE(batch)
    )


def sampled_too_early() -> AbstractContextManager[None]:
    """A constrained step is sampled before the commit of the step before."""
    return _replacing(row_batch, "needs_newest_token", lambda original: lambda batch: False)


def one_buffer_for_both_slots() -> AbstractContextManager[None]:
    """The tokens of both steps are copied to the same memory."""

    def mutate(original: Any) -> Any:
        made: list[DecodeSlot] = []

        def allocate(**asked: Any) -> DecodeSlot:
            made.append(original(**asked))
            return dataclasses.replace(made[-1], token_ids=made[0].token_ids)

        return allocate

    return _replacing(DecodeSlot, "allocate", mutate)


def one_staging_for_both_slots() -> AbstractContextManager[None]:
    """The host writes the inputs of a step where the step in flight reads its own."""

    def mutate(original: Any) -> Any:
        made: list[DecodeSlot] = []

        def allocate(**asked: Any) -> DecodeSlot:
            made.append(original(**asked))
            return dataclasses.replace(made[-1], staged=made[0].staged, inputs=made[0].inputs)

        return allocate

    return _replacing(DecodeSlot, "allocate", mutate)


def slots_not_given_back() -> AbstractContextManager[None]:
    """KV slots that a row held for steps to come are forgotten when it leaves."""

    def mutate(original: Any) -> Any:
        def leave(self: RowBatch, req: Any) -> None:
            place = self._members.get(req)
            if place is not None:
                self._table.reserved[place] = 0
            original(self, req)

        return leave

    return _replacing(RowBatch, "leave", mutate)


def a_look_too_few() -> AbstractContextManager[None]:
    """A token that ends a request is not looked at."""
    return _replacing(
        EndTable, "hits", lambda original: lambda self, tokens: original(self, tokens) & False
    )


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    mutant.__name__: mutant
    for mutant in (
        commit_out_of_order,
        slot_free_at_pop,
        freed_at_finalize,
        never_freed,
        mask_of_another_row,
        stale_token,
        zombie_counted,
        penalty_of_the_token_before,
        sampled_too_early,
        one_buffer_for_both_slots,
        one_staging_for_both_slots,
        slots_not_given_back,
        a_look_too_few,
    )
}
