"""Only what is certainly nobody's is swept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_photon.ingest import segments


@pytest.fixture
def dead() -> int:
    """The id of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def write(folder: Path, name: str, *, age: float = 1000.0) -> Path:
    path = folder / name
    path.write_bytes(b"12345")
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_a_dead_process_s_old_segments_go(tmp_path: Path, dead: int) -> None:
    path = write(tmp_path, f"sgl_shm_mm_{dead}_0a1b2c3d")
    assert segments.sweep(tmp_path) == 5
    assert not path.exists()


def test_everything_else_stays(tmp_path: Path, dead: int) -> None:
    kept = [
        write(tmp_path, f"sgl_shm_mm_{os.getpid()}_0a1b2c3d"),
        write(tmp_path, f"sgl_shm_mm_{dead}_1a1b2c3d", age=1.0),
        write(tmp_path, f"sgl_shm_other_{dead}_0a1b2c3d"),
        write(tmp_path, f"sgl_shm_mm_{dead}_not-hex"),
        write(tmp_path, f"sgl_shm_mm_{10**30}_0a1b2c3d"),
        write(tmp_path, "sgl_shm_mm_0_0a1b2c3d"),
        write(tmp_path, f"somebody_{dead}_0a1b2c3d"),
    ]
    assert segments.sweep(tmp_path) == 0
    assert all(path.exists() for path in kept)
