"""The types that pass through a job: a row, what was made ready to send, what came of it.

Row ──prepare──▶ Prepared ──send──▶ Outcome ──commit──▶ a line on disk
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""What a row may ask of the server."""
METHOD = "POST"
ID_PREFIX = "batch_req_"
FINGERPRINT_BYTES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One request of the job, as its source gives it.

    Attributes:
        number: line of the input file, from 1; of a folder or table, the place in it.
        custom_id: names the row; unique in the job.
        url: path of the endpoint.
        body: the request. A row is read anew whenever it is needed, so it may be changed.
        size: bytes of memory that it takes, about.
    """

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]
    size: int


class RowError(Exception):
    """A row that must not be sent, or could not be; becomes an error row.

    Args:
        code: one word for programs.
        message: one line for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """By what a row is recognised when the job is run again.

    Attributes:
        fingerprint: of everything that the server receives: the request and the bytes of local
            pictures. It is part of the result line's `id`.
        quick: of the request and of size and time of local pictures; equal means unchanged without
            reading any picture.
    """

    fingerprint: str
    quick: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A row, ready to be sent.

    Attributes:
        row: where it came from; its body is empty by now.
        payload: the request's body as JSON, pictures in it.
        mark: recognises it in a later run.
        pictures: how many it has.
    """

    row: Row
    payload: bytes
    mark: Mark
    pictures: int


class Fate(Enum):
    """What became of a row."""

    DONE = "done"
    """A 200 with its answer."""
    FAILED = "failed"
    """Refused for good: an error row, not tried again unless asked for."""
    UNSERVED = "unserved"
    """Not answered, through no fault of its own: an error row, tried again by the next run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens, as the server counts them."""

    prompt: int = 0
    completion: int = 0

    @classmethod
    def of(cls, body: Any) -> Usage:
        """From an answer's body; zeros where it has none."""
        usage = body.get("usage") if isinstance(body, dict) else None
        if not isinstance(usage, dict):
            return cls()
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        prompt, completion = (n if isinstance(n, int) else 0 for n in counts)
        return cls(prompt=prompt, completion=completion)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt=self.prompt + other.prompt, completion=self.completion + other.completion
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a row, as it goes to disk.

    Attributes:
        custom_id: of the row.
        mark: of the row; None where it was not made ready.
        fate: whether this is a result.
        line: the line of the output or error file, with its newline.
        usage: tokens of the answer.
        code: of an error row, for the summary's counts; `http_400` for an HTTP status.
        problem: of an error row, in words.
        valid: what `--validate` found; None where it did not look.
    """

    custom_id: str
    mark: Mark | None
    fate: Fate
    line: bytes
    usage: Usage = field(default_factory=Usage)
    code: str = ""
    problem: str = ""
    valid: bool | None = None


def digest(*parts: bytes) -> str:
    """A short hash of some byte strings, in hexadecimal."""
    sha = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.hexdigest()


def request_bytes(row: Row) -> bytes:
    """The row's request in one spelling, whatever the order of its keys."""
    return orjson.dumps([row.url, row.body], option=orjson.OPT_SORT_KEYS)


def result_line(
    custom_id: str, mark: Mark | None, *, status: int, request_id: str, body: Any, **more: Any
) -> bytes:
    """A line as OpenAI writes it, of a row that the server answered (with any status)."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(custom_id, mark, response, None, more)


def error_line(custom_id: str, mark: Mark | None, *, code: str, message: str) -> bytes:
    """A line as OpenAI writes it, of a row without an answer."""
    return _line(custom_id, mark, None, {"code": code, "message": message}, {})


def _line(custom_id: str, mark: Mark | None, response: Any, error: Any, more: Any) -> bytes:
    name = mark.fingerprint if mark is not None else digest(custom_id.encode())
    whole = {"id": ID_PREFIX + name, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps({**whole, **more}, option=orjson.OPT_APPEND_NEWLINE)
