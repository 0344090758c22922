"""`--dry-run`: every row looked at as closely as possible without sending anything."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_photon.batch import media, pictures
from sglang_photon.batch.lines import Bad, Source
from sglang_photon.batch.media import MediaRoot
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.prepare import WORKERS
from sglang_photon.batch.rows import Row, RowError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHOWN = 20
AT_ONCE = 64


@dataclass(kw_only=True)
class Found:
    """What the rows hold.

    Attributes:
        rows: all of them.
        pictures: that were read and decoded.
        web: pictures on the web, which were not fetched.
        text_tokens: of all texts; None where no tokenizer is at hand.
        bad: rows that would become error rows.
    """

    rows: int = 0
    pictures: int = 0
    web: int = 0
    text_tokens: int | None = None
    bad: list[Bad] = field(default_factory=list)

    def report(self) -> str:
        """For a person."""
        lines = [f"{self.rows} rows, {self.pictures} pictures decoded, {self.web} on the web"]
        if self.text_tokens is None:
            lines.append("tokens not counted: the model's tokenizer.json is not at hand")
        else:
            lines.append(
                f"{self.text_tokens} tokens of text (chat template and pictures not counted)"
            )
        if self.bad:
            lines.append(f"{len(self.bad)} rows would fail:")
            lines += [f"  line {one.number}: {one.problem}" for one in self.bad[:SHOWN]]
            if len(self.bad) > SHOWN:
                lines.append(f"  and {len(self.bad) - SHOWN} more")
        return "\n".join(lines)


def look(source: Source, *, root: MediaRoot, bounds: Bounds, tokenizer: Tokenizer | None) -> Found:
    """Look at every row; its pictures are decoded in worker threads."""
    found = Found(text_tokens=None if tokenizer is None else 0)
    with ThreadPoolExecutor(WORKERS) as pool:
        group: list[Row] = []
        for row in source.rows():
            if isinstance(row, Row):
                group.append(row)
            if len(group) == AT_ONCE:
                _take(found, group, pool, root, bounds, tokenizer)
                group = []
        _take(found, group, pool, root, bounds, tokenizer)
    return found


def tokenizer_of(model_path: str) -> Tokenizer | None:
    """The tokenizer of a local or demo model, without loading the model; None where it has none.

    Raises:
        PhotonError: the model's name is unknown.
    """
    from sglang_photon.reference.models import names

    path = Path(names.resolve(model_path).path) / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    return tokenizer


def _take(
    found: Found,
    group: list[Row],
    pool: ThreadPoolExecutor,
    root: MediaRoot,
    bounds: Bounds,
    tokenizer: Tokenizer | None,
) -> None:
    check: Callable[[Row], tuple[int, int]] = lambda row: _check(row, root, bounds)  # noqa: E731
    for row, future in [(row, pool.submit(check, row)) for row in group]:
        found.rows += 1
        try:
            local, web = future.result()
        except RowError as refusal:
            found.bad.append(Bad(row.number, f"{refusal.code}: {refusal.message}"))
            continue
        found.pictures += local
        found.web += web
    if tokenizer is not None and found.text_tokens is not None:
        texts = [text for row in group for text in _texts(row.body)]
        found.text_tokens += sum(
            len(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)
        )


def _check(row: Row, root: MediaRoot, bounds: Bounds) -> tuple[int, int]:
    media.check(row)
    found = media.places(row)
    web = 0
    for place in found:
        address = place.address
        if address.startswith(media.WEB):
            web += 1
            continue
        if place.local:
            content = pictures.read_file(root.path(address), bounds)
        else:
            content = pictures.from_data_url(address, bounds)
        pictures.kind_of(content, address[:100], bounds)
        pictures.decode(content, address[:100])
    return len(found) - web, web


def _texts(body: Any) -> list[str]:
    """Every text that a request brings."""
    found: list[str] = []
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            found += [text] if isinstance(text, str) else []
    for key in ("prompt", "input"):
        value = body.get(key)
        found += [
            one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)
        ]
    return found
