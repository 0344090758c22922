"""Reported losses of overlap, each by its id: what the loop waits for, and how often it builds."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

from tests.differential.features import FEATURES
from tests.differential.rig import Ask
from tests.differential.test_public_reports import ask, photon


def test_ho_05_nothing_is_waited_for_but_the_commit_of_the_step_before() -> None:
    names = ("plain", "frequency", "regex", "logprobs")
    asks = [
        Ask(
            rid=name,
            at=index,
            prompt=(40 + index, 41),
            params={"max_new_tokens": 12, **FEATURES[name].params},
            fields=FEATURES[name].fields,
        )
        for index, name in enumerate(names)
    ]
    waits: list[tuple[int, int]] = []
    with photon() as bench:
        make = bench.scheduler.lane_factory

        def spying() -> Any:
            lane = make()
            wait = lane.wait

            def note(slot: Any) -> None:
                pipeline = bench.scheduler.photon_loop.pipeline
                waits.append((slot.index, pipeline.in_flight))
                wait(slot)

            lane.wait = note
            return lane

        bench.scheduler.lane_factory = spying
        bench.play(asks)
        stats = bench.stats
    assert len(waits) == stats.steps, "one wait for each step"
    assert not stats.settled
    assert [index for index, _ in waits] == [step % 2 for step in range(stats.steps)]


def test_ho_06_logprobs_keep_the_overlap() -> None:
    asks = [ask(str(n), prompt=(40 + n,), max_new_tokens=30) for n in range(7)]
    asks.append(
        Ask(
            rid="logprobs",
            prompt=(60,),
            params={"max_new_tokens": 30},
            fields={"return_logprob": True, "top_logprobs_num": 2},
        )
    )
    with photon() as bench:
        lanes: list[Any] = []
        make = bench.scheduler.lane_factory

        def kept() -> Any:
            lanes.append(make())
            return lanes[-1]

        bench.scheduler.lane_factory = kept
        bench.play(asks)
        stats = bench.stats
    (lane,) = lanes
    assert lane.idle == 0.0
    assert not stats.settled
    assert not stats.lockstep


def test_ho_07_masks_are_built_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [ask(str(n), prompt=(40 + n,), regex="[a-z]+", max_new_tokens=10) for n in range(8)]
    with photon() as bench:
        kind = XGrammarGrammar
        allocate = kind.allocate_vocab_mask
        batches: list[int] = []

        def counting(self: Any, vocab_size: int, batch_size: int, device: Any) -> Any:
            batches.append(batch_size)
            return allocate(self, vocab_size, batch_size, device)

        monkeypatch.setattr(kind, "allocate_vocab_mask", counting)
        bench.play(asks)
        steps = bench.stats.steps
    assert 0 < len(batches) <= steps
    assert max(batches) == len(asks)
