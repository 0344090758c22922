"""Read the step records of another process, while it runs, without its help."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_photon.errors import PhotonError
from sglang_photon.observe import layout

Records = npt.NDArray[np.void]
"""(n,) of `layout.RECORD`, oldest first."""


class NoStepsError(PhotonError):
    """The process shows no step records, or not to this user."""


class StepReader:
    """The ring of one process.

    Args:
        memory: the ring's.

    Attributes:
        missed: records that were overwritten before they were read.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        magic, version, size, self._capacity, self.owner, written = layout.HEADER.unpack_from(
            memory
        )
        if magic != layout.MAGIC or version != layout.VERSION or size != layout.RECORD.itemsize:
            raise NoStepsError(
                f"The process writes step records of another kind (version {version})",
                "Use the `photon` of the server's own environment",
            )
        self._next = written
        self.missed = 0

    @classmethod
    def of_process(cls, pid: int, *, proc: Path = Path("/proc")) -> StepReader:
        """Attach to a process; reads begin with the steps that are committed from now on.

        Raises:
            NoStepsError: it shows none, is gone, or belongs to somebody else.
        """
        folder = proc / str(pid) / "fd"
        try:
            for entry in folder.iterdir():
                if _is_ring(entry):
                    with entry.open("rb") as file:
                        reader = cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                    if reader.owner == _own_number(proc, pid):
                        return reader
        except FileNotFoundError:
            raise NoStepsError(f"There is no process {pid}", "Is the server running?") from None
        except PermissionError:
            raise NoStepsError(
                f"The step records of process {pid} belong to another user",
                "Run the profiler as the server's user or as root",
            ) from None
        raise NoStepsError(
            f"Process {pid} keeps no step records",
            "Serve with --photon-loop auto, or with --photon-meter on for SGLang's own loops",
        )

    @property
    def written(self) -> int:
        """Records written since the loop began."""
        return int(layout.WRITTEN.unpack_from(self._memory, layout.WRITTEN_AT)[0])

    def facts(self) -> dict[str, Any]:
        """What the scheduler says about itself."""
        text = self._memory[layout.FACTS_AT : layout.PAGE].split(b"\0", 1)[0]
        return dict(json.loads(text)) if text else {}

    def reasons(self) -> list[str]:
        """The sentences that records refer to; number 1 is the first."""
        page = self._memory[layout.REASONS_AT : layout.RECORDS_AT].rstrip(b"\0")
        return page.decode().splitlines()

    def read(self) -> Records:
        """The records since the last call, as far as they are still there."""
        written = self.written
        first = max(self._next, written - self._capacity)
        ring: Records = np.frombuffer(
            self._memory, dtype=layout.RECORD, offset=layout.RECORDS_AT, count=self._capacity
        )
        numbers = np.arange(first, written)
        records: Records = ring[numbers % self._capacity]
        # The oldest may have been overwritten while they were copied, and one is being written.
        lost = min(max(0, self.written - self._capacity + 1 - first), len(numbers))
        self.missed += first - self._next + lost
        self._next = written
        kept: Records = records[lost:]
        return kept


def _is_ring(entry: Path) -> bool:
    try:
        return layout.NAME in str(entry.readlink())
    except OSError:
        return False


def _own_number(proc: Path, pid: int) -> int:
    """The number by which a process knows itself, which in a container is another one."""
    for line in (proc / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
