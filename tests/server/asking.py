"""Requests for tests: made once, asked in any order, compared as plain values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import openai
from PIL import Image

from sglang_photon.demo import data_url
from sglang_photon.reference.models import pictures

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One chat request with one user message.

    Attributes:
        text: the question.
        images: pictures in front of it, as URLs.
        system: system prompt; empty is none.
        options: further fields of the request.
    """

    text: str
    images: tuple[str, ...] = ()
    system: str = ""
    options: Options = field(default_factory=dict)

    def request(self) -> Options:
        """Arguments of `client.chat.completions.create`: greedy and short by default."""
        pieces: list[Any] = [{"type": "image_url", "image_url": {"url": i}} for i in self.images]
        user = {"role": "user", "content": [*pieces, {"type": "text", "text": self.text}]}
        system = [{"role": "system", "content": self.system}] if self.system else []
        defaults = {"model": "demo", "temperature": 0, "max_tokens": 24}
        return {**defaults, "messages": [*system, user], **self.options}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back, without what differs from run to run."""

    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    completion_tokens: int


def answer(client: openai.OpenAI, ask: Ask) -> Answer:
    """Ask and wait."""
    completion = client.chat.completions.create(**ask.request())
    assert completion.usage is not None
    return Answer(
        texts=tuple(choice.message.content or "" for choice in completion.choices),
        finish_reasons=tuple(choice.finish_reason for choice in completion.choices),
        completion_tokens=completion.usage.completion_tokens,
    )


def streamed(client: openai.OpenAI, ask: Ask) -> Answer:
    """Ask for a stream and read it to its end."""
    texts, reasons, tokens = [], [], 0
    request = {**ask.request(), "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**request, stream=True):
        tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return Answer(
        texts=tuple(text for text in texts if text),
        finish_reasons=tuple(reasons),
        completion_tokens=tokens,
    )


def answers(client: openai.OpenAI, asks: Sequence[Ask], *, at_once: int) -> list[Answer]:
    """Ask several at a time; the answers are in the order of the requests."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(functools.partial(answer, client), asks))


def json_schema(schema: dict[str, Any]) -> Options:
    """Options that constrain an answer to a JSON schema."""
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def regex(pattern: str) -> Options:
    """Options that constrain an answer to a regular expression."""
    return {"extra_body": {"regex": pattern}}


def urls(images: tuple[Image.Image, ...]) -> tuple[str, ...]:
    """Pictures as data URLs."""
    return tuple(data_url(image) for image in images)


def stopping() -> dict[str, tuple[Ask, str]]:
    """Streams with stop strings that begin and end inside tokens, and the text before each.

    The stop string is the middle of the answer, over four of its tokens; or it almost is, so that
    what was held back for it has to be released.
    """
    example = next(iter(pictures.heldout(1, seed=22)))
    middle = len(example.answer) // 2
    found = example.answer[middle - 7 : middle + 7]
    before = example.answer.split(found)[0]
    stops = {
        "found": ([found], before),
        "almost": ([found[:-1] + "\u00a7"], example.answer),
        "almost, then found": ([found[:4] + "\u00a7", found], before),
    }
    return {
        name: (Ask(text=example.question, images=urls(example.pictures), options={"stop": s}), text)
        for name, (s, text) in stops.items()
    }


def mixed() -> list[Ask]:
    """Twenty requests that differ in everything that a scheduler looks at."""
    ones = list(pictures.heldout(8, seed=3))
    pairs = list(pictures.heldout(2, seed=4, tasks=pictures.PAIR_TASKS))
    large = next(iter(pictures.heldout(1, seed=5, size=448)))
    schema = json_schema(pictures.SCHEMAS["box"])
    long = {"max_tokens": 40, "extra_body": {"ignore_eos": True}}
    return [
        *(Ask(text=e.question, images=urls(e.pictures)) for e in (*ones, *pairs, large)),
        Ask(text="Give the bounding box.", images=urls(ones[0].pictures), options=schema),
        Ask(text="Give a number.", options=regex("[0-9]{3}-[0-9]{2}")),
        Ask(text="Describe the picture.", options=long),
        Ask(text="What do you see?", images=urls(ones[1].pictures), options=long),
        Ask(text="Hello.", options={"max_tokens": 1}),
        Ask(text="Hello.", system="Answer in one word."),
        Ask(text="What colour is it?", options={"n": 2}),
        Ask(text="Count the shapes. " * 12),
        Ask(text="List the shapes.", images=urls(pairs[0].pictures), system="Be brief."),
    ]
