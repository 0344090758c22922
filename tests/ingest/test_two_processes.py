"""A producer's pool, read by this process through SGLang's code and our cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.io_struct import MMInputsProcessError
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from sglang.srt.multimodal.transport import cuda_ipc

from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import HandleError, StaleHandleError
from sglang_photon.ipc.opener import StorageOpener
from sglang_photon.ipc.producers import PoolAnnouncement, Watch
from sglang_photon.upstream import fake_device
from sglang_photon.upstream.fake_device import Cuda
from sglang_photon.upstream.ipc_binding import IpcBinding
from tests.server.servers import wait_until


class Remote:
    """A producer process."""

    def __init__(self, folder: Path, name: bytes) -> None:
        self._here, there = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ingest.producer", str(there.fileno()), str(folder),
             name.hex()],
            pass_fds=(there.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        there.close()
        self.announcement: PoolAnnouncement = self._here.recv()

    def ask(self, command: str, values: Any) -> Any:
        self._here.send((command, values))
        return self._here.recv()

    def send(self, *values: float, ready: bool = True) -> Any:
        proxy = self.ask("send", values)
        if ready:
            self.ask("ready", proxy.ready_byte_offset // 8)
        return proxy

    def die(self) -> None:
        self._process.kill()
        self._process.wait()
        self._here.close()


@pytest.fixture(scope="module")
def producers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Remote]]:
    made: list[Remote] = []
    folder = tmp_path_factory.mktemp("pools")

    def make(name: bytes = b"") -> Remote:
        made.append(Remote(folder, name))
        return made[-1]

    yield make
    for remote in made:
        remote.die()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return fake_device.replace(monkeypatch.setattr)


class Side:
    """The consumer: what it opened, and its binding."""

    def __init__(self, cuda: Cuda, device: int = 0) -> None:
        self.opened: list[int] = []
        opener = StorageOpener(new_storage=self._open)
        self.cache: HandleCache[Any] = HandleCache(opener=opener, max_entries=4, max_bytes=1 << 30)
        self.binding = IpcBinding(device=device, cuda=cuda, cache=self.cache, opener=opener)
        self.watch = Watch()
        self.device = device

    def _open(self, device: int, *rest: Any) -> torch.UntypedStorage:
        self.opened.append(device)
        return fake_device.open_storage(device, *rest)

    def ready(self, request: Any) -> bool:
        return self.binding.ready(request, self.watch.lives)

    def notice(self) -> None:
        for producer in self.watch.ended():
            self.binding.ended(producer)
        self.binding.cache.poll()


@pytest.fixture
def side(cuda: Cuda) -> Iterator[Side]:
    made = Side(cuda)
    with made.binding.bound():
        yield made
    made.watch.close()


def asking(*proxies: Any) -> Any:
    items = [MultimodalDataItem(modality=Modality.IMAGE, feature=one, hash=1) for one in proxies]
    return SimpleNamespace(
        mm_inputs=SimpleNamespace(mm_items=items), positional_embed_overrides=None
    )


@pytest.fixture(scope="module")
def remote(producers: Callable[..., Remote]) -> Remote:
    return producers()


def test_tensors_arrive_through_one_open_and_are_acknowledged(side: Side, remote: Remote) -> None:
    side.binding.announce(remote.announcement)
    assert side.opened == [0], "opened when it was announced"
    for number in range(20):
        proxy = remote.send(number, number + 0.5)
        request = asking(proxy)
        assert side.ready(request)
        request.mm_inputs.mm_items[0].reconstruct(0)
        assert request.mm_inputs.mm_items[0].feature.tolist() == [number, number + 0.5]
        assert remote.ask("acknowledged", proxy.ready_byte_offset // 8) == 1
    assert side.opened == [0]
    assert side.cache.counters().hits > 20


def test_nothing_waits_on_the_device_for_a_word_that_is_not_there(
    side: Side, remote: Remote
) -> None:
    proxy = remote.send(7.0, ready=False)
    request = asking(proxy)
    assert not side.ready(request)
    with pytest.raises(fake_device.HangsError):
        proxy.reconstruct_on_target_device(0)
    remote.ask("ready", proxy.ready_byte_offset // 8)
    assert side.ready(request)
    request.mm_inputs.mm_items[0].reconstruct(0)
    assert request.mm_inputs.mm_items[0].feature.tolist() == [7.0]


def test_the_copy_runs_beside_and_only_the_prefill_waits(
    side: Side, remote: Remote, cuda: Cuda
) -> None:
    request = asking(remote.send(1.0))
    assert side.ready(request)
    side.binding.beside = True
    request.mm_inputs.mm_items[0].reconstruct(0)
    feature = request.mm_inputs.mm_items[0].feature
    assert cuda.usual.waited == []
    recorded: list[Any] = []
    feature.record_stream = recorded.append
    batch = [SimpleNamespace(multimodal_inputs=request.mm_inputs, positional_embed_overrides=None)]
    side.binding.arrive(batch, "forward")
    assert len(cuda.usual.waited) == 1
    assert recorded == ["forward"]
    side.binding.arrive(batch, "forward")
    assert len(cuda.usual.waited) == 1, "once is enough"


def test_a_tensor_that_is_taken_where_it_is_read_is_waited_for(
    side: Side, remote: Remote, cuda: Cuda
) -> None:
    request = asking(remote.send(1.0))
    assert side.ready(request)
    request.mm_inputs.mm_items[0].reconstruct(0)
    assert len(cuda.usual.waited) == 1


def test_positional_embeddings_take_the_same_way(side: Side, remote: Remote) -> None:
    proxy = remote.send(3.0, 4.0)
    overrides = SimpleNamespace(embeds=proxy)
    request = SimpleNamespace(mm_inputs=None, positional_embed_overrides=overrides)
    assert side.ready(request)
    assert proxy.reconstruct_on_target_device(0).tolist() == [3.0, 4.0]
    assert side.opened == [0]


def test_a_borrowed_tensor_keeps_its_pool_mapped(side: Side, remote: Remote) -> None:
    proxy = remote.send(5.0)
    view = proxy.borrow_on_target_device(0)
    side.binding.ended(remote.announcement.producer)
    assert side.cache.counters().waiting == 1
    assert view.tolist() == [5.0]
    proxy.release_borrowed_on_current_stream()
    side.notice()
    assert side.cache.counters().waiting == 0


def test_a_dead_producer_s_requests_end_and_its_bytes_never_read_the_old_memory(
    side: Side, producers: Callable[..., Remote]
) -> None:
    first = producers(b"the same bytes")
    side.binding.announce(first.announcement)
    done, waiting = asking(first.send(1.0)), asking(first.send(2.0, ready=False))
    assert side.ready(done)
    assert not side.ready(waiting)
    done.mm_inputs.mm_items[0].reconstruct(0)
    first.die()
    wait_until(lambda: bool(side.watch.ended()), limit_s=10)
    assert side.ready(waiting)
    assert isinstance(waiting.mm_inputs, MMInputsProcessError)
    assert "gone" in waiting.mm_inputs.message
    side.binding.ended(first.announcement.producer)
    side.notice()
    assert side.cache.counters().entries == 0
    second = producers(b"the same bytes")
    assert second.announcement.handle[1] == first.announcement.handle[1]
    request = asking(second.send(3.0))
    assert side.ready(request)
    request.mm_inputs.mm_items[0].reconstruct(0)
    assert request.mm_inputs.mm_items[0].feature.tolist() == [3.0]
    assert done.mm_inputs.mm_items[0].feature.tolist() == [1.0]
    assert side.opened == [0, 0]


def test_what_the_scheduler_refuses_is_not_opened_behind_its_back(
    side: Side, remote: Remote
) -> None:
    proxy = remote.send(1.0)
    side.binding.ended(remote.announcement.producer)
    with pytest.raises(StaleHandleError):
        proxy.reconstruct_on_target_device(0)
    assert side.opened == []
    assert issubclass(StaleHandleError, HandleError)


def test_mm_16_each_device_opens_a_pool_once(cuda: Cuda, remote: Remote) -> None:
    sides = [Side(cuda, device) for device in (0, 1)]
    for side in sides:
        with side.binding.bound():
            for number in range(50):
                proxy = remote.send(float(number))
                assert side.ready(asking(proxy))
                assert proxy.reconstruct_on_target_device(side.device).tolist() == [number]
        side.watch.close()
    assert [side.opened for side in sides] == [[0], [1]]


def test_upstream_s_functions_are_back_afterwards(side: Side) -> None:
    bound = cuda_ipc._pool_handle_cache_get_or_open
    assert bound == side.binding._get_or_open
    other = cuda_ipc.CudaIpcTensorTransportProxy.reconstruct_on_target_device
    with side.binding.bound():
        pass
    assert cuda_ipc.CudaIpcTensorTransportProxy.reconstruct_on_target_device is other
