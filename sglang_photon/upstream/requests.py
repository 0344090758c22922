"""Tokenized requests as SGLang's tokenizer process sends them; for tests and benchmarks."""

from __future__ import annotations

import array
from collections.abc import Iterable
from typing import Any

from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams


def tokenized(
    *,
    rid: str,
    ids: Iterable[int],
    params: SamplingParams,
    stream: bool = True,
    mm_inputs: Any = None,
    **fields: Any,
) -> TokenizedGenerateReqInput:
    """A request that asks for tokens.

    Args:
        rid: its name.
        ids: token ids of the prompt.
        params: normalized.
        stream: whether every token is sent at once.
        mm_inputs: pictures, as the processor returned them.
        fields: more of SGLang's, in place of the plain ones (logprobs, LoRA, ...).
    """
    plain = {
        "input_text": "",
        "input_embeds": None,
        "token_type_ids": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
    }
    return TokenizedGenerateReqInput(
        rid=rid,
        input_ids=array.array("q", ids),
        sampling_params=params,
        stream=stream,
        mm_inputs=mm_inputs,
        **{**plain, **fields},
    )
