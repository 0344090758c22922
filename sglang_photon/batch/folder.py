"""Rows from a folder of pictures: one question about each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_photon.batch.lines import Bad
from sglang_photon.batch.rows import URLS, Row
from sglang_photon.errors import UsageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jfif")
ROW_BYTES = 2000


def chat(prompt: str, picture: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """A chat request with one picture, or none, before one text."""
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    if picture is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture}})
    return {"messages": [{"role": "user", "content": content}], **options}


class Folder:
    """Every picture below a folder, by name, in sorted order.

    Args:
        folder: searched recursively; files whose names do not begin or end like a picture's are
            passed over.
        prompt: the question.
        options: further fields of each request.

    Raises:
        UsageError: no such folder, or no picture in it.

    Attributes:
        passed_over: files that are no pictures by their names.
    """

    def __init__(self, folder: Path, *, prompt: str, options: Mapping[str, Any]) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", "Give a folder of pictures")
        self.blank = 0
        self._prompt = prompt
        self._options = dict(options)
        names, self.passed_over = _pictures(folder)
        # Kept as bytes: a hundred thousand names are a few megabytes.
        self._names = [os.fsencode(name) for name in names]
        if not names:
            raise UsageError(
                f"There is no picture in {folder}", f"Known by their names: {', '.join(SUFFIXES)}"
            )

    def rows(self) -> Iterator[Row | Bad]:
        """One row for each picture; its custom_id is the path below the folder."""
        for number, packed in enumerate(self._names, 1):
            try:
                name = packed.decode()
            except UnicodeDecodeError:
                yield Bad(number, f"the name of {packed!r} is not UTF-8")
                continue
            body = chat(self._prompt, f"./{name}", self._options)
            yield Row(number=number, custom_id=name, url=URLS[0], body=body, size=ROW_BYTES)


def _pictures(folder: Path) -> tuple[list[str], int]:
    found: list[str] = []
    others = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.startswith(".") or not name.lower().endswith(SUFFIXES):
                others += not name.startswith(".")
                continue
            found.append((Path(place) / name).relative_to(folder).as_posix())
    return sorted(found), others
