"""The journal of a job: what makes it resumable, beside the results themselves.

Results are lines of a file, and such a line is all that a finished row needs: its `id` holds the
row's fingerprint. The journal adds what the results cannot hold. Every record is one JSON line:

    {"photon_batch": 1, "form": "..."}     first: the format, and what the job writes
    {"id", "f", "q"}                       a result is on disk: fingerprint, quick mark of its row
    {"id", "f", "q", "line"}               the row failed; the error line

    result written ─▶ results fsynced ─▶ record written ─▶ journal fsynced ─▶ error line written

A crash between any two of these, or in the middle of one, loses nothing that cannot be derived
again: a torn last line was never promised to anybody and is cut off, a result without a record is
known by its own line, and the error file is made from the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from sglang_photon.batch.rows import Mark
from sglang_photon.errors import PhotonError, UsageError

FORMAT = 1


@dataclass(slots=True)
class Past:
    """What the journal tells about earlier runs.

    Attributes:
        form: what the job writes; empty for a new job.
        marks: of every row that has ended, by custom_id.
        failed: where in the journal the error line of a failed row stands.
    """

    form: str = ""
    marks: dict[str, Mark] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)


class Journal:
    """One job's journal, locked against a second run.

    Args:
        path: made if it is not there.

    Raises:
        UsageError: another run holds it, or it is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        is_new = not path.exists()
        self._file: IO[bytes] = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                f"Another run is working on this job ({path} is locked)",
                "Wait for it to end, or give another --output",
            ) from None
        if is_new:
            sync_folder(path)
        try:
            self.past = self._read()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let the lock go."""
        self._file.close()

    def start(self, form: str) -> None:
        """Make this the journal of a new job."""
        self._file.truncate(0)
        self.past = Past(form=form)
        self.append([{"photon_batch": FORMAT, "form": form}])

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add records, and wait until they are on disk.

        Raises:
            OSError: they could not be written; none of them counts.
        """
        lines = b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records)
        append_all(self._file, lines)

    def error_lines(self, without: set[str]) -> Iterator[bytes]:
        """Lines of the error file: of all failed rows but those that are tried again."""
        with self.path.open("rb") as file:
            for custom_id, offset in self.past.failed.items():
                if custom_id not in without:
                    file.seek(offset)
                    line = orjson.loads(file.readline())["line"]
                    yield orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)

    def _read(self) -> Past:
        """Everything that is whole; what is torn is cut off."""
        past = Past()
        self._file.seek(0)
        offset = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                record = parsed(line)
                if offset == 0:
                    past.form = self._form(record)
                elif record is not None:
                    self._remember(past, record, offset)
                offset += len(line)
        self._file.truncate(offset)
        return past

    def _form(self, record: Any) -> str:
        if isinstance(record, dict) and record.get("photon_batch") == FORMAT:
            return str(record["form"])
        raise UsageError(
            f"{self.path} is no journal of a batch job", "Move it away, or give another --output"
        )

    def _remember(self, past: Past, record: Any, offset: int) -> None:
        custom_id = record.get("id")
        past.marks[custom_id] = Mark(fingerprint=record["f"], quick=record["q"])
        past.failed.pop(custom_id, None)
        if "line" in record:
            past.failed[custom_id] = offset


def parsed(line: bytes) -> Any:
    """The JSON object of a line; None where it is none, as after a power loss."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def append_all(file: IO[bytes], data: bytes) -> None:
    """Append to an unbuffered file and wait for the disk; all of it or nothing.

    Raises:
        OSError: the disk is full or broken; what was written of it is taken back.
    """
    start = file.seek(0, os.SEEK_END)
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(start)
        raise


def make_folder(path: Path) -> None:
    """Make the folder that a file is to lie in.

    Raises:
        PhotonError: it cannot be made.
    """
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_problem(path, error) from None


def sync_folder(path: Path) -> None:
    """Make a new or renamed file's name survive a power loss."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def disk_problem(path: Path, error: OSError) -> PhotonError:
    """What a person reads when a file cannot be written."""
    return PhotonError(
        f"{path} cannot be written ({error.strerror or error})",
        "Everything up to here is safe: make room, then run the same command again",
    )
