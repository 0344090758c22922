"""Files of launchers that were killed go when the next one starts."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sglang.srt.utils.stale_shm_cleanup import make_shm_name

from sglang_photon.ingest import segments
from sglang_photon.upstream import leftovers


def folder(parent: Path, name: str, *, lock: bool = True) -> Path:
    made = parent / name
    made.mkdir()
    (made / "socket").touch()
    if lock:
        (made / leftovers.LOCK).touch()
    return made


def test_only_folders_of_dead_launchers_are_swept(tmp_path: Path) -> None:
    dead = folder(tmp_path, "photon-dead")
    alive = folder(tmp_path, "photon-alive")
    foreign = folder(tmp_path, "photon-notes", lock=False)
    with (alive / leftovers.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        leftovers.sweep(tmp_path)
    assert [path.exists() for path in (dead, alive, foreign)] == [False, True, True]


def test_temporary_files_of_a_server_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with leftovers.removed():
        socket = Path(tempfile.mkstemp()[1])
        leftovers.sweep(tmp_path)
        assert socket.exists()
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)


def test_a_folder_too_deep_for_a_socket_is_not_made_deeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * (leftovers.LONGEST_SOCKET_PATH - len(str(tmp_path)) - 12))
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with leftovers.removed():
        assert tempfile.gettempdir() == str(deep)
    assert list(deep.iterdir()) == []


FORGETFUL = """
import multiprocessing, os, psutil
from multiprocessing import shared_memory
from sglang_photon.upstream import leftovers

with leftovers.removed():
    lock = multiprocessing.get_context("spawn").Lock()
    segment = shared_memory.SharedMemory(create=True, size=1000)
    print(lock._semlock.name.lstrip("/"), segment.name, flush=True)
    # As SGLang ends: every child is killed, and nothing is cleaned up.
    for child in psutil.Process().children(recursive=True):
        child.kill()
os._exit(0)
"""


def test_named_semaphores_and_segments_are_removed_after_a_brutal_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL], capture_output=True, text=True, check=True, timeout=50
    )
    semaphore, segment = ended.stdout.split()
    left = [Path("/dev/shm", f"sem.{semaphore}"), Path("/dev/shm", segment)]
    deadline = time.monotonic() + 10
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.exists() for path in left] == [False, False]
    assert ended.stderr == ""


def test_the_names_of_segments_are_the_ones_that_are_swept() -> None:
    match = segments.SEGMENT.fullmatch(make_shm_name("mm"))
    assert match is not None
    assert int(match["pid"]) == os.getpid()
