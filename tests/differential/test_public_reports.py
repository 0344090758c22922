"""Faults that others reported in overlapping schedulers, each by its id, on Photon's loop."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from sglang.srt.environ import envs
from sglang.srt.managers import scheduler as upstream
from sglang.srt.managers.io_struct import (
    AbortReq,
    ContinueGenerationReqInput,
    FlushCacheReqInput,
    PauseGenerationReqInput,
)
from xgrammar import GrammarCompiler

from sglang_photon.upstream import takeover
from sglang_photon.upstream.compiling import CompilerProcess
from tests.differential.comparing import differences
from tests.differential.features import ARGUMENTS, EOS_LIKE, FEATURES, SCHEMA
from tests.differential.rig import MODEL, VOCAB, Abort, Ask, Control, Rig, Seen, rig

EOS = 0
LAST = VOCAB - 1


def ask(rid: str, at: int = 0, prompt: Sequence[int] = (31, 32, 33), **params: Any) -> Ask:
    return Ask(rid=rid, at=at, prompt=tuple(prompt), params=params)


@contextmanager
def photon(*arguments: str, lane: str = "sim", model: str = MODEL) -> Iterator[Rig]:
    with rig(*ARGUMENTS, *arguments, loop="photon", lane=lane, model=model) as bench:
        yield bench


def solo(bench: Rig, request: Ask) -> Seen:
    return bench.play([Ask(rid=request.rid, prompt=request.prompt, params=request.params)])[
        request.rid
    ]


def test_ov_03_retraction_near_a_full_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [
        ask(str(n), prompt=range(40 + n, 48 + n), max_new_tokens=24, ignore_eos=True)
        for n in range(6)
    ]
    with rig(loop="blocking") as bench:
        expected = bench.play(asks)
    monkeypatch.setattr(upstream, "TEST_RETRACT", True)
    monkeypatch.setattr(upstream, "TEST_RETRACT_INTERVAL", 3)
    with photon("--max-total-tokens", "64", "--chunked-prefill-size", "4") as bench:
        found = bench.play(asks)
        assert bench.stats.settled["the KV pool is full"] > 0
    assert {rid: one.tokens for rid, one in found.items()} == {
        rid: one.tokens for rid, one in expected.items()
    }


def test_ov_07_a_row_is_given_away_only_when_no_step_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ask("a", stop_token_ids=EOS_LIKE, max_new_tokens=64)
    second = ask("b", at=1, prompt=(90, 91), max_new_tokens=9)
    riding: list[bool] = []
    with photon("--max-running-requests", "1") as bench:
        expected = solo(bench, second)
        release = takeover.RELEASE

        def spy(req: Any, *args: Any, **kwargs: Any) -> None:
            works = bench.scheduler.photon_loop.in_flight()
            riding.append(any(req in work.reqs for work in works))
            release(req, *args, **kwargs)

        monkeypatch.setattr(takeover, "RELEASE", spy)
        found = bench.play([first, second])
        assert bench.pipeline.zombie_rows > 0
    assert riding == [False, False]
    assert found["b"].chunks == expected.chunks


@pytest.mark.parametrize("page", ["1", "4"])
@pytest.mark.parametrize("cache", [(), ("--disable-radix-cache",)])
def test_ov_08_the_extra_slot_is_freed_once(page: str, cache: tuple[str, ...]) -> None:
    with photon("--page-size", page, "--chunked-prefill-size", "4", *cache) as bench:
        found = bench.play([ask("one", prompt=range(50, 55), max_new_tokens=200)])
    assert len(found["one"].tokens) == 200


def test_ov_10_an_id_is_used_again_while_its_zombie_is_in_flight() -> None:
    first = ask("x", stop_token_ids=EOS_LIKE, max_new_tokens=64)
    again = ask("x", prompt=(90, 91, 92), max_new_tokens=7)
    with photon() as bench:
        expected = solo(bench, again)
        before = len(bench.scheduler.outbox.to_detokenizer)

        def resubmit(scheduler: Any) -> list[Ask] | None:
            sent = scheduler.outbox.to_detokenizer[before:]
            ended = bool(sent) and sent[-1].finished_reasons[0] is not None
            in_flight = not scheduler.photon_loop.pipeline.is_empty
            return [again] if ended and in_flight else None

        both = bench.play([first], follow_up=resubmit)["x"].chunks
    assert [chunk["finished_reasons"] is not None for chunk in both].count(True) == 2
    assert both[-len(expected.chunks) :] == expected.chunks


def test_ov_12_processors_see_the_newest_token() -> None:
    feature = FEATURES["processor"]
    asks = [
        Ask(
            rid=str(n),
            at=n,
            prompt=(60 + n, 61),
            params={"max_new_tokens": 20, **feature.params},
            fields=feature.fields,
        )
        for n in range(3)
    ]
    with photon(lane="thread") as bench:
        found = bench.play(asks)
    for one in found.values():
        assert all(left != right for left, right in zip(one.tokens, one.tokens[1:], strict=False))


def test_ov_14_constrained_answers_keep_to_their_schema() -> None:
    asks = [
        ask(str(n), at=n // 4, prompt=(70 + n, 71), json_schema=SCHEMA, max_new_tokens=60)
        for n in range(16)
    ]
    with photon(lane="thread") as bench:
        found = bench.play(asks)
        text = bench.scheduler.tokenizer.decode
        ended = 0
        for one in found.values():
            assert one.finish is not None
            assert one.finish["type"] in ("stop", "length")
            if one.finish["type"] == "stop":
                ended += 1
                answer = json.loads(text(one.tokens, skip_special_tokens=True))
                assert set(answer) == {"x", "ok"}
    assert ended > 0


def test_ov_16_rows_without_a_grammar_keep_their_tokens() -> None:
    plain = [ask("p1", max_new_tokens=12), ask("p2", prompt=(80, 81), max_new_tokens=12)]
    regex = ask("r", prompt=(82,), regex="[0-9]+", max_new_tokens=12)
    with photon() as bench:
        expected = {request.rid: solo(bench, request).tokens for request in plain}
        found = bench.play([plain[0], regex, plain[1]])
        digits = bench.scheduler.tokenizer.decode(found["r"].tokens, skip_special_tokens=True)
    assert {rid: found[rid].tokens for rid in expected} == expected
    assert digits.isdigit()


def test_ov_18_bad_grammars_end_their_own_request_only() -> None:
    plain = ask("plain", max_new_tokens=20)
    bad = [
        ask("schema", at=2, json_schema='{"type": "no such type"}', max_new_tokens=9),
        ask("regex", at=3, regex="(unclosed", max_new_tokens=9),
    ]
    with photon() as bench:
        expected = solo(bench, plain)
        found = bench.play([plain, *bad])
    assert found["plain"].chunks == expected.chunks
    for request in bad:
        finish = found[request.rid].finish
        assert finish is not None
        assert (finish["type"], finish["status_code"]) == ("abort", 400)


def test_ov_19_a_grammar_that_compiles_for_ever_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Before the scheduler is made: compilers are forked from a process that is forked then.
    monkeypatch.setattr(GrammarCompiler, "compile_regex", lambda self, pattern: time.sleep(30))
    plain = [ask(f"p{n}", prompt=(50 + n,), max_new_tokens=600) for n in range(4)]
    slow = ask("slow", at=20, regex="a+", max_new_tokens=4)
    with envs.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS.override(200), photon(lane="inline") as bench:
        gaps: list[float] = []
        last = time.monotonic()

        def noting() -> None:
            nonlocal last
            now = time.monotonic()
            gaps.append(now - last)
            last = now

        # Called once at the end of every step's commit.
        bench.scheduler.metrics_reporter.update_device_timer = noting
        expected = bench.play(plain)
        usual, gaps = statistics.median(gaps), []
        started = time.monotonic()
        found = bench.play([*plain, slow], patient=False)
        took = time.monotonic() - started
        compilers = psutil.Process(bench.scheduler.photon_compilers.pid)
        _, alive = psutil.wait_procs(compilers.children(recursive=True), timeout=2)
        assert alive == []
        bench.scheduler.grammar_manager.grammar_backend.executor.shutdown()
        assert threads_inside(CompilerProcess.compile) == 0
    finish = found.pop("slow").finish
    assert finish is not None
    assert (finish["type"], finish["status_code"]) == ("abort", 400)
    assert "timed out" in finish["message"]
    assert found == expected
    print(f"given up after {took:.2f} s, limit 1 s; gap {usual * 1e3:.2f} ms alone, ", end="")
    print(f"{statistics.median(gaps) * 1e3:.2f} ms beside it")
    assert took < 10
    assert statistics.median(gaps) < 2 * usual + 2e-3


def threads_inside(function: Any) -> int:
    """How many threads of this process are in a function now."""
    stacks = (traceback.walk_stack(frame) for frame in sys._current_frames().values())
    return sum(any(f.f_code is function.__code__ for f, _ in stack) for stack in stacks)


def test_a_grammar_that_crashes_its_compiler_ends_its_own_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GrammarCompiler, "compile_regex", lambda self, pattern: os.abort())
    plain = ask("plain", max_new_tokens=20)
    with photon() as bench:
        expected = solo(bench, plain)
        found = bench.play([plain, ask("crash", at=1, regex="a+", max_new_tokens=4)])
    assert found["plain"].chunks == expected.chunks
    finish = found["crash"].finish
    assert finish is not None
    assert (finish["type"], finish["status_code"]) == ("abort", 400)
    assert "crashed its compiler" in finish["message"]


def test_ov_21_one_token_and_none() -> None:
    asks = [ask(str(n), at=n % 3, max_new_tokens=1) for n in range(8)]
    with photon() as bench:
        found = bench.play([*asks, ask("none", at=1, max_new_tokens=0)])
        assert bench.pipeline.zombie_rows == 0
    for request in asks:
        one = found[request.rid]
        assert len(one.tokens) == 1
        assert one.finish == {"type": "length", "length": 1}
    assert found["none"].tokens == []
    assert found["none"].chunks[-1]["completion_tokens"] == 0


def test_ov_24_ends_and_minimum_are_counted_right() -> None:
    with photon() as bench:
        found = bench.play(
            [
                ask("eos", ignore_eos=True, logit_bias={str(EOS): 100.0}, max_new_tokens=8),
                ask(
                    "last",
                    prompt=range(100, 116),
                    min_new_tokens=8,
                    logit_bias={str(LAST): 100.0},
                    max_new_tokens=8,
                ),
            ]
        )
    assert found["eos"].tokens == [EOS] * 8
    assert found["eos"].finish == {"type": "length", "length": 8}
    assert found["last"].tokens == [LAST] * 8


def test_ov_25_a_bias_reaches_its_own_row_only() -> None:
    long = ask("b", prompt=(91, 92), max_new_tokens=24)
    biased = ask("a", at=5, logit_bias={"5": 100.0}, max_new_tokens=4)
    with photon(lane="thread") as bench:
        expected = solo(bench, long).chunks
        found = bench.play([long, biased])
    assert found["a"].tokens == [5] * 4
    assert found["b"].chunks == expected


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_ov_30_pause_and_resume_at_every_step_lose_nothing(mode: str) -> None:
    run = ask("run", max_new_tokens=10)
    with photon() as bench:
        expected = solo(bench, run).tokens
        for step in range(1, 11):
            pause = Control(at=step, make=lambda: PauseGenerationReqInput(mode=mode))
            flush = Control(at=step + 1, make=FlushCacheReqInput)
            resume = Control(at=step + 2, make=ContinueGenerationReqInput)
            found = bench.play([run, pause, *([flush] if mode == "retract" else []), resume])
            assert found["run"].tokens == expected, step


def test_ov_33_an_end_with_a_step_in_flight_is_an_end_once() -> None:
    with photon() as bench:
        found = bench.play([ask("one", stop_token_ids=EOS_LIKE, max_new_tokens=64)])
        assert bench.pipeline.zombie_rows == 1
        assert bench.pipeline.open_rows == 0
        assert len(bench.scheduler.photon_loop.ledger) == 0
    finishes = [chunk["finished_reasons"] for chunk in found["one"].chunks]
    assert [finish is not None for finish in finishes].count(True) == 1
    assert finishes[-1]["type"] == "stop"


def test_ov_34_a_request_that_cannot_fit_is_refused_alone() -> None:
    small = [ask(str(n), at=1, prompt=(40 + n, 41), max_new_tokens=10) for n in range(3)]
    with photon("--max-total-tokens", "64") as bench:
        expected = {request.rid: solo(bench, request).tokens for request in small}
        found = bench.play([ask("big", prompt=range(100, 200), max_new_tokens=4), *small])
    finish = found["big"].finish
    assert finish is not None
    assert finish["type"] == "abort"
    assert {rid: found[rid].tokens for rid in expected} == expected


def test_ov_37_aborting_everything_and_nothing() -> None:
    draw = random.Random(37)
    asks = [ask(str(n), at=n // 8, prompt=(20 + n,), max_new_tokens=40) for n in range(64)]
    everything = Control(at=draw.randint(9, 20), make=lambda: AbortReq(abort_all=True))
    with photon() as bench:
        found = bench.play([*asks, everything])
        ended = {rid for rid, one in found.items() if one.finish is not None}
        refused = {message.rid for message in bench.scheduler.outbox.to_tokenizer}
        assert ended | refused == {request.rid for request in asks}
        assert not ended & refused
        late = [Abort(rid="unknown", at=0), Abort(rid="0", at=1), Abort(rid="twice", at=2)]
        after = bench.play([*late, ask("twice"), Abort(rid="twice", at=2), ask("next", at=3)])
    assert len(after["next"].tokens) == 8


def test_ov_38_logprobs_with_mixed_chunks() -> None:
    asks = [
        Ask(
            rid=f"{n}-{top}",
            at=n,
            prompt=tuple(range(30 + n, 30 + n + 3 + 5 * n)),
            params={"max_new_tokens": 6},
            fields={"return_logprob": True, "top_logprobs_num": top, "stream": n % 2 == 0},
        )
        for n in range(5)
        for top in (0, 2)
    ]
    mixed = ("--chunked-prefill-size", "8", "--enable-mixed-chunk")
    with rig(*mixed, loop="blocking") as bench:
        expected = bench.play(asks)
    with photon(*mixed, lane="thread") as bench:
        assert differences(expected, bench.play(asks)) == []


def test_ov_39_requests_at_random_moments() -> None:
    draw = random.Random(39)
    at = 0
    asks = []
    for n in range(50):
        at += min(5, int(draw.expovariate(0.7)))
        prompt = [draw.randrange(20, VOCAB) for _ in range(draw.randint(1, 64))]
        asks.append(ask(str(n), at, prompt, max_new_tokens=draw.randint(1, 24)))
    with rig(loop="blocking") as bench:
        expected = bench.play(asks)
    with photon(lane="instant") as bench:
        assert differences(expected, bench.play(asks)) == []


def test_ov_40_a_stream_interval_loses_nothing() -> None:
    lengths = (1, 3, 4, 5, 9)
    asks = [ask(str(n), prompt=(40 + n,), max_new_tokens=n) for n in lengths]
    with photon() as bench:
        expected = {rid: one.tokens for rid, one in bench.play(asks).items()}
    with photon("--stream-interval", "4") as bench:
        found = bench.play(asks)
    assert {rid: one.tokens for rid, one in found.items()} == expected
    for one in found.values():
        assert [c["finished_reasons"] is not None for c in one.chunks].count(True) == 1
