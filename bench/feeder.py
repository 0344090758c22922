"""A stand-in for the tokenizer process: sends recorded messages at their times.

It runs as a process of its own, as the tokenizer does, and does what the tokenizer does last:
copies the pixels into shared memory and sends the message. What comes before (loading, resizing,
hashing) has been recorded, so that it takes no time from the scheduler that is measured.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import zmq

SHARED_MEMORY = Path("/dev/shm")
LEAD_S = 0.15
"""Segments are written this long before their message is due; the copy must not delay it."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A file of shared memory with random pixels.

    Attributes:
        name: in shared memory.
        nbytes: its size.
        stamp: a number that makes its content unique.
    """

    name: str
    nbytes: int
    stamp: int

    def write(self, pixels: bytes) -> None:
        """Make the file."""
        with (SHARED_MEMORY / self.name).open("xb+") as file:
            os.posix_fallocate(file.fileno(), 0, self.nbytes)
            with mmap.mmap(file.fileno(), self.nbytes) as memory:
                memory[:] = pixels[: self.nbytes]
                memory[:8] = self.stamp.to_bytes(8, "little")


@dataclass(frozen=True, kw_only=True)
class Message:
    """A recorded message.

    Attributes:
        due: seconds after the start.
        frame: its bytes.
        segments: what must be in shared memory before.
    """

    due: float
    frame: bytes
    segments: tuple[Segment, ...] = ()


def start(address: str, messages: Sequence[Message], *, at: float) -> BaseProcess:
    """Send messages from another process, which ends by itself.

    Args:
        address: of the scheduler's socket.
        messages: each with its time.
        at: the time 0 of the messages, by `time.perf_counter`, which all processes share.
    """
    process = get_context("spawn").Process(
        target=feed, args=(address, list(messages), at), daemon=True
    )
    process.start()
    return process


def feed(address: str, messages: Sequence[Message], at: float) -> None:
    """Send messages to a socket, each at its time."""
    largest = max((s.nbytes for m in messages for s in m.segments), default=0)
    pixels = os.urandom(largest)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        steps = [
            *((m.due - LEAD_S * len(m.segments), 0, m) for m in messages if m.segments),
            *((m.due, 1, m) for m in messages),
        ]
        for due, sending, message in sorted(steps, key=lambda step: step[:2]):
            time.sleep(max(0.0, at + due - time.perf_counter()))
            if sending:
                socket.send(message.frame)
            else:
                for segment in message.segments:
                    segment.write(pixels)


def remove(messages: Sequence[Message]) -> None:
    """Remove what a run that failed has left in shared memory."""
    for message in messages:
        for segment in message.segments:
            (SHARED_MEMORY / segment.name).unlink(missing_ok=True)
