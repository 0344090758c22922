"""Samples from inside the schedulers, asked for through the server's own `/start_profile`.

Where no process may attach to another, the schedulers sample themselves (`observe/sampler.py`). The
server decides by its own rules who may ask.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.observe.reader import StepReader
from sglang_photon.profiling.targets import Server, Target

if TYPE_CHECKING:
    from sglang_photon.profiling.record import Options

ACTIVITY = "PHOTON_STACKS"
API_KEY = "PHOTON_API_KEY"
WRITES_LIMIT_S = 30.0


class InProcess:
    """One sampler in each scheduler.

    Args:
        server: must be a server with a port.
        targets: schedulers only.
        folder: on a disk that the server writes to as well.
        options: how long, how often.

    Raises:
        NoStepsError: a scheduler is not one of ours, which alone knows how to sample itself.
    """

    def __init__(
        self, server: Server, targets: Sequence[Target], folder: Path, options: Options
    ) -> None:
        if server.port is None:
            raise UsageError(
                f"Process {server.root} has no HTTP port to ask for samples",
                "Use --in-process with a server",
            )
        for target in targets:
            if target.role == "scheduler":
                # SGLang's own scheduler would start torch's profiler instead, and never stop it.
                StepReader.of_process(target.pid)
        self._port = server.port
        self._targets = [target for target in targets if target.role == "scheduler"]
        self._folder = folder
        self._options = options
        self.stopped_pct: list[float | None] = []
        self.cpu_s = 0.0

    def start(self, stack: ExitStack) -> float:
        """Ask the server; every scheduler begins at once."""
        del stack
        body = {
            "activities": [ACTIVITY],
            "output_dir": str(self._folder.resolve()),
            "profile_prefix": f"{self._options.rate}/s for {self._options.seconds} s",
        }
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/start_profile",
            data=json.dumps(body).encode(),
            headers=headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                return time.perf_counter()
        except urllib.error.HTTPError as error:
            raise PhotonError(
                f"The server on port {self._port} refuses to sample itself ({error})",
                f"Give its admin key in {API_KEY}; stock loops need --photon-meter on",
            ) from error
        except OSError as error:
            raise PhotonError(
                f"The server on port {self._port} does not answer ({error})", "Is it running?"
            ) from error

    def alive(self) -> bool:
        """Whether there is still something to record."""
        return any(Path(f"/proc/{target.pid}").exists() for target in self._targets)

    def finish(self) -> dict[int, dict[str, Any]]:
        """Wait until the schedulers have written what they saw."""
        found = {}
        deadline = time.perf_counter() + self._options.seconds + WRITES_LIMIT_S
        for target in self._targets:
            written = self._folder / f"{target.pid}.json"
            while not written.exists() and self.alive() and time.perf_counter() < deadline:
                time.sleep(0.05)
            if not written.exists():
                raise PhotonError(
                    f"Scheduler {target.pid} has written no samples",
                    "It must run Photon's scheduler, on this machine",
                )
            events = json.loads(written.read_text())
            written.rename(self._folder / f"{target.name}.trace.json")
            found[target.pid] = {
                "offset": events[0]["args"]["offset"],
                "samples": events[0]["args"]["samples"],
                "errors": 0,
                "behind": False,
                "non_blocking": True,
                "gil_pct": None,
            }
        return found

    def describe(self) -> str:
        """Which profiler took the samples, and what is wrong with it."""
        return "in-process sampler, biased: it sees a thread only when that lets the GIL go"
