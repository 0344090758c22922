"""The handle cache on one thread: leases, fences, bounds, dead producers, errors, counters."""

from __future__ import annotations

import gc
import logging
from dataclasses import FrozenInstanceError

import pytest

from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.ipc import handle_cache
from sglang_photon.ipc.handles import (
    HandleBusyError,
    HandleCacheClosedError,
    HandleError,
    HandleKey,
    HandleOpenError,
    LeaseReleasedError,
    StaleHandleError,
)
from tests.unit.ipc.driver import NBYTES, Driver, Gate, Mapping, key, touch


class View:
    """Something that reads a mapping."""


def test_mm_16_one_pool_read_by_two_devices_is_opened_once_by_each(driver: Driver) -> None:
    cache = driver.cache()
    for number in range(100):
        wanted = key("pool", device=number % 2)
        with cache.get(wanted) as lease:
            assert lease.mapping.key.device == number % 2
    assert driver.opens == {key("pool", device=0): 1, key("pool", device=1): 1}
    assert cache.counters().opens == 2
    assert cache.counters().hits == 98


def test_a_handle_stays_open_between_leases(driver: Driver) -> None:
    cache = driver.cache()
    with cache.get(key()) as first:
        mapping = first.mapping
    assert mapping.is_open
    with cache.get(key()) as second:
        assert second.mapping is mapping


def test_a_hit_takes_no_lock(driver: Driver) -> None:
    cache = driver.cache()
    touch(cache, key())
    assert cache._lock.acquire(blocking=False)
    touch(cache, key())
    cache._lock.release()
    assert cache.counters().hits == 1


def test_a_released_lease_cannot_be_used(driver: Driver) -> None:
    lease = driver.cache().get(key())
    lease.release()
    lease.release()
    with pytest.raises(LeaseReleasedError):
        _ = lease.mapping
    with pytest.raises(LeaseReleasedError):
        lease.guard(Gate())
    with pytest.raises(LeaseReleasedError):
        lease.keep_for(View())


# Bounds


def test_the_least_recently_used_is_evicted(driver: Driver) -> None:
    cache = driver.cache(max_entries=2)
    touch(cache, key("a"), key("b"), key("a"), key("c"))
    assert driver.keys() == {key("a"), key("c")}
    assert cache.counters().evictions == 1


def test_the_bound_in_bytes_evicts_as_many_as_it_takes() -> None:
    driver = Driver(nbytes=lambda key: 70 if key.handle == b"big" else 30)
    cache = driver.cache(max_entries=10, max_bytes=100)
    touch(cache, key("a"), key("b"), key("c"), key("big"))
    assert driver.keys() == {key("c"), key("big")}
    assert cache.counters().mapped_bytes == 100


def test_what_is_leased_is_not_evicted(driver: Driver) -> None:
    cache = driver.cache(max_entries=2)
    with cache.get(key("a")) as lease:
        touch(cache, key("b"), key("c"))
        assert lease.mapping.is_open
    assert driver.keys() == {key("a"), key("c")}


def test_an_overshoot_is_counted_once_and_corrected_by_the_first_release(driver: Driver) -> None:
    cache = driver.cache(max_entries=2)
    leases = [cache.get(key(name)) for name in "abcd"]
    assert cache.counters().entries == 4
    assert cache.counters().overshoots == 1
    leases[2].release()
    assert driver.keys() == {key("a"), key("b"), key("d")}
    leases[0].release()
    assert driver.keys() == {key("b"), key("d")}
    leases[1].release()
    assert driver.keys() == {key("b"), key("d")}
    touch(cache, key("e"))
    assert cache.counters().overshoots == 1


def test_a_mapping_larger_than_the_bound_lasts_as_long_as_its_lease(driver: Driver) -> None:
    cache = driver.cache(max_bytes=NBYTES - 1)
    with cache.get(key()) as lease:
        assert lease.mapping.is_open
        assert cache.counters().overshoots == 1
    assert driver.keys() == set()


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 1)])
def test_bounds_that_hold_nothing_are_refused(driver: Driver, bounds: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="positive"):
        driver.cache(max_entries=bounds[0], max_bytes=bounds[1])


# Views and fences


def test_a_dropped_lease_is_released(driver: Driver) -> None:
    cache = driver.cache()
    lease = cache.get(key())
    cache.invalidate("worker", 1)
    assert driver.keys() == {key()}
    del lease
    assert driver.keys() == set()


def test_a_view_keeps_its_mapping(driver: Driver) -> None:
    cache = driver.cache()
    view = View()
    cache.get(key()).keep_for(view)
    gc.collect()
    cache.invalidate("worker", 1)
    assert driver.keys() == {key()}
    del view
    assert driver.keys() == set()


def test_a_release_by_the_collector_inside_a_locked_section_closes_afterwards(
    driver: Driver,
) -> None:
    cache = driver.cache()
    lease = cache.get(key())
    cache.invalidate("worker", 1)
    with cache._exclusive():
        del lease
        assert driver.keys() == {key()}
    assert driver.keys() == set()


def test_a_fence_outlives_the_lease(driver: Driver) -> None:
    cache = driver.cache(max_entries=1)
    fence = Gate()
    with cache.get(key("a")) as lease:
        lease.mapping.fences.append(fence)
        lease.guard(fence)
    touch(cache, key("b"))
    assert driver.keys() == {key("a")}  # b was over the bound and idle
    fence.passed = True
    touch(cache, key("b"))
    assert driver.keys() == {key("b")}


def test_a_passed_fence_is_noticed_by_poll(driver: Driver) -> None:
    cache = driver.cache()
    fence = Gate()
    lease = cache.get(key())
    lease.guard(fence)
    lease.release()
    cache.invalidate("worker", 1)
    cache.poll()
    assert cache.counters().waiting == 1
    fence.passed = True
    cache.poll()
    assert cache.counters().waiting == 0
    assert driver.keys() == set()


def test_fences_that_have_passed_do_not_pile_up(driver: Driver) -> None:
    cache = driver.cache()
    unfinished = [Gate() for _ in range(5)]
    for fence in [*unfinished, *(Gate(passed=True) for _ in range(1000))]:
        with cache.get(key()) as lease:
            lease.guard(fence)
    kept = list(cache._entries[key()].fences)
    assert len(kept) <= 2 * len(unfinished) + 16
    assert set(unfinished) <= set(kept)


def test_a_fence_that_fails_keeps_the_mapping_and_is_logged_once(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Gate):
        def query(self) -> bool:
            raise RuntimeError("device lost")

    cache = driver.cache()
    with cache.get(key()) as lease:
        lease.guard(Broken())
    cache.invalidate("worker", 1)
    cache.poll()
    cache.poll()
    assert driver.keys() == {key()}
    assert len(caplog.records) == 1


# Errors


def test_a_failed_open_raises_and_the_next_call_tries_again(driver: Driver) -> None:
    cache = driver.cache()

    def fail(key: HandleKey) -> None:
        raise OSError("no peer access")

    driver.on_open = fail
    with pytest.raises(HandleOpenError, match="no peer access") as caught:
        cache.get(key())
    assert isinstance(caught.value.__cause__, OSError)
    driver.on_open = lambda _: None
    with cache.get(key()) as lease:
        assert lease.mapping.is_open
    counters = cache.counters()
    assert (counters.failed_opens, counters.opens, counters.misses) == (1, 1, 2)


def test_an_interrupt_during_the_open_passes_through_and_leaves_nothing(driver: Driver) -> None:
    cache = driver.cache()

    def interrupt(key: HandleKey) -> None:
        raise KeyboardInterrupt

    driver.on_open = interrupt
    with pytest.raises(KeyboardInterrupt):
        cache.get(key())
    driver.on_open = lambda _: None
    touch(cache, key())


def test_a_failed_close_is_logged_and_counted(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(mapping: Mapping) -> None:
        driver.mapped.clear()
        raise OSError("already gone")

    cache = driver.cache()
    touch(cache, key())
    driver.on_close = fail
    with caplog.at_level(logging.ERROR):
        cache.invalidate("worker", 1)
    assert "could not be closed" in caplog.text
    assert cache.counters().failed_closes == 1
    assert cache.counters().mapped_bytes == 0


def test_after_close_nothing_is_opened_and_leases_end_in_peace(driver: Driver) -> None:
    cache = driver.cache()
    lease = cache.get(key("a"))
    touch(cache, key("b"))
    cache.close()
    cache.close()
    with pytest.raises(HandleCacheClosedError):
        cache.get(key("a"))
    assert lease.mapping.is_open
    assert driver.keys() == {key("a")}
    lease.release()
    assert driver.keys() == set()


def test_an_open_that_lands_after_close_is_closed(driver: Driver) -> None:
    cache = driver.cache()
    driver.on_open = lambda _: cache.close()
    with pytest.raises(HandleCacheClosedError):
        cache.get(key())
    assert driver.keys() == set()


@pytest.mark.parametrize(
    "error",
    [
        StaleHandleError(key()),
        HandleOpenError(key(), OSError()),
        HandleBusyError(key()),
        HandleCacheClosedError(),
        LeaseReleasedError(key()),
    ],
)
def test_every_error_names_its_remedy(error: HandleError) -> None:
    assert isinstance(error, PhotonError)
    assert error.problem
    assert error.remedy.endswith(".")


# Counters


def test_counters_are_a_frozen_snapshot(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.5, 2.0, 4.0])
    monkeypatch.setattr(handle_cache, "perf_counter", lambda: next(ticks))
    cache = driver.cache()
    before = cache.counters()
    touch(cache, key("a"), key("b"), key("a"))
    after = cache.counters()
    assert (before.hits, before.misses, before.mapped_bytes) == (0, 0, 0)
    assert (after.hits, after.misses, after.opens) == (1, 2, 2)
    assert after.open_seconds == 2.5
    assert (after.entries, after.mapped_bytes) == (2, 2 * NBYTES)
    assert cache.counters() == after
    with pytest.raises(FrozenInstanceError):
        after.hits = 0  # type: ignore[misc]
