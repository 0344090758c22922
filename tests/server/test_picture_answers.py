"""The demo model sees what is in pictures whose combinations it was never trained on."""

from __future__ import annotations

import json

import openai

from sglang_photon.reference.models import pictures
from tests.server.asking import Ask, answers, json_schema, urls

LARGE = 1024
LONGEST_ANSWER = 96
AT_ONCE = 10
MEASURED = 30
JSON_MEASURED = 100
"""Twenty would not tell 93 % from 97 %."""
MIN_RIGHT = 0.95


def is_right(example: pictures.Example, got: str) -> bool:
    """JSON is compared as values: a schema leaves the spaces to the grammar."""
    if example.task in pictures.SCHEMAS:
        try:
            return bool(json.loads(got) == json.loads(example.answer))
        except ValueError:
            return False
    return got.strip() == example.answer


def wrong(
    client: openai.OpenAI, examples: list[pictures.Example], *, schemas: bool = False
) -> list[tuple[str, str, str]]:
    """Question, right answer and given answer of every wrong one."""
    asks = [
        Ask(
            text=example.question,
            images=urls(example.pictures),
            options={
                "max_tokens": LONGEST_ANSWER,
                **(json_schema(pictures.SCHEMAS[example.task]) if schemas else {}),
            },
        )
        for example in examples
    ]
    given = [got.texts[0] for got in answers(client, asks, at_once=AT_ONCE)]
    return [
        (example.question, example.answer, got)
        for example, got in zip(examples, given, strict=True)
        if not is_right(example, got)
    ]


def check(found: list[tuple[str, str, str]], count: int) -> None:
    assert len(found) <= max(1, count * (1 - MIN_RIGHT)), "\n".join(map(str, found))


def test_it_answers_about_unseen_pictures(client: openai.OpenAI) -> None:
    check(wrong(client, list(pictures.heldout(MEASURED, seed=11))), MEASURED)


def test_a_schema_does_not_change_what_it_sees(client: openai.OpenAI) -> None:
    examples = list(pictures.heldout(JSON_MEASURED, seed=12, tasks=tuple(pictures.SCHEMAS)))
    check(wrong(client, examples, schemas=True), JSON_MEASURED)


def test_it_points_without_a_schema(client: openai.OpenAI) -> None:
    examples = list(pictures.heldout(JSON_MEASURED, seed=13, tasks=tuple(pictures.SCHEMAS)))
    check(wrong(client, examples), JSON_MEASURED)


def test_two_pictures_in_their_order(client: openai.OpenAI) -> None:
    check(wrong(client, list(pictures.heldout(10, seed=14, tasks=pictures.PAIR_TASKS))), 10)


def test_large_pictures(client: openai.OpenAI) -> None:
    check(wrong(client, list(pictures.heldout(10, seed=15, size=LARGE))), 10)
