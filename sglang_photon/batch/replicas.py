"""Servers of the job's own: started before it, brought back if they end, stopped after it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from sglang_photon.errors import PhotonError
from sglang_photon.server_process import ServerProcess

RESTARTS = 3
START_LIMIT_S = 1800.0
"""A large model is loaded, or fetched, in this time."""
STOP_LIMIT_S = 30.0


class Replica:
    """One server of ours.

    A thread keeps it: the server ends with that thread, whatever becomes of this process.

    Args:
        arguments: of the launcher.
        log: receives what the server prints.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.restarts = 0
        self._arguments = list(arguments)
        self._log = log
        self._server: ServerProcess | None = None
        self._error: PhotonError | None = None
        self._ready = threading.Event()
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its root; a new one after each start."""
        assert self._server is not None
        return self._server.url

    def start(self) -> None:
        """Begin to start it; `wait` tells when it is there."""
        self._ready.clear()
        self._enough.clear()
        self._thread = threading.Thread(target=self._keep, name="server", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            PhotonError: it does not start.
        """
        # In pieces, so that Ctrl-C is heard.
        while not self._ready.wait(0.2):
            pass
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End it and everything it started."""
        self.part()
        if self._thread is not None:
            self._thread.join()

    def part(self) -> None:
        """Let it end, without waiting for that."""
        self._enough.set()
        if not self._ready.is_set() and self._server is not None:
            # It is still starting, and its thread waits for that: which fails now.
            self._server.stop()

    def ended(self) -> bool:
        """Whether its main process is gone."""
        assert self._server is not None
        try:
            status = psutil.Process(self._server.pid).status()
        except psutil.NoSuchProcess:
            return True
        return bool(status == psutil.STATUS_ZOMBIE)

    async def revive(self) -> bool:
        """Start it again if it has ended; whether it was.

        Raises:
            PhotonError: it has ended too often, or does not start.
        """
        if not self.ended():
            return False
        self.restarts += 1
        if self.restarts > RESTARTS:
            raise PhotonError(
                f"The server has ended {self.restarts} times",
                f"Its last lines:\n{self.log_tail()}\nThe same command resumes the job",
            )
        await asyncio.to_thread(self.stop)
        self.start()
        await asyncio.to_thread(self.wait)
        return True

    def log_tail(self) -> str:
        """The last lines the server printed."""
        return self._server.log_tail() if self._server is not None else ""

    def _keep(self) -> None:
        server = ServerProcess(
            self._arguments,
            log=self._log,
            launcher=(sys.executable, "-m", "sglang_photon.batch.tied", str(os.getpid())),
            start_limit_s=START_LIMIT_S,
            stop_limit_s=STOP_LIMIT_S,
        )
        self._server = server
        try:
            with server:
                self._ready.set()
                self._enough.wait()
        except PhotonError as error:
            self._error = error
        finally:
            self._ready.set()


class Replicas:
    """Servers for the span of a `with` block.

    Args:
        arguments: of each launcher.
        count: how many servers.
    """

    def __init__(self, arguments: Sequence[str], *, count: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="photon-batch-"))
        self.all = [
            Replica(_placed(arguments, index, count), self._folder / f"server-{index}.log")
            for index in range(count)
        ]

    def __enter__(self) -> Replicas:
        try:
            for replica in self.all:
                replica.start()
            for replica in self.all:
                replica.wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for replica in self.all:
            replica.part()
        for replica in self.all:
            replica.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _placed(arguments: Sequence[str], index: int, count: int) -> list[str]:
    """The arguments of one of several servers: each has its own GPUs, if there are any."""
    given = list(arguments)
    if count == 1 or not Path("/dev/nvidia0").exists() or "--base-gpu-id" in given:
        return given
    return [*given, "--base-gpu-id", str(index * _gpus_each(given))]


def _gpus_each(arguments: list[str]) -> int:
    from sglang_photon.arguments import ArgumentList

    items = ArgumentList(arguments)
    return items.number("--tp-size", "--tp", "--tensor-parallel-size", default=1) * items.number(
        "--dp-size", "--dp", "--data-parallel-size", default=1
    )
