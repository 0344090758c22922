"""Memory handles of other processes, each opened once and closed when nobody reads it any more.

Every tensor names the pool it lies in by a handle, and opening that again for every tensor stalls
the scheduler thread. A plain dict of open handles cures that, but it never closes one, cannot tell
a restarted producer from a dead one, and opens under one lock.

    get ──► open already? ──yes──► lease ──release──► kept for the next get
                 │ no                                      │ bound exceeded: least recently used
                 ▼                                         │ producer gone: at once
            one thread opens, who asks                     ▼
            for the same handle waits                 no lease, every fence passed ──► closed

Invariants:
1. A mapping is closed only when no lease holds it and every fence that was handed in has passed.
   A reader writes its hold, then reads `retired`; who closes writes `retired`, then reads the
   holds. Whichever comes second sees the other, so no lock is needed to take a lease.
2. A place (device and bytes of the handle) is mapped at most once: its opening and its closing are
   flights, and whoever wants the place meanwhile waits for the flight to land.
3. After `invalidate`, no `get` returns a mapping of that generation, and none of its opens lands.
4. The lock is never held across a call of the opener. Finalizers only try it, since they may run
   inside any statement; who holds it looks for what they left behind when letting go.

The bounds count every mapping, those of dead producers too. A new mapping is opened before old ones
are closed. If all are in use, the bound is exceeded: counted in `overshoots`, and corrected by the
first release that allows it. A passed fence is noticed by the next open, invalidation or `poll`.
Single operations of dict, set, deque and itertools.count are taken to be atomic.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from time import perf_counter
from typing import Any, Generic

from sglang_photon.errors import UsageError
from sglang_photon.ipc.handles import (
    HandleBusyError,
    HandleCacheClosedError,
    HandleCacheCounters,
    HandleError,
    HandleKey,
    HandleOpenError,
    M,
    Opener,
    StaleHandleError,
)
from sglang_photon.ipc.mappings import Entry, Flight, Lease, Tally

logger = logging.getLogger(__name__)


class HandleCache(Generic[M]):
    """Open handles by key. See the module for what it guarantees.

    Args:
        opener: opens and closes handles.
        max_entries: how many mappings may stay open.
        max_bytes: how many bytes they may map together.

    Producers are remembered by name and newest generation for as long as the cache lives.
    """

    def __init__(self, *, opener: Opener[M], max_entries: int, max_bytes: int) -> None:
        if max_entries < 1 or max_bytes < 1:
            raise UsageError(
                f"a handle cache of {max_entries} entries and {max_bytes} bytes holds nothing",
                "Give both bounds as positive numbers.",
            )
        self._opener = opener
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        # Without the lock: read by `get` and `release`.
        self._entries: dict[HandleKey, Entry[M]] = {}
        self.tickets = itertools.count(1)
        self._hits = Tally()
        self.over = False
        self._dirty = False
        # Under the lock.
        self._lock = Lock()
        self._mapped: dict[tuple[int, bytes], Entry[M]] = {}
        self._mapped_bytes = 0
        self._flights: dict[tuple[int, bytes], Flight] = {}
        self._oldest_alive: dict[str, int] = {}
        self._counts = HandleCacheCounters()
        self._overshot = False
        self._closed = False

    def get(self, key: HandleKey) -> Lease[M]:
        """A lease of the key's mapping, which is opened if need be.

        Raises:
            HandleOpenError: the driver refused, here or in the thread that this call waited for.
                The next call tries again.
            StaleHandleError: the producer is gone, or a newer generation of it was seen.
            HandleBusyError: the same bytes still name a mapping of another key that is in use.
            HandleCacheClosedError: after `close`.
        """
        entry = self._entries.get(key)
        if entry is not None:
            lease = Lease(self, entry)
            if not entry.retired:
                self._hits.add()
                return lease
            lease.release()
        return self._get_unmapped(key)

    def invalidate(self, producer: str, generation: int) -> None:
        """Takes out a dead producer's mappings, up to this generation, on all devices."""
        with self._exclusive():
            self._outlive(producer, generation + 1)

    def poll(self) -> None:
        """Closes what nobody needs any more: after fences have passed, call it now and then."""
        self._dirty = True
        while self._dirty and self._lock.acquire(blocking=False):
            try:
                self._dirty = False
                entry = self._pick()
                if entry is not None:
                    self._dirty = True
            finally:
                self._lock.release()
            # One at a time: an interrupt cannot lose what was picked but not yet closed.
            if entry is not None:
                self._unmap(entry)

    def close(self) -> None:
        """Takes out everything, for good. What is in use closes at its release, or by `poll`."""
        with self._exclusive():
            self._closed = True
            self._retire(list(self._entries.values()))

    def counters(self) -> HandleCacheCounters:
        """What it did and what it holds."""
        with self._exclusive():
            return replace(
                self._counts,
                hits=self._hits.value(),
                entries=len(self._entries),
                waiting=len(self._mapped) - len(self._entries),
                mapped_bytes=self._mapped_bytes,
            )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            if self._dirty:
                self.poll()

    def _count(self, **more: float) -> None:
        sums: dict[str, Any] = {name: getattr(self._counts, name) + n for name, n in more.items()}
        self._counts = replace(self._counts, **sums)

    def _get_unmapped(self, key: HandleKey) -> Lease[M]:
        """Opens the handle, or waits for the thread that does, or for its place to be closed."""
        waited = False
        while True:
            with self._exclusive():
                refusal = self._refusal(key)
                if refusal is not None:
                    self._count(refused=not waited)
                    raise refusal
                self._outlive(key.producer, key.generation)
                entry = self._entries.get(key)
                if entry is not None:
                    if not waited:
                        self._hits.add()
                    return Lease(self, entry)
                self._count(misses=not waited)
                waited = True
                flight = self._flights.get(key.place)
                if flight is None and self._vacant(key):
                    flight = self._flights[key.place] = Flight(key)
                    break
            if flight is not None:
                flight.landed.wait()
                if flight.error is not None and flight.key == key:
                    raise HandleOpenError(key, flight.error) from flight.error
        return self._open(key, flight)

    def _open(self, key: HandleKey, flight: Flight) -> Lease[M]:
        started = perf_counter()
        try:
            opened = self._opener.open(key)
        except BaseException as error:
            seconds = perf_counter() - started
            with self._exclusive():
                self._count(failed_opens=1, open_seconds=seconds)
                flight.error = error
                self._land(key)
            if isinstance(error, Exception):
                raise HandleOpenError(key, error) from error
            raise
        entry = Entry(key, opened)
        seconds = perf_counter() - started
        with self._exclusive():
            self._count(opens=1, open_seconds=seconds)
            refusal = self._refusal(key)
            if refusal is None:
                self._entries[key] = self._mapped[key.place] = entry
                self._mapped_bytes += entry.nbytes
                self._land(key)
                self._dirty = True
                return Lease(self, entry)
            self._count(discarded=1)
        self._unmap(entry)
        raise refusal

    def _unmap(self, entry: Entry[M]) -> None:
        """Closes a mapping whose place has a flight, so that nobody opens it meanwhile."""
        mapping, failed = entry.mapping, 0
        del entry.mapping
        try:
            self._opener.close(mapping)
        except Exception:
            logger.exception("a mapping of %s could not be closed", entry.key.producer)
            failed = 1
        finally:
            with self._lock:
                self._count(failed_closes=failed)
                self._land(entry.key)

    # What follows runs under the lock.

    def _refusal(self, key: HandleKey) -> HandleError | None:
        if self._closed:
            return HandleCacheClosedError()
        if key.generation < self._oldest_alive.get(key.producer, key.generation):
            return StaleHandleError(key)
        return None

    def _outlive(self, producer: str, generation: int) -> None:
        """Older generations of the producer are gone."""
        if generation <= self._oldest_alive.get(producer, generation - 1):
            return
        self._oldest_alive[producer] = generation
        live = self._entries.items()
        gone = [e for key, e in live if key.producer == producer and key.generation < generation]
        self._retire(gone)
        self._count(invalidations=len(gone))

    def _retire(self, entries: list[Entry[M]]) -> None:
        """No `get` finds them any more; `poll` closes them when they are idle."""
        for entry in entries:
            entry.retired = True
            del self._entries[entry.key]
        self._dirty = True

    def _vacant(self, key: HandleKey) -> bool:
        """Whether the place can be opened now; an idle mapping in it will have gone soon."""
        occupant = self._mapped.get(key.place)
        if occupant is not None and not self._retire_idle(occupant):
            raise HandleBusyError(key)
        self._dirty = True
        return occupant is None

    def _retire_idle(self, entry: Entry[M]) -> bool:
        """Whether nobody needed it, so that it is retired now."""
        if entry.retired:
            return entry.idle()
        entry.retired = True
        if not entry.idle():
            entry.retired = False
            return False
        self._retire([entry])
        self._count(evictions=1)
        return True

    def _pick(self) -> Entry[M] | None:
        """A mapping to close; its place gets a flight, which `_unmap` lands."""
        # Set before the holds are read: who lets go of one later reads this, and polls.
        self.over = len(self._mapped) > self._max_entries or self._mapped_bytes > self._max_bytes
        mapped = list(self._mapped.values())
        for entry in mapped:
            if len(entry.fences) >= entry.poll_at:
                entry.poll()
        retired = (entry for entry in mapped if entry.retired and entry.idle())
        live = [entry for entry in mapped if self.over and not entry.retired]
        live.sort(key=lambda entry: entry.last_use)
        picked = next(retired, None) or next(filter(self._retire_idle, live), None)
        if picked is None:
            self._count(overshoots=self.over and not self._overshot)
            self._overshot = self.over
            return None
        del self._mapped[picked.key.place]
        self._mapped_bytes -= picked.nbytes
        self._flights[picked.key.place] = Flight(None)
        return picked

    def _land(self, key: HandleKey) -> None:
        self._flights.pop(key.place).landed.set()
