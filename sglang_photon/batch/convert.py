"""Results as a table: Parquet or CSV, written in one pass with bounded memory.

Columns: custom_id, text, finish_reason, prompt_tokens, completion_tokens; with `--validate` valid
and problem; one for each property of the schema; for embeddings, embedding.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from sglang_photon.batch.answers import first_choice, text_of
from sglang_photon.batch.journal import disk_problem, sync_folder
from sglang_photon.batch.rows import Usage
from sglang_photon.batch.store import Span

ROWS_AT_ONCE = 1024
BYTES_AT_ONCE = 32 << 20
LARGEST = 1 << 63
"""Parquet's whole numbers are below."""
FIXED = ("custom_id", "text", "finish_reason", "prompt_tokens", "completion_tokens")
CHECKED = ("valid", "problem")
EMBEDDING = "embedding"
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the table holds besides the fixed columns.

    Attributes:
        properties: of the schema, with their JSON type; what is none of `TYPES` is kept as JSON.
        checked: whether `--validate` looked.
        embeddings: whether there are vectors.
    """

    properties: Mapping[str, str]
    checked: bool
    embeddings: bool

    @classmethod
    def of(cls, schema: Mapping[str, Any] | None, *, checked: bool, embeddings: bool) -> Columns:
        """The columns of a job with that schema."""
        found: dict[str, str] = {}
        for name, about in ((schema or {}).get("properties") or {}).items():
            kind = about.get("type") if isinstance(about, dict) else None
            found[name] = kind if isinstance(kind, str) and kind in TYPES else "json"
        return cls(properties=found, checked=checked, embeddings=embeddings)

    def title(self, name: str) -> str:
        """The column of a property: its name, unless a fixed column has it."""
        taken = (*FIXED, *CHECKED, EMBEDDING)
        return f"answer_{name}" if name in taken else name

    def titles(self) -> list[str]:
        """All columns in order."""
        checked = CHECKED if self.checked else ()
        vectors = (EMBEDDING,) if self.embeddings else ()
        return [*FIXED, *checked, *map(self.title, self.properties), *vectors]


def convert(
    results: Path, output: Path, *, to: str, columns: Columns, order: Iterable[Span] | None
) -> int:
    """Write the table; the output appears when it is complete.

    Args:
        results: JSON Lines.
        output: the table.
        to: `parquet` or `csv`.
        columns: what it holds.
        order: where the lines stand; None takes them as they stand.

    Returns:
        The number of rows.

    Raises:
        PhotonError: the output cannot be written.
    """
    draft = output.with_name(output.name + ".new")
    try:
        records = (record(line, columns) for line in _lines(results, order))
        count = (_parquet if to == "parquet" else _csv)(records, draft, columns)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(output)
        sync_folder(output)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise disk_problem(output, error) from None
    return count


def record(line: bytes, columns: Columns) -> dict[str, Any]:
    """One result line as a row of the table; what is missing or of another type is None."""
    value = orjson.loads(line)
    body = value["response"]["body"]
    usage = Usage.of(body)
    text = text_of(body)
    row: dict[str, Any] = {
        "custom_id": value["custom_id"],
        "text": text,
        "finish_reason": first_choice(body).get("finish_reason"),
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
    }
    if columns.checked:
        row.update({name: (value.get("validation") or {}).get(name) for name in CHECKED})
    if columns.properties:
        answer = _json_object(text)
        for name, kind in columns.properties.items():
            row[columns.title(name)] = _typed(answer.get(name), kind)
    if columns.embeddings:
        row[EMBEDDING] = _vector(body)
    return row


def _lines(results: Path, order: Iterable[Span] | None) -> Iterator[bytes]:
    with results.open("rb") as file:
        if order is None:
            yield from file
            return
        for span in order:
            yield os.pread(file.fileno(), span.length, span.offset)


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _typed(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return orjson.dumps(value).decode()
    if kind == "number" and type(value) is int:
        return float(value)
    fits = type(value) is not int or -LARGEST <= value < LARGEST
    return value if type(value) is TYPES[kind] and fits else None


def _vector(body: Any) -> list[float] | None:
    data = body.get("data") if isinstance(body, dict) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    vector = first.get("embedding")
    return vector if isinstance(vector, list) else None


def _csv(records: Iterable[dict[str, Any]], path: Path, columns: Columns) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns.titles())
        writer.writeheader()
        for row in records:
            if isinstance(row.get(EMBEDDING), list):
                row[EMBEDDING] = orjson.dumps(row[EMBEDDING]).decode()
            writer.writerow(row)
            count += 1
    return count


def _parquet(records: Iterable[dict[str, Any]], path: Path, columns: Columns) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    kinds: dict[str, Any] = dict.fromkeys(("custom_id", "text", "finish_reason"), pa.string())
    kinds |= {"prompt_tokens": pa.int64(), "completion_tokens": pa.int64()}
    kinds |= {"valid": pa.bool_(), "problem": pa.string(), EMBEDDING: pa.list_(pa.float32())}
    for name, kind in columns.properties.items():
        kinds[columns.title(name)] = arrow[TYPES.get(kind, str)]
    schema = pa.schema([(title, kinds[title]) for title in columns.titles()])
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for group in _groups(records):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _groups(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in records:
        group.append(row)
        size += len(row["text"] or "") + 32 * len(row.get(EMBEDDING) or ())
        if len(group) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
