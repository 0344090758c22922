"""The handle cache in place of SGLang's dict of open pools, in the scheduler process.

SGLang's reconstruct code stays: it opens a pool, waits on the device for the producer's copy,
copies the tensor out and acknowledges. Changed is where that happens and what it may wait for:

- The pool comes leased from `HandleCache`; the lease ends when the stream has passed the copy.
- A wait on the device has no time limit. So it is queued only when the producer's word has been
  *seen* in the pool, by a small copy beside everything else, and then it passes at once. A producer
  that dies first leaves no wait behind: its requests end with an error before anything is queued.
- Wait and copy run on a stream of their own. The forward that needs the tensor waits for an event.

    arrives ──► word seen? ──no──► asked again in the next tick
                  │ yes               producer gone ──► error
                  ▼
            open, wait, copy, acknowledge on the transport's stream ──► event ──► prefill
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from sglang.srt.managers.io_struct import MMInputsProcessError
from sglang.srt.multimodal.transport import cuda_ipc
from sglang.srt.multimodal.transport.cuda_ipc import CudaIpcTensorTransportProxy

from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import HandleError, HandleKey, StaleHandleError
from sglang_photon.ipc.mappings import Lease
from sglang_photon.ipc.opener import StorageOpener
from sglang_photon.ipc.producers import PoolAnnouncement, Producer
from sglang_photon.upstream.ipc_pools import PRODUCER

OPEN_POOL_SLICE = CudaIpcTensorTransportProxy._open_pool_slice
RETAIN_STORAGE = CudaIpcTensorTransportProxy._retain_storage_until_stream_completes
RECONSTRUCT = CudaIpcTensorTransportProxy.reconstruct_on_target_device
MAX_POOLS = 64
MAX_BYTES = 16 << 30
WORD_BYTES = 4
ASKED, SEEN, LEASE = "photon_asked", "photon_seen", "photon_lease"
COPIED = "photon_copied"
"""Attributes of proxies, and of the tensors made of them."""
UNKNOWN = Producer(0, 0)
"""Of a tensor that an unchanged SGLang process sent."""


class IpcBinding:
    """One scheduler's pools.

    Args:
        device: index of this rank's device.
        cuda: the module `torch.cuda`, or a stand-in.
        cache: the open pools.
        opener: what opens them.

    Attributes:
        beside: the current stream need not wait for copies: `arrive` will see to that. Only while
            a request is taken in of which nothing reads its tensors yet.
    """

    def __init__(
        self, *, device: int, cuda: Any, cache: HandleCache[Any], opener: StorageOpener
    ) -> None:
        self._device = device
        self._cuda = cuda
        self._opener = opener
        self._stream = cuda.Stream()
        self._probe_stream = cuda.Stream()
        self._leases: list[Lease[Any]] = []
        self.cache = cache
        self.beside = False

    @classmethod
    def on_cuda(cls, device: int) -> IpcBinding:
        """For a scheduler with a CUDA device."""
        opener = StorageOpener(new_storage=torch.UntypedStorage._new_shared_cuda)
        cache: HandleCache[Any] = HandleCache(
            opener=opener, max_entries=MAX_POOLS, max_bytes=MAX_BYTES
        )
        return cls(device=device, cuda=torch.cuda, cache=cache, opener=opener)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """SGLang's reconstruct code uses this cache and this stream inside."""
        proxy = CudaIpcTensorTransportProxy
        with ExitStack() as stack:
            for owner, name, value in (
                (cuda_ipc, "_pool_handle_cache_get_or_open", self._get_or_open),
                (proxy, "_open_pool_slice", self._bind(self._open_pool_slice, OPEN_POOL_SLICE)),
                (
                    proxy,
                    "_retain_storage_until_stream_completes",
                    self._bind(self._retain_storage, RETAIN_STORAGE),
                ),
                (
                    proxy,
                    "reconstruct_on_target_device",
                    self._bind(self._reconstruct, RECONSTRUCT),
                ),
            ):
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
            stack.callback(self._close)
            yield

    def announce(self, announcement: PoolAnnouncement) -> None:
        """A producer is ready: open its pool now."""
        self.cache.get(self._key(announcement.producer, announcement.handle)).release()

    def ended(self, producer: Producer) -> None:
        """A producer is gone, and its memory with it."""
        self.cache.invalidate(producer.name, producer.started)

    def ready(self, request: Any, lives: Callable[[Producer], bool]) -> bool:
        """Whether a request's tensors can be taken without waiting for their producer.

        A request whose producer is gone is ready: to fail.

        Args:
            request: as it was decoded.
            lives: whether a producer still exists.
        """
        arrived = True
        try:
            for proxy in _proxies(request):
                producer = _producer(proxy)
                if producer != UNKNOWN and not lives(producer):
                    raise StaleHandleError(self._key(producer, _extra(proxy)["pool_handle"]))
                arrived = self._has_arrived(proxy) and arrived
        except HandleError as error:
            request.mm_inputs = MMInputsProcessError(str(error))
            request.positional_embed_overrides = None
        return arrived

    def arrive(self, requests: list[Any], stream: Any) -> None:
        """Have the forward of a batch wait for the copies of its requests' tensors.

        Args:
            requests: of a batch that is about to be launched.
            stream: on which its forward runs, after what the current stream has queued.
        """
        for tensor in _tensors(requests):
            event = tensor.__dict__.pop(COPIED, None)
            if event is not None:
                self._cuda.current_stream().wait_event(event)
                tensor.record_stream(stream)

    def _has_arrived(self, proxy: Any) -> bool:
        """Whether the producer's word has been seen in the pool; asks for it if not."""
        if not _extra(proxy)["use_pool_handle_cache"] or SEEN in proxy.__dict__:
            return True
        if ASKED not in proxy.__dict__:
            proxy.__dict__[ASKED] = self._ask(proxy)
        word, event = proxy.__dict__[ASKED]
        if not event.query():
            return False
        del proxy.__dict__[ASKED]
        # As the device compares: a word that is ahead is a later use of the same place.
        seen = ((int(word[0]) - proxy.generation) & 0xFFFFFFFF) < (1 << 31)
        if seen:
            proxy.__dict__[SEEN] = True
        return seen

    def _ask(self, proxy: Any) -> tuple[Any, Any]:
        """Copy the word to the host, and the event after it."""
        with self._lease(proxy) as lease, self._cuda.stream(self._probe_stream):
            start = proxy.ready_byte_offset
            view = torch.empty(0, dtype=torch.int32, device=lease.mapping.device).set_(
                lease.mapping[start : start + WORD_BYTES]
            )
            word = view.to("cpu", non_blocking=True)
            event = self._cuda.Event()
            event.record(self._probe_stream)
            lease.guard(event)
        return word, event

    def _lease(self, proxy: Any) -> Lease[Any]:
        return self.cache.get(self._key(_producer(proxy), _extra(proxy)["pool_handle"]))

    def _key(self, producer: Producer, handle: Any) -> HandleKey:
        name = self._opener.describe(self._device, tuple(handle))
        return HandleKey(self._device, producer.name, producer.started, name)

    def _get_or_open(self, cache_key: Any, pool_handle: Any) -> Any:
        """In place of SGLang's lookup: what `_open_pool_slice` has leased."""
        del cache_key, pool_handle
        return self._leases[-1].mapping

    def _open_pool_slice(self, proxy: Any, device: int) -> Any:
        lease = self._lease(proxy)
        self._leases.append(lease)
        try:
            # Not SGLang's `_open_pool_slice`, which opens again what was refused.
            opened = proxy._reconstruct_from_ipc_extra(
                _extra(proxy), use_cache=True, rebuild_device_idx=device
            )
        finally:
            self._leases.pop()
        proxy.__dict__[LEASE] = lease
        return opened

    def _retain_storage(self, proxy: Any, storage: Any, device: int) -> None:
        """The lease ends when the stream has passed what was queued."""
        del storage
        lease = proxy.__dict__.pop(LEASE)
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(device))
        lease.guard(event)
        lease.release()

    def _reconstruct(self, proxy: Any, device: int, *args: Any, **kwargs: Any) -> Any:
        if proxy.reconstruct_tensor is not None:
            return RECONSTRUCT(proxy, device, *args, **kwargs)
        with self._cuda.stream(self._stream):
            tensor = RECONSTRUCT(proxy, device, *args, **kwargs)
            event = self._cuda.Event()
            event.record(self._stream)
        if not self.beside:
            self._cuda.current_stream().wait_event(event)
        tensor.__dict__[COPIED] = event
        return tensor

    def _bind(self, ours: Any, upstreams: Any) -> Any:
        """A method for proxies: ours for pools that are cached, SGLang's for all others."""

        def method(proxy: Any, *args: Any, **kwargs: Any) -> Any:
            cached = (
                type(proxy) is CudaIpcTensorTransportProxy
                and (_extra(proxy)["use_pool_handle_cache"])
            )
            return (ours if cached else upstreams)(proxy, *args, **kwargs)

        return method

    def _close(self) -> None:
        self.cache.close()
        self._opener.shut_down()


def _extra(proxy: Any) -> dict[str, Any]:
    extra: dict[str, Any] = proxy.proxy_state["ipc_extra"]
    return extra


def _producer(proxy: Any) -> Producer:
    return Producer(*_extra(proxy).get(PRODUCER, UNKNOWN))


def _proxies(message: Any) -> Iterator[CudaIpcTensorTransportProxy]:
    """Every tensor of a request, or of a batch of them, that lies in a pool."""
    for request in getattr(message, "batch", (message,)):
        inputs = getattr(request, "mm_inputs", None)
        values = _values(inputs, getattr(request, "positional_embed_overrides", None))
        yield from (one for one in values if type(one) is CudaIpcTensorTransportProxy)


def _tensors(requests: Iterable[Any]) -> Iterator[torch.Tensor]:
    for request in requests:
        values = _values(request.multimodal_inputs, request.positional_embed_overrides)
        yield from (one for one in values if isinstance(one, torch.Tensor))


def _values(inputs: Any, overrides: Any) -> Iterator[Any]:
    for item in getattr(inputs, "mm_items", ()):
        yield from (item.feature, item.precomputed_embeddings)
        yield from item.model_specific_data.values()
    if overrides is not None:
        yield overrides.embeds
