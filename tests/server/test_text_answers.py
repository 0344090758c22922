"""Text in, text out: what every client of a chat server relies on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from sglang_photon.demo import data_url
from sglang_photon.reference.models import pictures
from tests.server.asking import Answer, Ask, answer, json_schema, regex

SCENE = pictures.random_scene(np.random.default_rng(7), count=3)
PICTURE = data_url(pictures.render(SCENE, rng=np.random.default_rng(8)))
QUESTION = Ask(text="Describe the picture.", images=(PICTURE,))


def varied(ask: Ask = QUESTION, /, **options: Any) -> Ask:
    """The same question with other options."""
    return replace(ask, options={**ask.options, **options})


def test_text(client: openai.OpenAI) -> None:
    ask = Ask(text="Hello. Who are you?", options={"extra_body": {"ignore_eos": True}})
    got = answer(client, ask)
    assert (got.finish_reasons, got.completion_tokens) == (("length",), 24)
    assert answer(client, ask) == got


def test_one_picture(client: openai.OpenAI) -> None:
    got = answer(client, QUESTION)
    assert got.texts[0].strip()
    assert got.finish_reasons == ("stop",)


def test_one_token(client: openai.OpenAI) -> None:
    whole = answer(client, QUESTION)
    one = answer(client, varied(max_tokens=1))
    assert (one.finish_reasons, one.completion_tokens) == (("length",), 1)
    assert whole.texts[0].startswith(one.texts[0])


def test_a_system_prompt_is_read(client: openai.OpenAI) -> None:
    without = client.chat.completions.create(**QUESTION.request()).usage
    asked = replace(QUESTION, system="Answer in one word. " * 4)
    with_system = client.chat.completions.create(**asked.request()).usage
    assert without is not None
    assert with_system is not None
    assert with_system.prompt_tokens > without.prompt_tokens + 4


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    whole = answer(client, QUESTION).texts[0]
    middle = len(whole) // 2
    stop = whole[middle : middle + 4]
    got = answer(client, varied(stop=stop))
    assert got.texts[0] == whole[: whole.index(stop)]
    assert got.finish_reasons == ("stop",)


def test_two_choices(client: openai.OpenAI) -> None:
    alone = answer(client, QUESTION)
    two = answer(client, varied(n=2))
    assert two == Answer(
        texts=alone.texts * 2,
        finish_reasons=alone.finish_reasons * 2,
        completion_tokens=2 * alone.completion_tokens,
    )


def test_two_sampled_choices_differ(client: openai.OpenAI) -> None:
    options = {"n": 2, "temperature": 2.0, "extra_body": {"ignore_eos": True}}
    first, second = answer(client, Ask(text="Hello.", options=options)).texts
    assert first != second


def test_a_stream_is_the_same_answer_in_pieces(client: openai.OpenAI) -> None:
    alone = client.chat.completions.create(**QUESTION.request())
    with client.chat.completions.create(
        **QUESTION.request(), stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(c.delta.content or "" for c in choices) == alone.choices[0].message.content
    assert [c.finish_reason for c in choices if c.finish_reason] == ["stop"]
    assert sum(1 for c in choices if c.delta.content) > 4
    assert choices[0].delta.role == "assistant"
    assert [chunk.usage for chunk in chunks if chunk.usage][-1] == chunks[-1].usage
    usage = chunks[-1].usage
    assert usage is not None
    assert alone.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        alone.usage.prompt_tokens,
        alone.usage.completion_tokens,
        alone.usage.total_tokens,
    )


def test_logprobs_agree_with_the_answer(client: openai.OpenAI) -> None:
    # Cut short: the token that ends an answer by itself is no part of its text.
    ask = varied(max_tokens=6, logprobs=True, top_logprobs=3)
    completion = client.chat.completions.create(**ask.request())
    choice = completion.choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert len(tokens) == 6
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert all(top.logprob <= 0 for top in token.top_logprobs)
        # Greedy: the chosen token is the likeliest one.
        assert token.token == token.top_logprobs[0].token
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob, abs=1e-4)
        ordered = [top.logprob for top in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)


def test_a_json_schema_shapes_the_answer(client: openai.OpenAI) -> None:
    options = {"max_tokens": 64, **json_schema(pictures.SCHEMAS["box"])}
    got = answer(client, Ask(text="Give a box.", options=options))
    box = json.loads(got.texts[0])
    assert set(box) == {"x1", "y1", "x2", "y2"}
    assert all(0 <= value <= pictures.GRID for value in box.values())
    assert got.finish_reasons == ("stop",)


def test_a_regular_expression_shapes_the_answer(client: openai.OpenAI) -> None:
    pattern = "(left|right), [0-9]{3}"
    got = answer(client, Ask(text="Where is it?", options=regex(pattern)))
    assert re.fullmatch(pattern, got.texts[0])


def test_a_bad_regular_expression_is_the_clients_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        answer(client, Ask(text="Hello.", options=regex("([")))
    assert answer(client, QUESTION).texts[0]
