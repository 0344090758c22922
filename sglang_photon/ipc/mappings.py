"""The parts of the handle cache: mappings, their leases, their opens and closes under way."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import deque
from collections.abc import Iterator
from threading import Event
from typing import Generic, Protocol, Self

from sglang_photon.ipc.handles import Fence, HandleKey, LeaseReleasedError, M, Opened

logger = logging.getLogger(__name__)

MIN_FENCES_BEFORE_POLL = 16


class _NeverPassed:
    """Stands for a fence that failed to answer: its stream may still be reading."""

    def query(self) -> bool:
        return False


class Tally:
    """Counts by `add`, without a lock."""

    def __init__(self) -> None:
        self.add = itertools.count(1).__next__
        self._reads = 0

    def value(self) -> int:
        """Calls of `add` so far; one reader at a time."""
        self._reads += 1
        return self.add() - self._reads


class Flight:
    """An open (`key` tells which) or a close in progress; `error` is why the open failed."""

    def __init__(self, key: HandleKey | None) -> None:
        self.key = key
        self.error: BaseException | None = None
        self.landed = Event()


class Owner(Protocol):
    """What a lease needs of its cache, all of it without the lock."""

    @property
    def tickets(self) -> Iterator[int]:
        """Unique and growing."""
        ...

    @property
    def over(self) -> bool:
        """Whether a release may let the cache come back within its bounds."""
        ...

    def poll(self) -> None:
        """Closes what nobody needs any more."""
        ...


class Entry(Generic[M]):
    """One mapping. Holds and fences are added without the lock; fences are polled under it."""

    def __init__(self, key: HandleKey, opened: Opened[M]) -> None:
        self.key = key
        self.mapping = opened.mapping
        self.nbytes = opened.nbytes
        self.retired = False
        self.last_use = 0
        self.holds: set[int] = set()
        self.fences: deque[Fence] = deque()
        self.poll_at = MIN_FENCES_BEFORE_POLL

    def idle(self) -> bool:
        """Holds come first: a lease hands in its fence before it lets go."""
        if self.holds:
            return False
        self.poll()
        return not self.fences

    def poll(self) -> None:
        """Forgets the fences that have passed."""
        for _ in range(len(self.fences)):
            try:
                passed = self.fences[0].query()
            except Exception:
                logger.exception("a fence failed: the mapping it guards stays open")
                self.fences[0] = _NeverPassed()
                passed = False
            if passed:
                self.fences.popleft()
            else:
                self.fences.rotate(-1)
        self.poll_at = 2 * len(self.fences) + MIN_FENCES_BEFORE_POLL


class Lease(Generic[M]):
    """The right to read one mapping, until `release`, the end of a `with`, or its last reference.

    Leases come from `HandleCache.get`.
    """

    __slots__ = ("_entry", "_owner", "_ticket")

    def __init__(self, owner: Owner, entry: Entry[M]) -> None:
        self._owner = owner
        self._entry = entry
        # Unique, and it grows: names the hold and tells how recent it is.
        self._ticket = entry.last_use = next(owner.tickets)
        entry.holds.add(self._ticket)

    @property
    def mapping(self) -> M:
        """What the opener made. Raises LeaseReleasedError after the release."""
        self._check()
        return self._entry.mapping

    def guard(self, fence: Fence) -> None:
        """Keeps the mapping open until a stream has passed the fence, also after the release."""
        self._check()
        self._entry.fences.append(fence)
        if len(self._entry.fences) >= self._entry.poll_at:
            self._owner.poll()

    def keep_for(self, view: object) -> None:
        """Releases when an object that reads the mapping is gone; not together with `with`."""
        self._check()
        weakref.finalize(view, self.release).atexit = False

    def release(self) -> None:
        """Lets go; doing it again changes nothing."""
        self._entry.holds.discard(self._ticket)
        if self._entry.retired or self._owner.over:
            self._owner.poll()

    def _check(self) -> None:
        if self._ticket not in self._entry.holds:
            raise LeaseReleasedError(self._entry.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    __del__ = release
