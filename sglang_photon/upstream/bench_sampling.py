"""Rows that want more than a token, for `photon bench host`: what sampling costs the host.

A simulated device computes nothing, so what a GPU would do with logits (add a mask, subtract
penalties, look up a logprob) takes no time. What the host does for it is real: masks are filled by
the grammar backend, penalties are counted, logprobs are read back and handed to the requests.
"""

from __future__ import annotations

import array
import time
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.utils import GenerationBatchResult

from sglang_photon.upstream.sim_worker import FIRST_TOKEN, SimDevice

NARROW = FIRST_TOKEN + 88
"""Columns of the penalties, and bound of the tokens. SGLang keeps penalties on the device, where
151,936 columns cost the host a launch; here, where the device is a CPU, it must be few."""

ANYTHING = r"[\s\S]*"
"""A grammar that accepts whatever the device makes up: a mask of the whole vocabulary each step."""

PENALTY = 0.5


def dress(message: Any, number: int) -> Any:
    """Of four requests in a row one has logprobs, one a grammar, one penalties, one nothing."""
    message.input_ids = array.array("q", (token % NARROW for token in message.input_ids))
    params = message.sampling_params
    if number % 4 == 0:
        message.return_logprob = True
    elif number % 4 == 1:
        params.regex = ANYTHING
    elif number % 4 == 2:
        params.frequency_penalty = params.presence_penalty = PENALTY
    return message


class SampledSteps:
    """Sampling as a step of its own, on a simulated device.

    As in SGLang's model worker, it is left to the caller where the loop asks for that: the photon
    loop always, SGLang's overlap loop where a row has a grammar.

    Args:
        device: already in place; its forward is replaced once more.
        scheduler: whose worker is changed.
        loop: which runs.
        vocab: columns of a mask.

    Attributes:
        seconds: what filling masks took of the scheduler's thread.
    """

    def __init__(self, *, device: SimDevice, scheduler: Any, loop: str, vocab: int) -> None:
        self._device = device
        self._loop = loop
        self._vocab = vocab
        self.seconds = 0.0
        scheduler.tp_worker.forward_batch_generation = self._forward

    def _forward(self, batch: Any, forward_batch: Any = None, **_: Any) -> GenerationBatchResult:
        device = self._device
        # The photon loop submits by itself.
        timed = self._loop != "photon"
        result = device._compute_timed(batch) if timed else device._compute(batch, forward_batch)
        # SGLang puts the batch's own back when this has returned.
        read = forward_batch or batch
        info, wants, rows = read.sampling_info, read.return_logprob, len(read.seq_lens)

        def sample() -> GenerationBatchResult:
            self._fill_masks(info)
            if wants:
                result.logits_output.next_token_logprobs = torch.zeros(rows)
            if timed:
                self._arrive_after_now()
            return result

        delayed = envs.SGLANG_ENABLE_DELAY_SAMPLE.get() or info.grammars is not None
        if self._loop != "blocking" and delayed:
            result.delay_sample_func = sample
            return result
        sample()
        if self._loop == "blocking":
            device.lane.wait(self._slot())
        return result

    def _fill_masks(self, info: Any) -> None:
        if not info.grammars:
            return
        started = time.thread_time()
        narrow, info.vocab_size = info.vocab_size, self._vocab
        info.update_regex_vocab_mask()
        info.vocab_size, info.grammar_mask = narrow, None
        self.seconds += time.thread_time() - started

    def _arrive_after_now(self) -> None:
        """The result is there when the forward is done, but not before it has been sampled."""
        self._device.lane.submit(self._slot(), _nothing)
        self._device.lane.copy(self._slot(), _nothing)

    def _slot(self) -> Any:
        return self._device._slots[(self._device._turn - 1) % len(self._device._slots)]


def _nothing() -> None:
    """Only its time is simulated."""
