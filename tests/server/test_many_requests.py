"""Requests that run together: each answer as if it were alone, and an end when nobody listens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.server.asking import Answer, Ask, answer, answers, mixed
from tests.server.servers import Running, wait_until

ABORT_LIMIT_S = 5.0
"""It takes milliseconds; the rest is for busy machines."""
ENDLESS = Ask(
    text="Describe the picture.", options={"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
)


def test_twenty_at_once_are_answered_as_each_alone(
    auto: Running, auto_answers: tuple[Answer, ...]
) -> None:
    requests = mixed()
    together = answers(auto.client, requests, at_once=len(requests))
    differing = [
        (ask.text, one, other)
        for ask, one, other in zip(requests, auto_answers, together, strict=True)
        if one != other
    ]
    assert not differing


def test_closing_the_connection_ends_the_request(auto: Running) -> None:
    stream = auto.client.chat.completions.create(**ENDLESS.request(), stream=True)
    chunks = iter(stream)
    for _ in range(5):
        next(chunks)
    wait_until(lambda: auto.running_requests() == 1, limit_s=10)
    stream.close()
    wait_until(lambda: auto.running_requests() == 0, limit_s=ABORT_LIMIT_S)


def test_others_go_on_when_one_is_closed(auto: Running) -> None:
    other = Ask(
        text="What do you see?", options={"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    )
    alone = answer(auto.client, other)
    with ThreadPoolExecutor(1) as pool:
        stream = auto.client.chat.completions.create(**ENDLESS.request(), stream=True)
        next(iter(stream))
        beside = pool.submit(answer, auto.client, other)
        wait_until(lambda: auto.running_requests() == 2, limit_s=30)
        stream.close()
        assert beside.result(timeout=60) == alone
