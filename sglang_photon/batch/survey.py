"""The first look at all rows: what is wrong with them, and what is already done.

Nothing is sent before every line has been read: a job that will be refused is refused in seconds,
with the number of each line that is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_photon.batch import media
from sglang_photon.batch.lines import Bad, Source
from sglang_photon.batch.media import MediaRoot
from sglang_photon.batch.rows import URLS, Row, RowError
from sglang_photon.batch.store import Standing, Store
from sglang_photon.errors import PhotonError

SHOWN = 20


class Defaults:
    """A source whose rows get what the command line adds to all of them.

    Args:
        source: the rows.
        model: for requests that name none.
        response_format: for chats that ask for none.
    """

    def __init__(
        self, source: Source, *, model: str | None, response_format: Mapping[str, Any] | None
    ) -> None:
        self._source = source
        self._model = model
        self._response_format = response_format

    @property
    def blank(self) -> int:
        """Blank lines that the last reading passed over."""
        return self._source.blank

    def rows(self) -> Iterator[Row | Bad]:
        """The rows, completed."""
        for row in self._source.rows():
            if isinstance(row, Row):
                if self._model is not None:
                    row.body.setdefault("model", self._model)
                if self._response_format is not None and row.url == URLS[0]:
                    row.body.setdefault("response_format", self._response_format)
            yield row


@dataclass(kw_only=True)
class Survey:
    """What all rows are.

    Attributes:
        rows: how many.
        pictures: how many they name.
        embeddings: whether any asks for vectors.
        done: of them, have a result.
        failed: of them, have failed for good and are left alone.
        again: custom_ids whose result or error does not count any more.
        changed: numbers of rows that have a result of another request.
        dropped: custom_ids of which something is on disk and that are not in the input.
    """

    rows: int = 0
    pictures: int = 0
    embeddings: bool = False
    done: int = 0
    failed: int = 0
    again: set[str] = field(default_factory=set)
    changed: list[int] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a second run does with rows of the first.

    Attributes:
        changed: `refuse`, `rerun` or `keep` results of rows that are other rows now.
        retry_failed: run rows again that failed for good.
    """

    changed: str = "refuse"
    retry_failed: bool = False


class InputError(PhotonError):
    """Rows that cannot be run, by their numbers."""


def survey(source: Source, *, store: Store | None, root: MediaRoot, rules: Rules) -> Survey:
    """Look at every row.

    Args:
        source: the rows.
        store: what is on disk; None for a look without a job.
        root: where local pictures may lie.
        rules: for rows that were run before.

    Raises:
        InputError: lines that are no rows, custom_ids that are not unique, or changed rows where
            these are refused.
    """
    found = Survey()
    bad: list[Bad] = []
    first_at: dict[str, int] = {}
    for row in source.rows():
        if isinstance(row, Bad):
            bad.append(row)
            continue
        earlier = first_at.setdefault(row.custom_id, row.number)
        if earlier != row.number:
            bad.append(Bad(row.number, f"custom_id {row.custom_id!r} is that of line {earlier}"))
            continue
        _count(found, row)
        if store is not None:
            _stand(found, row, store.standing(row, root), rules)
    _refuse(bad, "cannot be run")
    if not found.rows:
        raise InputError("The input has no rows", "Give one request on each line")
    if found.changed and rules.changed == "refuse":
        bad = [Bad(number, "another request than the one that was run") for number in found.changed]
        _refuse(bad, "have changed", "--changed rerun runs them again, --changed keep leaves them")
    if store is not None:
        found.dropped = store.known - first_at.keys()
    return found


def _count(found: Survey, row: Row) -> None:
    found.rows += 1
    found.embeddings |= row.url == URLS[2]
    with contextlib.suppress(RowError):  # It becomes an error row.
        found.pictures += len(media.places(row))


def _stand(found: Survey, row: Row, standing: Standing, rules: Rules) -> None:
    if standing is Standing.CHANGED and rules.changed != "keep":
        found.changed.append(row.number)
        found.again.add(row.custom_id)
    elif standing in (Standing.DONE, Standing.CHANGED):
        found.done += 1
    elif standing is Standing.FAILED and not rules.retry_failed:
        found.failed += 1
    else:
        found.again.add(row.custom_id)


def _refuse(bad: list[Bad], what: str, remedy: str = "Mend them; nothing was sent") -> None:
    if not bad:
        return
    lines = [f"\n  line {one.number}: {one.problem}" for one in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"\n  and {len(bad) - SHOWN} more")
    noun = "line" if len(bad) == 1 else "lines"
    raise InputError(f"{len(bad)} {noun} of the input {what}:{''.join(lines)}\n", remedy)
