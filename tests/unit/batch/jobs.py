"""Jobs for tests: input files, runs through the command, and what they left."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sglang_photon.batch import command

CHAT = "/v1/chat/completions"


def line(custom_id: Any, text: str | None = None, **changes: Any) -> dict[str, Any]:
    """A line of a batch file that asks its own custom_id."""
    body = {"messages": [{"role": "user", "content": text or str(custom_id)}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}


def picture_line(custom_id: str, *pictures: str) -> dict[str, Any]:
    """A line with pictures."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": picture}} for picture in pictures
    ]
    content = [*parts, {"type": "text", "text": custom_id}]
    return line(custom_id, body={"messages": [{"role": "user", "content": content}]})


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """A batch file."""
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def png(size: tuple[int, int] = (8, 8), colour: str = "red") -> bytes:
    """A picture's file."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True)
class Run:
    """What a run left.

    Attributes:
        code: its exit code.
        results, errors: lines of the two files, parsed.
    """

    code: int
    results: list[dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def ids(self) -> list[str]:
        return [one["custom_id"] for one in self.results]

    @property
    def error_ids(self) -> list[str]:
        return [one["custom_id"] for one in self.errors]

    def error(self, custom_id: str) -> dict[str, Any]:
        (found,) = (one for one in self.errors if one["custom_id"] == custom_id)
        return found


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a file, parsed; none if it is not there."""
    if not path.exists():
        return []
    return [json.loads(one) for one in path.read_text().splitlines()]


def run(source: Path | str, output: Path, url: str, *flags: str) -> Run:
    """`photon batch run` in this process."""
    code = command.main(
        ["run", str(source), "--output", str(output), "--url", url, "--quiet", *flags]
    )
    return left_by(code, output)


def left_by(code: int, output: Path) -> Run:
    """What is on disk after a run."""
    errors = read(output.with_name(output.stem + ".errors.jsonl"))
    results = read(output) if output.suffix == ".jsonl" else []
    return Run(code, results, errors)
