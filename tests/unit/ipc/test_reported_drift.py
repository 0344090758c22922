"""MM-20: what a sender believes to be open may be closed, and nothing breaks."""

from __future__ import annotations

import pytest

from sglang_photon.ipc.handles import StaleHandleError
from tests.unit.ipc.driver import Driver, key


def test_mm_20_references_to_what_was_closed_open_it_again() -> None:
    driver = Driver()
    cache = driver.cache(max_entries=4)
    for turn in range(3):
        for image in range(10):
            for worker in ("one", "two"):
                wanted = key(f"{worker}-{image}", producer=worker)
                with cache.get(wanted) as lease:
                    assert lease.mapping.key == wanted
        assert cache.counters().entries <= 4, turn
    assert driver.violations == []
    assert cache.counters().evictions > 0


def test_mm_20_a_reference_to_a_dead_worker_is_a_typed_miss_and_sending_again_helps() -> None:
    driver = Driver()
    cache = driver.cache(max_entries=4)
    cache.get(key("a", producer="one", generation=1)).release()
    cache.invalidate("one", 1)
    with pytest.raises(StaleHandleError):
        cache.get(key("a", producer="one", generation=1))
    with cache.get(key("a", producer="one", generation=2)) as lease:
        assert lease.mapping.key.generation == 2
    with cache.get(key("b", producer="two")) as lease:
        assert lease.mapping.is_open
    assert driver.violations == []
