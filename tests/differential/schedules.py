"""Random schedules: who arrives when, with what, and who goes away. A seed is a schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.differential.features import FEATURES, combined
from tests.differential.rig import VOCAB, Abort, Ask, Event


def schedule(seed: int, *, leave: bool = True, pictures: bool = False) -> list[Event]:
    """Four to ten requests within about thirty ticks; a seventh of the clients go away.

    Prompts share beginnings, so that they meet in the radix cache; lengths, ends and features are
    drawn independently, so that rows join, finish, are chunked and are retracted in every order.

    Args:
        seed: another one is another schedule.
        leave: whether clients go away.
        pictures: whether half of the requests show one or two of a few pictures.
    """
    draw = random.Random(seed)
    shared = [draw.randrange(20, VOCAB) for _ in range(40)]
    events: list[Event] = []
    for number in range(draw.randint(4, 10)):
        rid = f"{seed}-{number}"
        at = draw.randint(0, 30)
        ask = _ask(draw, rid, at, shared)
        if pictures and draw.random() < 1 / 2:
            shown = tuple(draw.choices(range(6), k=draw.choice([1, 1, 2])))
            ask = replace(ask, pictures=shown)
        events.append(ask)
        if leave and draw.random() < 1 / 7:
            events.append(Abort(rid=rid, at=at + draw.randint(0, 12)))
    return events


def _ask(draw: random.Random, rid: str, at: int, shared: Sequence[int]) -> Ask:
    common = draw.choice([0, 0, draw.randint(1, len(shared))])
    own = [draw.randrange(20, VOCAB) for _ in range(draw.randint(1, 20))]
    names = draw.sample(list(FEATURES), k=draw.choice([0, 1, 1, 1, 2]))
    feature = combined(*names)
    params = {"max_new_tokens": draw.choice([1, 1, 2, 3, *range(4, 25)]), **feature.params}
    if "min_new_tokens" in params:
        params["min_new_tokens"] = min(params["min_new_tokens"], params["max_new_tokens"])
    if draw.random() < 0.4 and "stop_token_ids" not in params:
        params["stop_token_ids"] = draw.sample(range(VOCAB), k=60)
    return Ask(
        rid=rid,
        at=at,
        prompt=(*shared[:common], *own),
        params=params,
        fields={"stream": draw.random() < 0.7, **feature.fields},
    )
