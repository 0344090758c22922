"""What the two-slot loop changes in SGLang's modules while it runs, and puts back afterwards.

Some functions of SGLang assume that a step is over when its result is processed, or that nothing is
in flight. They are module globals that no subclass can reach, so they are rebound, for as long as
the loop runs:

- `release_kv_cache` frees a row at once. A zombie still writes to it: it is released when its last
  step has been committed (P5). Where a retraction calls it, the row leaves without a result.
- `ScheduleBatch.cumulate_penalty_output_tokens` counts the newest token on the host while that
  token is in flight, so it counts the one before, and the prompt's last token once. It waits until
  the newest token is known.
- `ScheduleBatch.prepare_for_decode` reads KV lengths, which lag behind while requests are rows. It
  is called for batches that are not, and, with mixed chunks, in the middle of a plan for some that
  are: their rows are handed back first.
- `SGLANG_ENABLE_DELAY_SAMPLE` asks the model worker to leave sampling to its caller.
- `ForwardBatch._compute_mrope_positions_decode` waits for the device (`mrope.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

from sglang.srt.environ import envs
from sglang.srt.managers import schedule_batch, scheduler
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler_components import batch_result_processor
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sglang_photon.loop.tick import PhotonLoop
from sglang_photon.upstream.mrope import positions_of_decode

RELEASE = release_kv_cache
"""Upstream's own, which gives a request's row and pages back."""

CUMULATE = ScheduleBatch.cumulate_penalty_output_tokens
"""Upstream's own, which counts each request's newest token on the host."""

PREPARE = ScheduleBatch.prepare_for_decode
"""Upstream's own, which gives each request of a batch one more KV slot."""


class PenaltyClock:
    """Counts a token towards penalties once it is known, not when the next step is planned.

    Args:
        settled: whether every step is committed, so that the newest token is on the host.
    """

    def __init__(self, *, settled: Callable[[], bool]) -> None:
        self._settled = settled
        self._due = False

    def take(self) -> bool:
        """Whether the plan just made left its penalties for later; asked once per plan."""
        due, self._due = self._due, False
        return due

    def cumulate(self, batch: ScheduleBatch) -> None:
        """In place of `ScheduleBatch.cumulate_penalty_output_tokens`."""
        if self._settled():
            CUMULATE(batch)
        else:
            self._due = True


class Rows(Protocol):
    """Who keeps rows of requests beside SGLang's bookkeeping."""

    def end(self, req: Any) -> None:
        """The request has its result."""

    def leave(self, req: Any) -> None:
        """The request is about to be released."""

    def withdraw(self, req: Any) -> None:
        """The request is about to be released without a result."""

    def hand_back(self, batch: Any) -> None:
        """The batch is about to be prepared by SGLang's own code."""


@contextmanager
def takeover(loop: PhotonLoop, penalties: PenaltyClock, rows: Rows | None) -> Iterator[None]:
    """Rebind the functions above for one loop."""

    def cumulate_in_time(batch: ScheduleBatch) -> None:
        penalties.cumulate(batch)

    finished = partial(_release_finished, loop, rows)
    with ExitStack() as stack:
        for module, release in (
            (batch_result_processor, finished),
            (scheduler, finished),
            (schedule_batch, partial(_release_retracted, loop, rows)),
        ):
            stack.enter_context(_rebound(module, "release_kv_cache", release))
        stack.enter_context(
            _rebound(ScheduleBatch, "cumulate_penalty_output_tokens", cumulate_in_time)
        )
        stack.enter_context(
            _rebound(ForwardBatch, "_compute_mrope_positions_decode", positions_of_decode)
        )
        if rows is not None:
            stack.enter_context(
                _rebound(ScheduleBatch, "prepare_for_decode", _preparing_after(rows))
            )
        stack.enter_context(envs.SGLANG_ENABLE_DELAY_SAMPLE.override(True))
        yield


@contextmanager
def _rebound(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _preparing_after(rows: Rows) -> Callable[[ScheduleBatch], None]:
    def prepare_for_decode(batch: ScheduleBatch) -> None:
        rows.hand_back(batch)
        PREPARE(batch)

    return prepare_for_decode


def _release_finished(
    loop: PhotonLoop, rows: Rows | None, req: Any, tree_cache: Any, *, checkpoint: bool
) -> None:
    def release() -> None:
        if rows is not None:
            rows.leave(req)
        RELEASE(req, tree_cache, checkpoint=checkpoint)

    if rows is not None:
        rows.end(req)
    loop.finalize(req, release)


def _release_retracted(
    loop: PhotonLoop, rows: Rows | None, req: Any, tree_cache: Any, *, checkpoint: bool
) -> None:
    loop.withdraw(req)
    if rows is not None:
        rows.withdraw(req)
    RELEASE(req, tree_cache, checkpoint=checkpoint)
