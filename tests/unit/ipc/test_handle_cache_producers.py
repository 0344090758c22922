"""The handle cache when producers die, restart, or send bytes that were sent before."""

from __future__ import annotations

import pytest

from sglang_photon.ipc.handles import HandleBusyError, StaleHandleError
from tests.unit.ipc.driver import Driver, Gate, key, touch


def test_invalidate_takes_all_of_the_producer_and_nothing_else(driver: Driver) -> None:
    cache = driver.cache(max_entries=10)
    others = {key("c", producer="other"), key("d", producer="other", device=1)}
    touch(cache, key("a"), key("b"), key("a", device=1), *others)
    cache.invalidate("worker", 1)
    assert driver.keys() == others
    assert cache.counters().invalidations == 3
    with pytest.raises(StaleHandleError):
        cache.get(key("a"))
    assert cache.counters().refused == 1


def test_a_newer_generation_invalidates_the_older(driver: Driver) -> None:
    cache = driver.cache(max_entries=10)
    touch(cache, key("a"), key("b"))
    touch(cache, key("c", generation=3))
    assert driver.keys() == {key("c", generation=3)}
    for gone in (1, 2):
        with pytest.raises(StaleHandleError):
            cache.get(key("a", generation=gone))


def test_a_late_report_of_a_death_leaves_the_newer_generation_alone(driver: Driver) -> None:
    cache = driver.cache()
    touch(cache, key(generation=2))
    cache.invalidate("worker", 1)
    assert driver.keys() == {key(generation=2)}


def test_a_producer_may_die_before_it_was_ever_read(driver: Driver) -> None:
    cache = driver.cache()
    cache.invalidate("worker", 1)
    with pytest.raises(StaleHandleError):
        cache.get(key())
    touch(cache, key(generation=2))
    assert driver.opens[key()] == 0


def test_reused_bytes_are_never_read_through_the_old_mapping(driver: Driver) -> None:
    cache = driver.cache()
    old = cache.get(key(generation=1))
    with pytest.raises(HandleBusyError):
        cache.get(key(generation=2))
    old.release()
    with cache.get(key(generation=2)) as new:
        assert new.mapping.key.generation == 2


def test_reused_bytes_behind_a_passed_fence_are_opened_anew(driver: Driver) -> None:
    cache = driver.cache()
    fence = Gate()
    with cache.get(key(generation=1)) as lease:
        lease.guard(fence)
    with pytest.raises(HandleBusyError):
        cache.get(key(generation=2))
    fence.passed = True
    with cache.get(key(generation=2)) as new:
        assert new.mapping.key.generation == 2


def test_bytes_that_move_to_another_producer_are_opened_anew(driver: Driver) -> None:
    cache = driver.cache()
    touch(cache, key(producer="a"))
    with cache.get(key(producer="b")) as lease:
        assert lease.mapping.key.producer == "b"
        with pytest.raises(HandleBusyError):
            cache.get(key(producer="a"))
    assert cache.counters().evictions == 1


def test_a_producer_that_dies_during_the_open_gets_no_entry(driver: Driver) -> None:
    cache = driver.cache()
    driver.on_open = lambda _: cache.invalidate("worker", 1)
    with pytest.raises(StaleHandleError):
        cache.get(key())
    assert driver.keys() == set()
    assert cache.counters().discarded == 1
    assert cache.counters().entries == 0
