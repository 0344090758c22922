"""Segments of pictures in shared memory whose process is gone.

A tokenizer process that is killed between writing a picture and the scheduler's taking it leaves
the pixels in shared memory for as long as the machine runs. SGLang writes the process into the
name, and sweeps only in its own CI. Here a segment goes when its process does not exist any more
and it is older than any picture waits: a process id means nothing in another container that shares
the same memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SEGMENT = re.compile(r"sgl_shm_mm_(?P<pid>[1-9][0-9]*)_[0-9a-f]+")
UNDISTURBED_S = 120.0


def sweep(folder: Path = SHARED_MEMORY, *, undisturbed: float = UNDISTURBED_S) -> int:
    """Remove what dead processes left.

    Args:
        folder: of shared memory.
        undisturbed: seconds since a segment was written, at least.

    Returns:
        Bytes that were freed.
    """
    freed = 0
    for path in folder.glob("sgl_shm_mm_*"):
        match = SEGMENT.fullmatch(path.name)
        if match is None or _lives(int(match["pid"])):
            continue
        with contextlib.suppress(OSError):
            found = path.stat()
            if time.time() - found.st_mtime >= undisturbed:
                path.unlink()
                freed += found.st_size
    return freed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
