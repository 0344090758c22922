"""HO-07: masks of many rows are built while the device works, and in one piece."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_photon.slots.sim import RealClock, SimLane
from tests.differential.rig import Ask, Rig, rig

ROWS = 32
VOCAB = 32768
MODEL = f"demo:random:qwen2,hidden=64,layers=1,vocab={VOCAB}"
WIDE = ("--max-running-requests", str(ROWS), "--max-total-tokens", "16384")
FORWARD_S = 10e-3
EXTRA_S = 8e-3
"""Added to a mask, so that building it beside the forward and after it are far apart."""
PROMISED_S = 2e-3
CROWDED_S = 3e-3
"""Beyond the promise, for busy machines; a mask after the forward would take `EXTRA_S`."""


class Device:
    """A forward of a fixed time, and a sampler that takes the first token which a mask allows."""

    def __init__(self, bench: Rig) -> None:
        self.mask_s: list[float] = []
        lane = SimLane(step_time=lambda kind: FORWARD_S, clock=RealClock())
        bench.scheduler.lane_factory = lambda: lane
        self._runner = bench.scheduler.tp_worker.model_runner
        bench.scheduler.tp_worker.forward_batch_generation = self.forward

    def forward(self, batch: Any, forward_batch: Any = None, **_: Any) -> GenerationBatchResult:
        info = (forward_batch or batch).sampling_info
        if forward_batch is None:
            ForwardBatch.init_new(batch, self._runner, return_hidden_states_before_norm=False)
        result = GenerationBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None))

        def sample() -> None:
            started = time.perf_counter()
            info.update_regex_vocab_mask()
            self.mask_s.append(time.perf_counter() - started)
            words = info.grammar_mask.vocab_mask.numpy().view(np.uint32)
            rows, first = np.arange(len(words)), np.argmax(words != 0, axis=1)
            lowest = words[rows, first] & -words[rows, first]
            result.next_token_ids = torch.from_numpy(32 * first + np.log2(lowest).astype(np.int64))

        result.delay_sample_func = sample
        return result


def asks(count: int, *, tokens: int) -> list[Ask]:
    return [
        Ask(
            rid=str(number),
            prompt=(40 + number, 41),
            params={"max_new_tokens": tokens, "regex": "[a-z0-9 ]{400}"},
            fields={"stream": False},
        )
        for number in range(count)
    ]


def test_ho_07_masks_are_built_beside_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    build = SamplingBatchInfo.update_regex_vocab_mask

    def slowly(self: SamplingBatchInfo) -> None:
        time.sleep(EXTRA_S)
        build(self)

    monkeypatch.setattr(SamplingBatchInfo, "update_regex_vocab_mask", slowly)
    with rig(*WIDE, loop="photon", model=MODEL) as bench:
        device = Device(bench)
        commits: list[float] = []

        def noting(*_: Any, running_batch: Any, **rest: Any) -> None:
            if len(running_batch.reqs) == ROWS:
                commits.append(time.perf_counter())

        # Called once in every commit of a decode step.
        bench.scheduler.metrics_reporter.report_decode_stats = noting
        bench.play(asks(ROWS, tokens=100))
    steps = [later - one for one, later in itertools.pairwise(commits)]
    step, mask = statistics.median(steps), statistics.median(device.mask_s)
    print(
        f"{ROWS} rows, {VOCAB} tokens: step {step * 1e3:.2f} ms, forward {FORWARD_S * 1e3:g} ms, "
        f"mask {mask * 1e3:.2f} ms ({(mask - EXTRA_S) * 1e3:.2f} without what is added)"
    )
    assert len(steps) > 20
    assert step < max(FORWARD_S, mask) + PROMISED_S + CROWDED_S


class Made(TorchDispatchMode):
    """Counts the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_ho_07_no_tensor_is_made_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    build = SamplingBatchInfo.update_regex_vocab_mask
    made: dict[int, set[int]] = {}
    """Rows of a batch to how many tensors its mask took."""

    def counted(self: SamplingBatchInfo) -> None:
        with Made() as operations:
            build(self)
        made.setdefault(len(self.temperatures), set()).add(operations.count)

    monkeypatch.setattr(SamplingBatchInfo, "update_regex_vocab_mask", counted)
    with rig(*WIDE, loop="photon") as bench:
        bench.play(asks(2, tokens=100))
        bench.play(asks(ROWS, tokens=100))
    assert max(made) > 8 * min(made)
    assert set().union(*made.values()) == {1}, "one mask, however many rows"
