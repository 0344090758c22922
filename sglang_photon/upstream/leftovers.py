"""What SGLang leaves on a machine when its server ends, removed by the launcher.

Every start makes five files for sockets in the temporary folder and one segment in shared memory
for load reports. SGLang ends its processes by SIGKILL and removes none of them, so a machine on
which servers come and go fills up. Nothing of SGLang is changed for this, stock loops included: the
launcher gives its own process a temporary folder and asks SGLang's objects for the segment's name.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang.srt.entrypoints import http_server

PREFIX = "photon-"
"""Short: the path of a socket may have 107 bytes."""


@contextmanager
def removed() -> Iterator[None]:
    """Run a server inside; its processes must have ended before this block does."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    usual, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = usual
        shutil.rmtree(folder, ignore_errors=True)
        segment = load_segment()
        if segment is not None:
            segment.unlink(missing_ok=True)


def load_segment() -> Path | None:
    """The shared-memory file of this server's load reports.

    None where it is not known here: before a server has started, and with several tokenizer
    workers, which read it in their own processes.
    """
    state = http_server.get_global_state()
    reader = getattr(getattr(state, "tokenizer_manager", None), "load_snapshot_reader", None)
    path = getattr(reader, "path", None)
    return None if path is None else Path(path)
