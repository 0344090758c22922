"""Reported faults of picture pools and of shared segments, on SGLang's own code."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.managers.mm_utils import ShmPointerMMData
from sglang.srt.multimodal.transport.cuda_ipc import (
    MmItemMemoryPool,
    get_mm_feature_pool_size_per_worker,
)

from sglang_photon.upstream import fake_device
from tests.server.servers import wait_until

MIB = 1 << 20
SLOTS = 8


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Makes pools on a device that is not there."""
    fake_device.replace(monkeypatch.setattr, folder=tmp_path)
    made: list[MmItemMemoryPool] = []

    def make(nbytes: int, *, consumers: int = 1, slots: int = SLOTS) -> MmItemMemoryPool:
        made.append(MmItemMemoryPool(nbytes, 0.005, 0, consumers, slots))
        return made[-1]

    yield make
    for pool in made:
        pool.shutdown()


def on_device(nbytes: int) -> torch.Tensor:
    tensor = torch.arange(nbytes, dtype=torch.uint8)
    return tensor.as_subclass(fake_device.OnDevice)


def acknowledge(pool: MmItemMemoryPool, proxy: Any, rank: int) -> None:
    address = pool.memory_pool.data_ptr() + proxy.ack_byte_offset + 4 * rank
    fake_device.word(address).value = proxy.generation


def test_mm_12_slots_are_recycled_when_consumers_finish_at_different_times(pools: Any) -> None:
    pool = pools(MIB, consumers=2)
    late: list[tuple[float, Any]] = []
    fallbacks, most = 0, 0
    for _ in range(500):
        proxy = pool.wrap_tensor(on_device(64), use_pool_handle_cache=True)
        if proxy is None:
            fallbacks += 1
            time.sleep(0.002)
        else:
            acknowledge(pool, proxy, 0)
            late.append((time.monotonic() + 0.05, proxy))
        most = max(most, pool.active_lease_count)
        while late and late[0][0] < time.monotonic():
            acknowledge(pool, late.pop(0)[1], 1)
    assert most == SLOTS
    assert fallbacks > 0
    for _, proxy in late:
        acknowledge(pool, proxy, 1)
    wait_until(lambda: pool.active_lease_count == 0, limit_s=10)


@pytest.mark.parametrize(("budget", "workers"), [(1024 * MIB, 16), (10 * MIB, 16), (7, 3)])
def test_mm_14_all_workers_pools_stay_within_the_budget(budget: int, workers: int) -> None:
    assert get_mm_feature_pool_size_per_worker(budget, workers) * workers <= budget


def test_mm_14_no_budget_is_a_clear_error(pools: Any) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        get_mm_feature_pool_size_per_worker(0, 16)
    with pytest.raises(ValueError, match="too small"):
        pools(64, slots=SLOTS)


def test_mm_15_a_tensor_larger_than_the_pool_falls_back_once_and_the_pool_goes_on(
    pools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pools(64 * 1024)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert pool.wrap_tensor(on_device(96 * 1024), use_pool_handle_cache=True) is None
        for _ in range(1000):
            proxy = pool.wrap_tensor(on_device(16), use_pool_handle_cache=True)
            if proxy is None:
                wait_until(lambda: pool.active_lease_count < SLOTS, limit_s=10)
            else:
                start = proxy.proxy_state["ipc_extra"]["pool_byte_offset"]
                assert pool.memory_pool[start : start + 16].tolist() == list(range(16))
                acknowledge(pool, proxy, 0)
    warnings = [one for one in caplog.records if "falling back" in one.message]
    assert len(warnings) == 1
    wait_until(lambda: pool.active_lease_count == 0, limit_s=10)


def consume(messages: Any, barrier: Any, digests: Any, late_s: float) -> None:
    """A scheduler rank: opens, waits for the others, reads."""
    time.sleep(late_s)
    while (message := messages.get()) is not None:
        pointer = pickle.loads(message)
        barrier.wait(30)
        tensor = pointer.materialize()
        digests.put(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())


@pytest.mark.timeout(120)
def test_mm_10_a_segment_stays_until_every_rank_has_opened_it() -> None:
    spawn = multiprocessing.get_context("fork")
    count, ranks = 100, 2
    barrier, digests = spawn.Barrier(ranks), [spawn.Queue() for _ in range(ranks)]
    inboxes = [spawn.Queue() for _ in range(ranks)]
    processes = [
        spawn.Process(target=consume, args=(inboxes[rank], barrier, digests[rank], 1.0 * rank))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    names, expected = [], []
    for number in range(count):
        tensor = torch.full((1000,), number, dtype=torch.int32)
        pointer = ShmPointerMMData(tensor)
        names.append(pointer.shm_name)
        expected.append(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
        for inbox in inboxes:
            inbox.put(pickle.dumps(pointer))
    for inbox in inboxes:
        inbox.put(None)
    for queue in digests:
        assert [queue.get(timeout=60) for _ in range(count)] == expected
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert not [name for name in names if (Path("/dev/shm") / name).exists()]


def test_what_a_thread_lets_go_is_gone_afterwards() -> None:
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputs

    from sglang_photon.upstream.release import RELEASE_FEATURES, released_aside

    before = set(os.listdir("/dev/shm"))  # noqa: PTH208
    pointer = pickle.loads(pickle.dumps(ShmPointerMMData(torch.zeros(1 << 20))))
    item = MultimodalDataItem(modality=Modality.IMAGE, feature=pointer.materialize())
    mapped = Path("/proc/self/maps").read_text().count("sgl_shm_mm_")
    assert mapped
    with released_aside():
        MultimodalInputs(mm_items=[item]).release_features()
        assert item.feature is None
    assert Path("/proc/self/maps").read_text().count("sgl_shm_mm_") < mapped
    assert MultimodalInputs.release_features is RELEASE_FEATURES
    assert set(os.listdir("/dev/shm")) <= before  # noqa: PTH208
    assert "photon-release" not in {thread.name for thread in threading.enumerate()}
