"""What SGLang leaves on a machine when its server ends, removed by the launcher.

Every start makes five files for sockets in the temporary folder and one segment in shared memory
for load reports. SGLang ends its processes by SIGKILL and removes none of them, so a machine on
which servers come and go fills up. Nothing of SGLang is changed for this, stock loops included: the
launcher gives its own process a temporary folder and asks SGLang's objects for the segment's name.
A launcher that is killed removes nothing; the next one removes its folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PREFIX = "photon-"
SOCKET_NAME = "tmpabcdefgh"
LONGEST_SOCKET_PATH = 107
HTTP_SERVER = "sglang.srt.entrypoints.http_server"


@contextmanager
def removed() -> Iterator[None]:
    """Run a server inside; its processes must have ended before this block does."""
    sweep(Path(tempfile.gettempdir()))
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    usual = tempfile.tempdir
    if len(f"{folder}/{SOCKET_NAME}") <= LONGEST_SOCKET_PATH:
        tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = usual
        shutil.rmtree(folder, ignore_errors=True)
        segment = load_segment()
        if segment is not None:
            segment.unlink(missing_ok=True)


def sweep(parent: Path) -> None:
    """Remove the folders of launchers that were killed before they could."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def load_segment() -> Path | None:
    """The shared-memory file of this server's load reports.

    None where it is not known here: before a server has started, and with several tokenizer
    workers, which read it in their own processes.
    """
    # Not imported here: SGLang imports it after its arguments are resolved, which sets variables
    # that modules read while they load.
    module = sys.modules.get(HTTP_SERVER)
    state = None if module is None else module.get_global_state()
    reader = getattr(getattr(state, "tokenizer_manager", None), "load_snapshot_reader", None)
    path = getattr(reader, "path", None)
    return None if path is None else Path(path)
