"""Processes that export memory: which life of which process, and whether it still lives.

A process id is used again after a while, so a life is named by the id and the moment at which the
process started, which only grows. Whether it lives is asked of the kernel through a descriptor of
exactly that process, so nothing is mistaken for it.
"""

from __future__ import annotations

import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

START_TIME_FIELD = 22
"""Of /proc/<pid>/stat, counted from 1: clock ticks since boot."""


class Producer(NamedTuple):
    """One life of one process."""

    pid: int
    started: int

    @classmethod
    def this_process(cls) -> Producer:
        """The caller's own."""
        return cls(os.getpid(), _started(os.getpid()))

    @property
    def name(self) -> str:
        """The same for every life under this process id."""
        return f"process {self.pid}"


@dataclass(frozen=True)
class PoolAnnouncement:
    """What a tokenizer process tells the scheduler when it is ready.

    Attributes:
        producer: the process.
        handle: its pool's handle, as PyTorch exports a storage.
    """

    producer: Producer
    handle: tuple[Any, ...]


@dataclass(frozen=True)
class ProducerEnded:
    """What a scheduler's first rank tells the others: this producer is gone.

    Attributes:
        producer: the process.
    """

    producer: Producer


class Watch:
    """Tells when producers are gone."""

    def __init__(self) -> None:
        self._descriptors: dict[Producer, int] = {}
        self._poll = select.poll()
        self._gone: set[Producer] = set()

    def lives(self, producer: Producer) -> bool:
        """Whether a producer exists; it is watched from now on."""
        if producer in self._gone:
            return False
        if producer in self._descriptors:
            return True
        try:
            descriptor = os.pidfd_open(producer.pid)
        except ProcessLookupError:
            self._gone.add(producer)
            return False
        # Looked up after the descriptor is held: it is this life, or a later one.
        if _started(producer.pid) != producer.started:
            os.close(descriptor)
            self._gone.add(producer)
            return False
        self._descriptors[producer] = descriptor
        self._poll.register(descriptor, select.POLLIN)
        return True

    def news(self) -> bool:
        """Whether `ended` would name anybody."""
        return bool(self._descriptors and self._poll.poll(0))

    def ended(self) -> list[Producer]:
        """The producers that have ended since the last call."""
        if not self._descriptors:
            return []
        ready = {descriptor for descriptor, _ in self._poll.poll(0)}
        ended = [one for one, descriptor in self._descriptors.items() if descriptor in ready]
        for producer in ended:
            self._forget(producer)
            self._gone.add(producer)
        return ended

    def close(self) -> None:
        """Watch nobody any more."""
        for producer in list(self._descriptors):
            self._forget(producer)

    def _forget(self, producer: Producer) -> None:
        descriptor = self._descriptors.pop(producer)
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _started(pid: int) -> int:
    """The moment at which a process started; -1 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    # The second field is a name in brackets, which may hold anything.
    return int(text.rpartition(")")[2].split()[START_TIME_FIELD - 3])
