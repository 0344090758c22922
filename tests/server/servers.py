"""Servers for tests: started with a limit, stopped like a user stops them, and searched for traces.

`ServerProcess` kills what is left when it stops. A test must not be fooled by that, so `Running`
stops the server by a signal first and looks for what is left before anything is swept up. Processes
are recognised by a variable in their environment: it reaches orphans too, and keeps other servers
on the same machine out of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import openai
import psutil

from sglang_photon.server_process import LAUNCHER, ServerProcess

MODEL = "demo"
MARK = "PHOTON_TEST_SERVER"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Threads gain nothing in models this small, and on busy cores each step waits for all of them."""
STOP_LIMIT_S = 60.0
SHARED_MEMORY = "/dev/shm/"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What a stopped server left.

    Attributes:
        exit_code: of its main process; None where it did not end in time.
        processes: command lines of processes that outlived it.
        ports: TCP ports it listened on and that something still listens on.
        segments: its files in shared memory that still exist.
        temporary: files that still lie in its temporary folder, sockets marked.
    """

    exit_code: int | None
    processes: tuple[str, ...]
    ports: tuple[int, ...]
    segments: tuple[str, ...]
    temporary: tuple[str, ...]


CLEAN = Ending(exit_code=0, processes=(), ports=(), segments=(), temporary=())


@dataclass(kw_only=True)
class Running:
    """A server for the span of a `with` block; its end is checked wherever `ending` is asked for.

    Args:
        arguments: the launcher's arguments.
        folder: for the log.
        environ: variables to add.
        launcher: the command that takes the arguments.
    """

    arguments: Sequence[str]
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    launcher: Sequence[str] = LAUNCHER

    def __enter__(self) -> Running:
        self._mark = uuid.uuid4().hex
        # A socket's path may have 107 bytes: pytest's own folders are too deep.
        self._temporary = Path(tempfile.mkdtemp(prefix="pt-"))
        self._ending: Ending | None = None
        self.server = ServerProcess(
            self.arguments,
            log=self.folder / f"server-{self._mark[:8]}.log",
            environ={
                **ONE_THREAD,
                **self.environ,
                MARK: self._mark,
                "TMPDIR": str(self._temporary),
            },
            launcher=self.launcher,
        )
        try:
            self.server.__enter__()
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise
        self.client = openai.OpenAI(
            base_url=f"{self.server.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self.client.close()
            self.server.stop()
            for segment in self._ending.segments if self._ending else ():
                Path(segment).unlink(missing_ok=True)
            shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def url(self) -> str:
        """The server's root."""
        return self.server.url

    @property
    def log(self) -> str:
        """Everything it has printed so far."""
        return self.server.log.read_text(errors="replace")

    def get(self, path: str) -> Any:
        """The JSON that the server answers to a GET request."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:
            return json.load(response)

    def post(self, path: str, body: Mapping[str, Any], *, limit_s: float = 30) -> httpx.Response:
        """The answer to a POST request."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=limit_s, trust_env=False)

    def used_tokens(self) -> int:
        """KV slots that running requests hold, over all ranks; cached ones are not counted."""
        return sum(int(load["num_used_tokens"]) for load in self.get("/v1/loads")["loads"])

    def running_requests(self) -> int:
        """Requests in the scheduler: running and waiting, over all ranks."""
        loads = self.get("/v1/loads")["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    def schedulers(self) -> list[int]:
        """Process ids of the schedulers, known by the title that SGLang gives them."""
        family = self.server.processes()
        return [p.pid for p in family if "sglang::scheduler" in " ".join(p.cmdline())]

    def stop(self, signum: signal.Signals = signal.SIGINT) -> Ending:
        """Stop the server by a signal to its main process and look around; once.

        Args:
            signum: SIGTERM lets running requests end, for which SGLang looks every 5 s.
        """
        if self._ending is None:
            family = self.server.processes()
            ports = _listening(family)
            segments = _segments(family)
            os.kill(self.server.pid, signum)
            psutil.wait_procs(family, timeout=STOP_LIMIT_S)
            codes = [getattr(p, "returncode", None) for p in family if p.pid == self.server.pid]
            self._ending = Ending(
                exit_code=codes[0] if codes else None,
                processes=_settled(lambda: marked_processes(self._mark)),
                ports=_settled(lambda: _still_listening(ports)),
                segments=_settled(lambda: tuple(s for s in segments if Path(s).exists())),
                temporary=_settled(lambda: _files(self._temporary)),
            )
        return self._ending


def wait_until(condition: Callable[[], bool], *, limit_s: float) -> float:
    """Poll until a condition holds; returns the seconds it took, or fails at the deadline."""
    began = time.monotonic()
    while not condition():
        elapsed = time.monotonic() - began
        assert elapsed < limit_s, f"did not happen within {limit_s} s"
        time.sleep(0.02)
    return time.monotonic() - began


def marked_processes(mark: str) -> tuple[str, ...]:
    """Command lines of the living processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            carries = process.environ().get(MARK) == mark
            if carries and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()) or process.name())
        except psutil.Error:
            continue
    return tuple(found)


def _settled(look: Callable[[], tuple[T, ...]], limit_s: float = 2.0) -> tuple[T, ...]:
    """What a look still finds at a deadline: the kernel takes a moment to clear a process away."""
    deadline = time.monotonic() + limit_s
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _listening(family: Sequence[psutil.Process]) -> set[int]:
    ports: set[int] = set()
    for process in family:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.Error:
            continue
        ports |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return ports


def _still_listening(ports: set[int]) -> tuple[int, ...]:
    now = psutil.net_connections(kind="tcp")
    return tuple(
        sorted(ports & {c.laddr.port for c in now if c.status == psutil.CONN_LISTEN and c.laddr})
    )


def _segments(family: Sequence[psutil.Process]) -> tuple[str, ...]:
    found: set[str] = set()
    for process in family:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
        words = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
        found |= {word for word in words if word.startswith(SHARED_MEMORY)}
    return tuple(sorted(path for path in found if not path.endswith("(deleted)")))


def _files(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(f"{path.name}{' (socket)' if path.is_socket() else ''}" for path in folder.iterdir())
    )
