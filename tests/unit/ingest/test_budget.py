"""Bytes are shared in order of arrival, and always come back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_photon.ingest.budget import BudgetExceededError, ByteBudget, RequestTooLargeError

LONG = 60.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_fits_is_admitted_at_once() -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100)
        shares = [await budget.take(50), await budget.take(50)]
        assert budget.stats.held == budget.stats.peak == 100
        for share in shares:
            share.release()
            share.release()
        assert (budget.stats.held, budget.stats.admitted, budget.stats.waited) == (0, 2, 0)

    run(test())


def test_what_does_not_fit_waits_and_nobody_overtakes() -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100, patience=LONG)
        first = await budget.take(60)
        large = asyncio.create_task(budget.take(80))
        await settle()
        small = asyncio.create_task(budget.take(10))
        await settle()
        assert not large.done()
        assert not small.done()
        first.shrink(15)
        await settle()
        assert large.done()
        assert not small.done()
        (await large).release()
        (await small).release()
        first.release()
        assert (budget.stats.held, budget.stats.waited) == (0, 2)

    run(test())


def test_after_its_patience_a_request_is_refused_and_holds_nothing() -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100, patience=0.01)
        share = await budget.take(60)
        with pytest.raises(BudgetExceededError, match="Come back"):
            await budget.take(50)
        share.release()
        assert (budget.stats.held, budget.stats.refused) == (0, 1)
        (await budget.take(100)).release()

    run(test())


def test_one_that_leaves_the_queue_lets_the_next_through() -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100, patience=LONG)
        share = await budget.take(60)
        large = asyncio.create_task(budget.take(80))
        await settle()
        small = asyncio.create_task(budget.take(10))
        await settle()
        large.cancel()
        await settle()
        assert small.done()
        (await small).release()
        share.release()
        assert budget.stats.held == 0

    run(test())


def test_a_share_that_comes_as_its_owner_goes_is_not_lost() -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100, patience=LONG)
        share = await budget.take(100)
        waiting = asyncio.create_task(budget.take(100))
        await settle()
        share.release()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert budget.stats.held == 0
        (await budget.take(100)).release()

    run(test())


def test_what_would_never_fit_is_refused_at_once() -> None:
    async def test() -> None:
        with pytest.raises(RequestTooLargeError, match="fewer or smaller"):
            await ByteBudget(limit=100).take(101)

    run(test())


@settings(deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "cancel", "release"]), st.integers(0, 120)),
        max_size=30,
    )
)
@pytest.mark.timeout(120)
def test_the_limit_holds_and_everything_comes_back(steps: list[tuple[str, int]]) -> None:
    async def test() -> None:
        budget = ByteBudget(limit=100, patience=LONG)
        tasks: list[asyncio.Task[Any]] = []
        for action, number in steps:
            if action == "take":
                tasks.append(asyncio.create_task(budget.take(number)))
            elif tasks and action == "cancel":
                tasks[number % len(tasks)].cancel()
            elif tasks:
                done = [task for task in tasks if task.done() and not task.cancelled()]
                for task in done[: number % 3]:
                    if task.exception() is None:
                        task.result().release()
            await settle()
            assert 0 <= budget.stats.held <= budget.limit
        for task in tasks:
            if not task.done():
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.release()
        assert budget.stats.held == 0

    run(test())
