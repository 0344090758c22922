"""Server modes beside the features of a request: priorities, beams, sessions, embeddings."""

from __future__ import annotations

import array
from functools import partial
from typing import Any

import pytest
from sglang.srt.managers.io_struct import (
    OpenSessionReqInput,
    SessionParams,
    TokenizedEmbeddingReqInput,
)
from sglang.srt.sampling.sampling_params import SamplingParams

from tests.differential.comparing import differences
from tests.differential.features import EOS_LIKE
from tests.differential.rig import Ask, Control, Event, rig


@pytest.mark.parametrize("lane", ["thread", "instant"])
def test_priorities_with_preemption(lane: str) -> None:
    arguments = (
        *("--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "1"),
        *("--max-running-requests", "2"),
    )
    asks = [
        Ask(
            rid=str(n),
            at=2 * n,
            prompt=(40 + n, 41, 42),
            params={"max_new_tokens": 12, "stop_token_ids": EOS_LIKE[::3]},
            fields={"priority": (n * 7) % 5},
        )
        for n in range(8)
    ]
    with rig(*arguments, loop="blocking") as bench:
        expected = bench.play(asks)
    with rig(*arguments, loop="photon", lane=lane) as bench:
        found = bench.play(asks)
        assert bench.stats.settled["a waiting request may preempt a running one"] > 0
    assert differences(expected, found) == []


def test_beams_run_in_lockstep() -> None:
    asks = [
        Ask(rid="beam", prompt=(40, 41), params={"max_new_tokens": 6, "beam_width": 2}),
        Ask(rid="plain", at=1, prompt=(50, 51), params={"max_new_tokens": 9}),
    ]
    with rig("--disable-radix-cache", loop="blocking") as bench:
        expected = bench.play(asks)
    with rig("--disable-radix-cache", loop="photon", lane="thread") as bench:
        found = bench.play(asks)
        assert bench.stats.lockstep["beam search selects rows on the host"] > 0
    assert found["plain"].tokens == expected["plain"].tokens
    assert found["beam"].finish == expected["beam"].finish
    assert found["beam"].chunks[-1] == expected["beam"].chunks[-1]


def test_sessions_run_in_lockstep() -> None:
    def turn(number: int) -> Ask:
        session = SessionParams(id="s", rid=None, offset=None, replace=False)
        return Ask(
            rid=f"turn {number}",
            at=1 + 12 * number,
            prompt=(60 + number, 61),
            params={"max_new_tokens": 5},
            fields={"session_id": "s", "session_params": session},
        )

    opening = Control(
        at=0, make=lambda: OpenSessionReqInput(capacity_of_str_len=1000, session_id="s")
    )
    events: list[Event] = [opening, turn(0), turn(1), turn(2)]
    events.append(Ask(rid="plain", at=2, prompt=(70, 71), params={"max_new_tokens": 30}))
    with rig(loop="blocking") as bench:
        expected = bench.play(events)
    with rig(loop="photon", lane="thread") as bench:
        found = bench.play(events)
        assert bench.stats.lockstep
    assert differences(expected, found) == []


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_embeddings(lane: str) -> None:
    def message(number: int) -> Any:
        params = SamplingParams(max_new_tokens=0)
        params.normalize(None)
        return TokenizedEmbeddingReqInput(
            rid=str(number),
            input_text="",
            input_ids=array.array("q", range(30 + number, 40 + 3 * number)),
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
        )

    events = [Control(at=n // 2, make=partial(message, n)) for n in range(6)]
    answers = []
    for loop in ("blocking", "photon"):
        with rig("--is-embedding", loop=loop, lane=lane, hashed=False) as bench:
            bench.play(events)
            sent = bench.scheduler.outbox.to_detokenizer
            answers.append(
                {
                    rid: vector
                    for sending in sent
                    for rid, vector in zip(sending.rids, sending.embeddings, strict=True)
                }
            )
    blocking, photon = answers
    assert blocking.keys() == photon.keys() == {str(n) for n in range(6)}
    for rid, vector in blocking.items():
        assert photon[rid] == pytest.approx(vector, abs=1e-4)
