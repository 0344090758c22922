"""A server as a child process: started, waited for, stopped with all its processes.

Used by the demo and by the tests. The server leads a process group of its own, so that stopping it
reaches every process that it started.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from sglang_photon.errors import PhotonError

LAUNCHER = (sys.executable, "-m", "sglang_photon.launch_server")
LOG_TAIL_LINES = 15
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT = 10000
PORTS_TRIED = 50


class ServerProcess:
    """A launcher, ours by default, on a free port, for the span of a `with` block.

    Args:
        arguments: the launcher's arguments, without `--host` and `--port`.
        log: file that receives everything the server prints.
        environ: variables to add to this process's environment.
        launcher: the command that takes the arguments.
        start_limit_s: seconds until the server must answer.
        stop_limit_s: seconds it may take to end after SIGTERM before it is killed.

    Raises:
        PhotonError: on entry, where the server ends or does not answer in time; holds the last
            lines of its log.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        launcher: Sequence[str] = LAUNCHER,
        start_limit_s: float = 240.0,
        stop_limit_s: float = 30.0,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.start_s = 0.0
        self._command = [*launcher, *arguments, "--port", str(self.port)]
        self._environ = {**os.environ, **_without_proxy(os.environ), **(environ or {})}
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        began = time.monotonic()
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(began + self._start_limit_s)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the server's main process.

        Raises:
            PhotonError: the server has not been started.
        """
        if self._process is None:
            raise PhotonError("The server is not started", "Use it in a with block")
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """The server's main process and all its descendants that are alive."""
        try:
            main = psutil.Process(self.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> int:
        """End the server and every process it started; returns the main process's exit code."""
        if self._process is None:
            return 0
        family = self.processes()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._stop_limit_s)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        return self._process.wait()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines the server printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _wait_until_ready(self, deadline: float) -> None:
        for code in self._exit_codes():
            if code is not None:
                raise PhotonError(
                    f"The server ended with exit code {code}",
                    f"Its last lines ({self.log}):\n{self.log_tail()}",
                )
            if _answers(f"{self.url}/health_generate"):
                return
            if time.monotonic() > deadline:
                raise PhotonError(
                    f"The server did not answer within {self._start_limit_s:.0f} s",
                    f"Its last lines ({self.log}):\n{self.log_tail()}",
                )

    def _exit_codes(self) -> Iterator[int | None]:
        assert self._process is not None
        while True:
            try:
                yield self._process.wait(0.25)
            except subprocess.TimeoutExpired:
                yield None


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on at this moment.

    It lies below the range from which the kernel serves every outgoing connection: a server binds
    its port only when its model is loaded, and until then another process could be given it.
    """
    ephemeral = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    # Some machines serve connections from nearly all ports: then any will do.
    end = ephemeral if ephemeral >= LOWEST_PORT + PORTS_TRIED else 65536
    for port in random.sample(range(LOWEST_PORT, end), PORTS_TRIED):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PhotonError(
        f"{PORTS_TRIED} ports from {LOWEST_PORT} to {end - 1} are all busy",
        "Stop some of the servers on this machine",
    )


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """A server warms itself up over HTTP, which must not go through a proxy."""
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    value = ",".join(part for part in (listed, "127.0.0.1") if part)
    return {"no_proxy": value, "NO_PROXY": value}


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False
