"""How a step's record lies in memory, for the loop that writes it and the profiler that reads it.

    header (one page)   magic, version, sizes, the number of records written so far, facts as JSON
    reasons (one page)  sentences that records refer to by number, one after the other
    records             a ring; record n lies at place n modulo the ring's capacity

The number of records is raised after a record is complete. A reader copies, looks at the number
again, and drops what may have been overwritten meanwhile. All moments are seconds of
`time.perf_counter`, which on Linux is the same clock in every process of the machine.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from sglang_photon.observe.phases import NAMES

MAGIC: Final = b"photstep"
VERSION: Final = 1
PAGE: Final = 4096
CAPACITY: Final = 8192
"""Records in a ring: at 10,000 steps a second, the last 0.8 seconds."""

HEADER: Final = struct.Struct("<8sIIIIQ")
"""Magic, version, bytes of a record, capacity, process id, records written."""

WRITTEN: Final = struct.Struct("<Q")
WRITTEN_AT: Final = HEADER.size - WRITTEN.size
FACTS_AT: Final = HEADER.size
"""From here to the end of the page: JSON in UTF-8, ended by a zero byte."""

REASONS_AT: Final = PAGE
RECORDS_AT: Final = 2 * PAGE

RECORD: Final = np.dtype(
    [
        ("step", "<u8"),
        ("kind", "u1"),
        ("cause", "u1"),
        ("flags", "u1"),
        ("unused", "u1"),
        ("settled", "<u2"),
        ("lockstep", "<u2"),
        ("rows", "<u4"),
        ("zombies", "<u4"),
        ("launch", "<f8"),
        ("launched", "<f8"),
        ("start", "<f8"),
        ("end", "<f8"),
        ("arrived", "<f8"),
        ("committed", "<f8"),
        ("gap", "<f4"),
        ("idle", "<f4"),
        ("spent", "<f8", (len(NAMES),)),
    ]
)
"""One committed step.

step: launch number from 0. kind: 0 prefill, 1 decode. cause: of its lateness, a phase.
flags: `LATE`, `RESTED`, `TIMED`. settled, lockstep: number of the reason, 0 for none.
rows, zombies: launched, and of these already ended at the commit.
launch, launched: the submit began and returned. start, end: on the device. arrived: the result was
there and the commit began. committed: the commit ended.
gap: seconds that the device waited between this step's forward and its sampling.
idle: seconds that it had nothing to do before this step.
spent: seconds of the host in each phase from the start of the loop to this launch; the difference
from the record before is what this launch waited for.
"""

PACK: Final = struct.Struct(f"<QBBBxHHIIddddddff{len(NAMES)}d")
"""The same record; `struct` writes it in one call, numpy would take one for each field."""

LATE: Final = 1
"""The device ran dry before this step although rows were runnable (P8)."""
RESTED: Final = 2
"""There was nothing to run before this step: that the device was idle is nobody's fault."""
TIMED: Final = 4
"""`start`, `end`, `gap` and `idle` were measured."""

KINDS: Final = ("prefill", "decode")
NAME: Final = "photon-steps"
"""Name of the anonymous file, as `/proc/PID/fd` shows it."""

assert PACK.size == RECORD.itemsize
