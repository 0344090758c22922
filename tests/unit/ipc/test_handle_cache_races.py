"""What another thread may do between two steps of the cache, done there on purpose."""

from __future__ import annotations

from sglang_photon.ipc.mappings import Lease
from tests.unit.ipc.driver import Driver, Gate, key, touch


def test_a_mapping_evicted_between_lookup_and_hold_is_not_returned(driver: Driver) -> None:
    cache = driver.cache(max_entries=1)
    touch(cache, key("a"))
    old = driver.mapped[key("a").place]

    class LateSet(set[int]):
        def add(self, ticket: int) -> None:
            touch(cache, key("b"))
            super().add(ticket)

    cache._entries[key("a")].holds = LateSet()
    with cache.get(key("a")) as lease:
        assert lease.mapping is not old
        assert lease.mapping.is_open
    assert not old.is_open
    assert driver.opens[key("a")] == 2


def test_the_evictor_retires_before_it_looks_at_the_holds(driver: Driver) -> None:
    """A hold that comes right after its look must find the entry retired, and let go again."""
    cache = driver.cache(max_entries=1)
    touch(cache, key("a"))
    entry = cache._entries[key("a")]
    retired: list[bool] = []

    class LookedAtSet(set[int]):
        def __bool__(self) -> bool:
            held = len(self) > 0
            lease = Lease(cache, entry)
            retired.append(entry.retired)
            lease.release()
            return held

    entry.holds = LookedAtSet()
    touch(cache, key("b"))
    assert retired[0]
    assert all(retired)


def test_a_fence_handed_in_during_the_look_is_seen(driver: Driver) -> None:
    """Guarded and released right between the look at the fences and the one at the holds."""
    cache = driver.cache()
    lease = cache.get(key())
    entry = cache._entries[key()]
    fence = Gate()

    class LookedAtSet(set[int]):
        def __bool__(self) -> bool:
            if len(self) > 0:
                lease.guard(fence)
                lease.release()
            return False

    entry.holds = LookedAtSet(entry.holds)
    cache.invalidate("worker", 1)
    assert driver.keys() == {key()}
    fence.passed = True
    cache.poll()
    assert driver.keys() == set()


def test_a_release_during_an_overshoot_is_not_lost(driver: Driver) -> None:
    """Released right after the evictor has seen the hold, while it has the lock."""
    cache = driver.cache(max_entries=1)
    lease = cache.get(key("a"))
    entry = cache._entries[key("a")]

    class LookedAtSet(set[int]):
        def __bool__(self) -> bool:
            held = len(self) > 0
            lease.release()
            return held

    entry.holds = LookedAtSet(entry.holds)
    touched = cache.get(key("b"))
    assert driver.keys() == {key("b")}
    assert touched.mapping.is_open
