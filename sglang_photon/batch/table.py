"""Rows from a table, CSV or Parquet: one request for each of its rows."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pybase64

from sglang_photon.batch.folder import chat
from sglang_photon.batch.lines import Bad
from sglang_photon.batch.rows import URLS, Row
from sglang_photon.errors import UsageError

FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
ROWS_AT_ONCE = 64
"""Of a Parquet file, which may hold the pictures themselves."""
ROW_BYTES = 2000


class Table:
    """A CSV file with a header, or a Parquet file.

    Args:
        path: by its suffix, `.parquet` or CSV.
        template: the question; `{column}` stands for what is in that column, `{{` for a brace.
        image_column: paths, web addresses, data URLs, or (Parquet) the pictures' bytes.
        id_column: names each row; None takes the row's number.
        options: further fields of each request.

    Raises:
        UsageError: it cannot be read, or has no such column.
    """

    def __init__(
        self,
        path: Path,
        *,
        template: str,
        image_column: str | None,
        id_column: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self.blank = 0
        self._path = path
        self._template = template
        self._image_column = image_column
        self._id_column = id_column
        self._options = dict(options)
        self._is_parquet = path.suffix.lower() in (".parquet", ".pq")
        used = [name for name in FIELD.findall(template) if name]
        used += [name for name in (image_column, id_column) if name is not None]
        self._check_columns(used)
        self._used = list(dict.fromkeys(used))

    def rows(self) -> Iterator[Row | Bad]:
        """One row for each row of the table.

        Raises:
            UsageError: the file cannot be read to its end.
        """
        try:
            records = self._parquet() if self._is_parquet else self._csv()
            for number, record in enumerate(records, 1):
                yield self._row(number, record)
        except (OSError, ValueError, csv.Error) as error:
            raise self._unreadable(error) from None

    def _row(self, number: int, record: Mapping[str, Any]) -> Row | Bad:
        if None in record or any(record.get(name, 0) is None for name in self._key_columns()):
            return Bad(number, "has more or fewer fields than the header, or an empty key field")
        custom_id = str(number) if self._id_column is None else str(record[self._id_column])
        if not custom_id:
            return Bad(number, f"has nothing in the column {self._id_column!r}")
        picture = None
        if self._image_column is not None:
            picture = _address(record[self._image_column])
            if picture is None:
                return Bad(number, f"has no picture in the column {self._image_column!r}")
        body = chat(fill(self._template, record), picture, self._options)
        size = ROW_BYTES + 2 * len(picture or "")
        return Row(number=number, custom_id=custom_id, url=URLS[0], body=body, size=size)

    def _key_columns(self) -> list[str]:
        return [name for name in (self._id_column, self._image_column) if name is not None]

    def _csv(self) -> Iterator[dict[str, Any]]:
        csv.field_size_limit(min(sys.maxsize, 1 << 30))
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file)

    def _parquet(self) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=self._used or None):
                yield from batch.to_pylist()

    def _check_columns(self, used: list[str]) -> None:
        try:
            if self._is_parquet:
                import pyarrow.parquet as pq

                names = list(pq.read_schema(self._path).names)
            else:
                with self._path.open(encoding="utf-8-sig", newline="") as file:
                    names = next(csv.reader(file), [])
        except (OSError, ValueError, csv.Error) as error:
            raise self._unreadable(error) from None
        missing = [name for name in used if name not in names]
        if missing:
            raise UsageError(
                f"{self._path} has no column {missing[0]!r}", f"Its columns: {', '.join(names)}"
            )

    def _unreadable(self, error: Exception) -> UsageError:
        return UsageError(f"{self._path} cannot be read ({error})", "Give a CSV or Parquet file")


def fill(template: str, record: Mapping[str, Any]) -> str:
    """The template with a record's values; nothing but `{column}` means anything in it."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        found = record.get(match[1])
        return "" if found is None else str(found)

    return FIELD.sub(value, template)


def _address(value: Any) -> str | None:
    """What a picture column holds, as an address."""
    if isinstance(value, dict):
        # As the Hugging Face `datasets` library stores pictures.
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return f"data:application/octet-stream;base64,{pybase64.b64encode(value).decode()}"
    return value if isinstance(value, str) and value else None
