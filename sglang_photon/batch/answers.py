"""What is in an answer: its text, the JSON in it, and whether that is what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from sglang_photon.errors import UsageError

LONGEST_PROBLEM = 200


def text_of(body: Any) -> str | None:
    """The text of the first choice; None where the answer has no text."""
    choice = first_choice(body)
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else None


def first_choice(body: Any) -> dict[str, Any]:
    """The first choice of a chat or text completion; empty where there is none."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def is_embedding(body: Any) -> bool:
    """Whether the answer holds vectors instead of text."""
    return isinstance(body, dict) and isinstance(body.get("data"), list)


def read_schema(path: Path) -> dict[str, Any]:
    """A JSON schema from a file.

    Raises:
        UsageError: it cannot be read, or is no JSON schema.
    """
    try:
        schema = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error})", "Give a JSON schema") from None
    import jsonschema

    try:
        if not isinstance(schema, dict):
            raise jsonschema.SchemaError("it is not an object")
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UsageError(f"{path} is no JSON schema ({error.message})", "Mend it") from None
    return schema


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field of a chat request that asks for this schema."""
    named = {"name": "answer", "schema": dict(schema), "strict": True}
    return {"type": "json_schema", "json_schema": named}


class Checker:
    """Looks whether answers are JSON, and of the schema.

    Args:
        schema: None asks for any JSON.
    """

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._validator: Any = None
        if schema is not None:
            import jsonschema

            self._validator = jsonschema.validators.validator_for(schema)(schema)

    def problem(self, body: Any) -> str | None:
        """What is wrong with an answer; empty if nothing is, None if there is nothing to check."""
        if is_embedding(body):
            return None
        text = text_of(body)
        if text is None:
            return "no text"
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return f"not JSON ({error.msg})"
        found = self._validator.iter_errors(value) if self._validator is not None else ()
        first = next(iter(found), None)
        return "" if first is None else f"{first.json_path}: {first.message}"[:LONGEST_PROBLEM]
