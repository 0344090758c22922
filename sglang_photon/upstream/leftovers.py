"""What SGLang leaves on a machine when its server ends, removed by the launcher.

Every start makes five files for sockets in the temporary folder and one segment in shared memory
for load reports. SGLang ends its processes by SIGKILL and removes none of them, so a machine on
which servers come and go fills up. Nothing of SGLang is changed for this, stock loops included: the
launcher gives its own process a temporary folder and asks SGLang's objects for the segment's name.
A launcher that is killed removes nothing; the next one removes its folder, and the pictures that
its processes had in shared memory.

Python's multiprocessing keeps named semaphores and segments, and a helper process that removes them
when all processes are gone. SGLang kills that helper with all other children. Here the helper is
started as nobody's child, so that it outlives them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

from sglang_photon.ingest import segments

PREFIX = "photon-"
LOCK = "lock"
SOCKET_NAME = "tmpabcdefgh"
LONGEST_SOCKET_PATH = 107
HTTP_SERVER = "sglang.srt.entrypoints.http_server"


@contextmanager
def removed() -> Iterator[None]:
    """Run a server inside; its processes must have ended before this block does."""
    start_helper()
    sweep(Path(tempfile.gettempdir()))
    segments.sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    usual = tempfile.tempdir
    if len(str(folder / SOCKET_NAME)) <= LONGEST_SOCKET_PATH:
        tempfile.tempdir = str(folder)
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    finally:
        tempfile.tempdir = usual
        shutil.rmtree(folder, ignore_errors=True)
        segment = load_segment()
        if segment is not None:
            segment.unlink(missing_ok=True)


def sweep(parent: Path) -> None:
    """Remove the folders of launchers that were killed before they could.

    A launcher holds a lock on its folder for as long as it lives, which is also seen from other
    containers that share the temporary folder.
    """
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def start_helper() -> None:
    """Start multiprocessing's helper as a grandchild whose parent has gone; once per process."""
    tracker = resource_tracker._resource_tracker
    if tracker._fd is not None:
        return
    ours, theirs = socket.socketpair()
    between = os.fork()
    if between == 0:
        # It says what it removes, for those who wrote the program that forgot it.
        sys.warnoptions.append("ignore:resource_tracker:UserWarning")
        try:
            socket.send_fds(theirs, [b"."], [tracker.getfd()])
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        _, files, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(between, 0)
    # A failure changes nothing: multiprocessing then starts its helper itself.
    tracker._fd = files[0] if files else None


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
