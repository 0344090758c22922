"""From an answer, or from the lack of one, to the line that goes to disk.

Failures have two shapes, and a reader needs both. What the server answered, whatever its status,
stands in `response`, with `error` null. A row without any answer has `response` null and says why
in `error`.
"""

from __future__ import annotations

from typing import Any

from sglang_photon.batch.answers import Checker
from sglang_photon.batch.client import PATIENCE, Reply
from sglang_photon.batch.rows import (
    Fate,
    Mark,
    Outcome,
    RowError,
    Usage,
    error_line,
    result_line,
)

LONGEST = 200
UNSERVED = ("transport_error", "batch_expired", "batch_cancelled")
"""Codes of rows that the next run tries again."""


def answered_by(custom_id: str, mark: Mark, reply: Reply, checker: Checker | None) -> Outcome:
    """What came of a row that the server answered."""
    body, status = reply.body, reply.status
    if status != 200:
        fate = Fate.UNSERVED if status in PATIENCE else Fate.FAILED
    elif isinstance(body, dict):
        fate = Fate.DONE
    else:
        return refused(custom_id, mark, RowError("bad_answer", "the answer is no JSON object"))
    more: dict[str, Any] = {}
    problem = checker.problem(body) if checker is not None and fate is Fate.DONE else None
    if problem is not None:
        more["validation"] = {"valid": not problem, "problem": problem or None}
    request_id = reply.request_id or (body.get("id", "") if isinstance(body, dict) else "")
    return Outcome(
        custom_id=custom_id,
        mark=mark,
        fate=fate,
        line=result_line(custom_id, mark, status=status, request_id=request_id, body=body, **more),
        usage=Usage.of(body),
        code="" if fate is Fate.DONE else f"http_{status}",
        problem="" if fate is Fate.DONE else _message(body),
        valid=None if problem is None else not problem,
    )


def refused(custom_id: str, mark: Mark | None, refusal: RowError) -> Outcome:
    """What came of a row without an answer."""
    return Outcome(
        custom_id=custom_id,
        mark=mark,
        fate=Fate.UNSERVED if refusal.code in UNSERVED else Fate.FAILED,
        line=error_line(custom_id, mark, code=refusal.code, message=refusal.message),
        code=refusal.code,
        problem=refusal.message,
    )


def _message(body: Any) -> str:
    """What a server says is wrong, wherever it says it."""
    if isinstance(body, dict):
        inner = body.get("error")
        holder = inner if isinstance(inner, dict) else body
        return str(holder.get("message") or inner or "")[:LONGEST]
    return str(body)[:LONGEST]
