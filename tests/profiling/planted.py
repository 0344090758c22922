"""A child process with a planted fault: started, profiled, compared with its own clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SERVER = Path(__file__).with_name("fault_server.py")
START_LIMIT_S = 120.0
SLEEP = "import time\n\n\ndef {name}(seconds):\n    time.sleep(seconds)\n"
WAIT = "def {name}(lane, slot):\n    lane.wait(slot)\n"


@dataclass(kw_only=True)
class Planted:
    """A running scheduler with a fault.

    Attributes:
        process: it.
        fault: which.
        folder: for planted functions.
        truth: where the device's own clock is written.
    """

    process: subprocess.Popen[str]
    fault: str
    folder: Path
    truth: Path

    @property
    def pid(self) -> int:
        """Of the process: all that the profiler gets."""
        return self.process.pid

    def plant(self) -> str:
        """Put a function with a new name in the fault's place; returns the name."""
        name = f"f{uuid.uuid4().hex[:12]}"
        file = self.folder / f"{name}.py"
        file.write_text((WAIT if self.fault == "hidden copy" else SLEEP).format(name=name))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "planted\n"
        return name

    def idle_pct(self, span: tuple[float, float]) -> float:
        """The device's own idle share from the start of one step to the end of another."""
        # The last line may be half written.
        lines = self.truth.read_text().splitlines()[:-1]
        moments, idle = np.array([[float(word) for word in line.split()] for line in lines]).T
        before, after = idle[np.searchsorted(moments, np.array(span) + 1e-6, side="right") - 1]
        return float(after - before) / (span[1] - span[0]) * 100


@contextmanager
def planted(fault: str, folder: Path, *, loop: str = "photon") -> Iterator[Planted]:
    """Run a scheduler with a fault; it ends with the block."""
    truth, errors = folder / "truth", folder / "log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), fault, str(truth), loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == "serving\n", errors.read_text()[-2000:]
        yield Planted(process=process, fault=fault, folder=folder, truth=truth)
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def photon_profile(*words: object, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run `photon profile ...` as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "sglang_photon", "profile", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def verdict(pid: int, folder: Path, *words: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON and text of a verdict on a process."""
    file = folder / f"verdict-{uuid.uuid4().hex[:8]}.json"
    done = photon_profile("verdict", "--pid", pid, "--json", file, *words)
    assert file.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(file.read_text()), done.stdout
