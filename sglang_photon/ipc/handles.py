"""The words of the handle cache: what a handle is named by, who opens it, what may go wrong.

Nothing here knows CUDA. What opens and closes a handle is an `Opener`, what tells that a stream has
passed a point is a `Fence` (a `torch.cuda.Event` is one as it is).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from sglang_photon.errors import PhotonError

M = TypeVar("M")


class HandleKey(NamedTuple):
    """One handle of one life of one producer, on one consumer device.

    A tuple, since it is hashed for every tensor, and a tuple is hashed in C.

    Args:
        device: index of the device that reads.
        producer: who exported the memory; the same name after a restart.
        generation: which life of the producer; grows with every restart, by any step.
        handle: what the driver opens, as the producer sent it.
    """

    device: int
    producer: str
    generation: int
    handle: bytes

    @property
    def place(self) -> tuple[int, bytes]:
        """What the driver sees of it: two generations may come with the same bytes."""
        return self.device, self.handle


@dataclass(frozen=True)
class Opened(Generic[M]):
    """A mapping that the opener made, and its size in bytes."""

    mapping: M
    nbytes: int


class Opener(Protocol[M]):
    """The driver. Called by several threads, without a lock, never twice at once for one place."""

    def open(self, key: HandleKey) -> Opened[M]:
        """Maps a handle on `key.device`. Anything it raises reaches all who asked for the key.

        It must not ask the cache for a handle.
        """
        ...

    def close(self, mapping: M) -> None:
        """Unmaps.

        Runs on the thread that let go last, possibly in a finalizer, so possibly inside any other
        call on that thread: it must not take a lock that is not reentrant.
        """
        ...


class Fence(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Whether the stream has passed it. Must not block and must not call the cache."""
        ...


@dataclass(frozen=True)
class HandleCacheCounters:
    """What a cache did since it was made, and what it holds now.

    Every `get` is a hit, a miss (it opened, or waited for another thread) or refused.
    """

    hits: int = 0
    misses: int = 0
    refused: int = 0
    """Calls for a dead producer's handle, or after `close`."""
    opens: int = 0
    failed_opens: int = 0
    open_seconds: float = 0.0
    """Time in the driver's open, failed ones included; opens at the same time add up."""
    discarded: int = 0
    """Mappings closed unseen: the producer was gone by the time the driver had opened them."""
    evictions: int = 0
    invalidations: int = 0
    """Mappings taken out because their producer was gone."""
    failed_closes: int = 0
    overshoots: int = 0
    """How often a bound was exceeded with everything in use."""
    entries: int = 0
    waiting: int = 0
    """Mappings that no `get` returns any more, kept for a lease or a fence."""
    mapped_bytes: int = 0
    """Bytes of both, without what is just being closed."""


class HandleError(PhotonError):
    """A handle that cannot be read; the request that needs it must end."""


class StaleHandleError(HandleError):
    """The producer is gone, or lives on in a newer generation."""

    def __init__(self, key: HandleKey) -> None:
        super().__init__(
            f"generation {key.generation} of {key.producer} is gone, and its memory with it",
            "Send the request again: the producer's new generation will serve it.",
        )


class HandleOpenError(HandleError):
    """The driver refused; its own error is the cause."""

    def __init__(self, key: HandleKey, cause: BaseException) -> None:
        super().__init__(
            f"device {key.device} cannot open a memory handle of {key.producer}: {cause!r}",
            "Both must run on one machine, with peer access between their devices; "
            "--mm-feature-transport cpu does without.",
        )


class HandleBusyError(HandleError):
    """The driver would hand out the old mapping for the bytes of the new one."""

    def __init__(self, key: HandleKey) -> None:
        super().__init__(
            f"{key.producer} sent a handle whose bytes name memory that is still being read",
            "Ask again when the readers of the dead producer's memory are done.",
        )


class HandleCacheClosedError(HandleError):
    """Asked after `close`."""

    def __init__(self) -> None:
        super().__init__("the handle cache is closed", "Ask before the scheduler shuts down.")


class LeaseReleasedError(HandleError):
    """A lease used after it was given back: a mistake in the program."""

    def __init__(self, key: HandleKey) -> None:
        super().__init__(
            f"the lease of a handle of {key.producer} was released; it may be unmapped",
            "Hold the lease for as long as anything reads the mapping.",
        )
