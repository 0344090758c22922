"""Folders of launchers that were killed go when the next one starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sglang_photon.upstream.leftovers import sweep


def test_only_folders_of_dead_launchers_are_swept(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f"photon-{ended.pid}-abc"
    alive = tmp_path / f"photon-{os.getpid()}-abc"
    foreign = tmp_path / "photon-notes-abc"
    for folder in (dead, alive, foreign):
        folder.mkdir()
        (folder / "socket").touch()
    sweep(tmp_path)
    assert not dead.exists()
    assert alive.exists()
    assert foreign.exists()
