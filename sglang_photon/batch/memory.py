"""Memory of large blocks goes back to the system when they are freed.

Requests with pictures are blocks of a megabyte, made in many threads. By default the C library
raises the size from which a block is mapped apart as soon as one is freed, keeps later ones in its
arenas, and these grow with their gaps: measured, three times what the rows take.
"""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3
MAPPED_APART = 512 << 10
"""Bytes from which a block is mapped apart."""


def return_large_blocks() -> None:
    """Fix that size for this process; does nothing where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_APART)
