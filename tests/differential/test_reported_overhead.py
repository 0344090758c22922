"""Reported losses of overlap, each by its id: what the loop waits for, and how often it builds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode

from sglang_photon.records import StepKind
from sglang_photon.upstream.row_step import RowStep
from sglang_photon.upstream.step import Step
from tests.differential.features import FEATURES
from tests.differential.pictures import RANDOM_VLM
from tests.differential.rig import Ask, rig
from tests.differential.test_public_reports import ask, photon


def asks_of_kinds() -> list[Ask]:
    names = ("plain", "frequency", "regex", "logprobs", "processor", "plain")
    return [
        Ask(
            rid=str(index),
            at=index,
            prompt=(40 + index, 41),
            params={"max_new_tokens": 20, **FEATURES[name].params},
            fields=FEATURES[name].fields,
            pictures=(index,) if index % 2 else (),
        )
        for index, name in enumerate(names)
    ]


def test_ho_05_nothing_is_waited_for_but_the_commit_of_the_step_before() -> None:
    waits: list[int] = []
    with photon(model=RANDOM_VLM) as bench:
        make = bench.scheduler.lane_factory

        def spying() -> Any:
            lane = make()
            wait = lane.wait

            def note(slot: Any) -> None:
                waits.append(slot.index)
                wait(slot)

            lane.wait = note
            return lane

        bench.scheduler.lane_factory = spying
        bench.play(asks_of_kinds())
        stats = bench.stats
    assert len(waits) == stats.steps, "one wait for each step"
    assert not stats.settled
    assert waits == [step % 2 for step in range(stats.steps)]


READS = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"}
ON_THE_HOST = {
    ("init_new", "__int__"),  # the sum of the host's own lengths
    ("_is_special", "tolist"),  # the host's own lengths
    ("_offset", "__int__"),  # an offset that came with the request
}
"""What a decode step reads, in which function: values that have never been on a device."""


class Reads(TorchFunctionMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """Notes who turns a tensor into a value, or makes one on the device from values.

    With a device underneath each of them waits for everything that is queued there.
    """

    def __init__(self, found: Counter[tuple[str, str]]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        made = name in ("tensor", "as_tensor") and (kwargs or {}).get("device") is not None
        if name in READS or made:
            frame = sys._getframe(1)
            while "torch/" in frame.f_code.co_filename or "pinning" in frame.f_code.co_filename:
                assert frame.f_back is not None
                frame = frame.f_back
            self._found[frame.f_code.co_name, name] += 1
        return func(*args, **(kwargs or {}))


def test_ho_05_a_decode_step_reads_nothing_from_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Counter[tuple[str, str]] = Counter()
    steps: Counter[str] = Counter()

    def spying(run: Callable[..., None], name: str) -> Callable[..., None]:
        def job(step: Step | RowStep, *args: Any) -> None:
            if step.kind is not StepKind.DECODE:
                run(step, *args)
                return
            steps[name] += 1
            with Reads(found):
                run(step, *args)

        return job

    for kind in (Step, RowStep):
        for name in ("forward", "sample"):
            monkeypatch.setattr(kind, name, spying(getattr(kind, name), name))
    asks = [ask for ask in asks_of_kinds() if "custom_logit_processor" not in ask.fields]
    # Real layers: what a model reads counts too.
    with rig(loop="photon", lane="inline", hashed=False, model=RANDOM_VLM) as bench:
        bench.play(asks)
    assert steps["forward"] > 20
    assert set(found) - ON_THE_HOST == set(), found


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
