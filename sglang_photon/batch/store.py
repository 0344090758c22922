"""What a job has on disk: results, errors and journal; read when it starts, added to as it runs.

    OUT.jsonl                 results, a line each; the truth about what is done
    OUT.errors.jsonl          rows without one; made from the journal
    OUT.jsonl.journal         see `journal`

Where the output has another form (`--keep-order`, `--to`), results go to `OUT.results.jsonl` first,
and the output is made from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, NamedTuple

from sglang_photon.batch import media
from sglang_photon.batch.journal import Journal, append_all, disk_problem, parsed, sync_folder
from sglang_photon.batch.media import MediaRoot
from sglang_photon.batch.rows import ID_PREFIX, Fate, Mark, Outcome, Row, RowError, Usage
from sglang_photon.errors import UsageError


class Span(NamedTuple):
    """Where a result's line stands in the results file, in bytes."""

    offset: int
    length: int


class Known(NamedTuple):
    """A result on disk: the fingerprint of its row, and where it stands."""

    fingerprint: str
    span: Span


class Standing(Enum):
    """How an input row stands when a job is run again."""

    NEW = "new"
    DONE = "done"
    CHANGED = "changed"
    """It has a result, of another request."""
    FAILED = "failed"
    """It failed for good, and is what it was."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The files of a job.

    Attributes:
        output: what the person asked for.
        results: JSON Lines in completion order; the output itself where that is asked for.
        errors: rows without a result.
        journal: what makes it resumable.
    """

    output: Path
    results: Path
    errors: Path
    journal: Path

    @classmethod
    def of(cls, output: Path, *, errors: Path | None, derived: bool) -> Paths:
        """The files of a job; `derived` where the output is made from the results."""
        results = output.with_name(output.stem + ".results.jsonl") if derived else output
        return cls(
            output=output,
            results=results,
            errors=errors or output.with_name(output.stem + ".errors.jsonl"),
            journal=output.with_name(output.name + ".journal"),
        )


class Store:
    """One job on disk; to be used inside `with`.

    Args:
        paths: its files.
        form: what it writes; a later run must ask for the same.
        overwrite: forget what is there.

    Raises:
        UsageError: another run is at it, the output is somebody else's, or of another form.

    Attributes:
        done: results on disk, by custom_id.
        usage: tokens of all results, those of this run included.
        invalid: how many of all results `--validate` has found wanting.
    """

    def __init__(self, *, paths: Paths, form: str, overwrite: bool = False) -> None:
        self.paths = paths
        self.done: dict[str, Known] = {}
        self.usage = Usage()
        self.invalid = 0
        self._unusable: list[Span] = []
        self._errors: IO[bytes] | None = None
        self._journal = _open_journal(paths.journal)
        try:
            self._open(form, overwrite)
        except OSError as error:
            self._journal.close()
            raise disk_problem(paths.results, error) from None
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self._results.close()
        if self._errors is not None:
            self._errors.close()
        self._journal.close()

    @property
    def known(self) -> set[str]:
        """Every row of which something is on disk."""
        return self.done.keys() | self._journal.past.failed.keys()

    @property
    def failed(self) -> int:
        """Rows that have failed for good."""
        return len(self._journal.past.failed)

    def has_failed(self, custom_id: str) -> bool:
        """Whether a row has failed for good."""
        return custom_id in self._journal.past.failed

    def standing(self, row: Row, root: MediaRoot) -> Standing:
        """How a row stands. Pictures are read only where their size or time has changed."""
        known = self.done.get(row.custom_id)
        mark = self._journal.past.marks.get(row.custom_id)
        if known is None:
            if row.custom_id not in self._journal.past.failed or mark is None:
                return Standing.NEW
            return Standing.FAILED if _quick(row, root) == mark.quick else Standing.NEW
        recorded = mark is not None and mark.fingerprint == known.fingerprint
        if recorded and mark is not None and _quick(row, root) == mark.quick:
            return Standing.DONE
        same = media.mark_of(row, root).fingerprint == known.fingerprint
        return Standing.DONE if same else Standing.CHANGED

    def begin(self, again: Iterable[str]) -> None:
        """Take back the results and errors of rows that are run again; after a look at all rows.

        Raises:
            PhotonError: a file cannot be written.
        """
        again = set(again)
        try:
            for custom_id in again & self.done.keys():
                self._unusable.append(self.done.pop(custom_id).span)
            if self._unusable:
                self._rewrite_results()
            self._rewrite_errors(again)
        except OSError as error:
            raise disk_problem(self.paths.results, error) from None
        for custom_id in again:
            self._journal.past.failed.pop(custom_id, None)

    def abandon(self) -> None:
        """Leave no trace of a job that was refused before it began."""
        if not self.known:
            for path in (self.paths.results, self.paths.journal):
                path.unlink(missing_ok=True)

    def commit(self, outcomes: Sequence[Outcome]) -> list[Span | None]:
        """Put outcomes on disk; results are safe when this returns.

        Returns:
            Where the result of each stands; None for those without one.

        Raises:
            PhotonError: the disk is full or broken. Nothing of a line is left behind.
        """
        lines = b"".join(o.line for o in outcomes if o.fate is Fate.DONE)
        failed = b"".join(o.line for o in outcomes if o.fate is not Fate.DONE)
        path = self.paths.results
        try:
            offset = os.fstat(self._results.fileno()).st_size
            if lines:
                append_all(self._results, lines)
            path = self.paths.journal
            records = [_record(o) for o in outcomes if o.fate is not Fate.UNSERVED]
            if records:
                self._journal.append(records)
            path = self.paths.errors
            if failed:
                self._add_errors(failed)
        except OSError as error:
            raise disk_problem(path, error) from None
        return self._remember(outcomes, offset)

    def _remember(self, outcomes: Sequence[Outcome], offset: int) -> list[Span | None]:
        spans: list[Span | None] = []
        for outcome in outcomes:
            span = None
            if outcome.fate is Fate.DONE:
                span = Span(offset, len(outcome.line))
                offset += span.length
                self.usage += outcome.usage
                self.invalid += outcome.valid is False
            spans.append(span)
        return spans

    def _open(self, form: str, overwrite: bool) -> None:
        results = self.paths.results
        past = self._journal.past
        ours = (self.paths.output, results, self.paths.errors)
        there = [path for path in ours if path.exists() and path.stat().st_size]
        if there and not past.form and not overwrite:
            raise UsageError(
                f"{there[0]} is there already, and {self.paths.journal.name} that would tell "
                "what is in it is not",
                "Give another --output, or --overwrite",
            )
        if past.form and past.form != form and not overwrite:
            raise UsageError(
                f"This job was begun for {past.form}, not for {form}",
                "Ask for the same, or give another --output, or --overwrite",
            )
        if overwrite or not past.form:
            self._journal.start(form)
            for path in (results, self.paths.output, self.paths.errors):
                path.unlink(missing_ok=True)
        self._results = results.open("a+b", buffering=0)
        sync_folder(results)
        self._scan()

    def _scan(self) -> None:
        """Read the results: which rows are done, and what is torn or broken."""
        offset = 0
        with self.paths.results.open("rb", buffering=1 << 20) as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    self._results.truncate(offset)
                    break
                self._take(parsed(line), Span(offset, len(line)))
                offset += len(line)

    def _take(self, value: Any, span: Span) -> None:
        line = value if isinstance(value, dict) else {}
        custom_id, name = (line.get(key) for key in ("custom_id", "id"))
        if (
            not isinstance(custom_id, str)
            or not isinstance(name, str)
            or not name.startswith(ID_PREFIX)
            or custom_id in self.done
        ):
            self._unusable.append(span)
            return
        self.done[custom_id] = Known(name.removeprefix(ID_PREFIX), span)
        self.usage += Usage.of((line.get("response") or {}).get("body"))
        self.invalid += (line.get("validation") or {}).get("valid") is False

    def _rewrite_results(self) -> None:
        """Replace the results by those that still count, in one move."""
        path = self.paths.results
        draft = path.with_name(path.name + ".new")
        with draft.open("wb") as copy:
            for custom_id, known in list(self.done.items()):
                line = os.pread(self._results.fileno(), known.span.length, known.span.offset)
                self.done[custom_id] = known._replace(span=Span(copy.tell(), len(line)))
                copy.write(line)
            copy.flush()
            os.fsync(copy.fileno())
        draft.replace(path)
        sync_folder(path)
        self._results.close()
        self._results = path.open("a+b", buffering=0)
        self._unusable = []

    def _rewrite_errors(self, again: set[str]) -> None:
        path = self.paths.errors
        lines = self._journal.error_lines(again | self.done.keys())
        first = next(lines, None)
        path.unlink(missing_ok=True)
        if first is not None:
            self._add_errors(first)
            for line in lines:
                self._add_errors(line)

    def _add_errors(self, lines: bytes) -> None:
        if self._errors is None:
            self._errors = self.paths.errors.open("ab", buffering=0)
        view = memoryview(lines)
        while view:
            view = view[self._errors.write(view) :]


def _open_journal(path: Path) -> Journal:
    try:
        return Journal(path)
    except OSError as error:
        raise disk_problem(path, error) from None


def _record(outcome: Outcome) -> dict[str, object]:
    mark = outcome.mark or Mark(fingerprint="", quick="")
    record: dict[str, object] = {"id": outcome.custom_id, "f": mark.fingerprint, "q": mark.quick}
    if outcome.fate is Fate.FAILED:
        record["line"] = parsed(outcome.line)
    return record


def _quick(row: Row, root: MediaRoot) -> str:
    try:
        found = media.places(row)
    except RowError:
        found = []
    return media.quick_mark(row, found, root)
