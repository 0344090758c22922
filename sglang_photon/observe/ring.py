"""`StepRing`: the last steps of one scheduler, in memory that a profiler may look into.

The memory is an anonymous file (`memfd_create`), which another process opens through the owner's
`/proc/PID/fd`. So nothing lies in a folder that could be left behind, who may look is decided by
the kernel as for a debugger (the same user, or root), and the loop never knows that it is watched.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Mapping

from sglang_photon.observe import layout

logger = logging.getLogger(__name__)


class StepRing:
    """Written by one thread.

    Args:
        capacity: records kept.

    Attributes:
        memory: the whole of it.
        place: where the next record goes, as `layout.PACK` lays it out.
        shared: whether other processes can read it.
    """

    def __init__(self, *, capacity: int = layout.CAPACITY) -> None:
        self._capacity = capacity
        self._written = 0
        self._reasons: dict[str, int] = {}
        self._reasons_end = layout.REASONS_AT
        self.place = layout.RECORDS_AT
        self.memory, self.shared = _memory(layout.RECORDS_AT + capacity * layout.PACK.size)
        layout.HEADER.pack_into(
            self.memory,
            0,
            layout.MAGIC,
            layout.VERSION,
            layout.PACK.size,
            capacity,
            os.getpid(),
            0,
        )

    def describe(self, facts: Mapping[str, object]) -> None:
        """Put facts into the header: which loop runs where; replaces what was there."""
        text = json.dumps(facts).encode()
        if len(text) >= layout.PAGE - layout.FACTS_AT:
            logger.warning("Facts about the loop are too long for profilers: %d bytes", len(text))
            return
        end = layout.FACTS_AT + len(text)
        self.memory[end] = 0
        self.memory[layout.FACTS_AT : end] = text

    def reason(self, text: str) -> int:
        """The number that stands for a sentence; 0 when the page for them is full."""
        number = self._reasons.get(text)
        if number is None:
            line = text.encode() + b"\n"
            end = self._reasons_end + len(line)
            if end >= layout.RECORDS_AT:
                return 0
            self.memory[self._reasons_end : end] = line
            self._reasons_end = end
            number = self._reasons[text] = len(self._reasons) + 1
        return number

    def advance(self) -> None:
        """The record at `place` is complete: show it, and go on to the next place."""
        self._written = written = self._written + 1
        self.place = layout.RECORDS_AT + written % self._capacity * layout.PACK.size
        layout.WRITTEN.pack_into(self.memory, layout.WRITTEN_AT, written)


def _memory(size: int) -> tuple[mmap.mmap, bool]:
    """So many bytes of zeros, and whether others can see them."""
    if not hasattr(os, "memfd_create"):
        return mmap.mmap(-1, size), False
    file = os.memfd_create(layout.NAME, os.MFD_CLOEXEC)
    try:
        # Now, or a full memory would be a SIGBUS in the middle of a step.
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size), True
    except OSError as error:
        logger.warning("Steps cannot be shown to profilers: %s", error)
        return mmap.mmap(-1, size), False
    finally:
        # The mapping has a descriptor of its own, and both go with it.
        os.close(file)
