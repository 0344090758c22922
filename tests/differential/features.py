"""Everything that a request can ask for, as pieces that can be combined."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from tests.differential.rig import VOCAB

EOS_LIKE = list(range(0, VOCAB, 16))
"""Stop tokens so many that a row ends after about 16 tokens, at a moment nobody foresees."""

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["x", "ok"],
    }
)


class NeverTwice(CustomLogitProcessor):  # type: ignore[misc]
    """Bans the newest token, so that no two neighbours are equal; a stale view shows at once."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, param in enumerate(custom_param_list or []):
            if param["__req__"].output_ids:
                newest = param["__req__"].output_ids[-1]
                assert newest >= 0
                logits[row, newest] = float("-inf")
            # Without the ban this row would say one word for ever.
            logits[row, 600 + len(param["__req__"].output_ids) // 3] += 50.0
        return logits


@dataclass(frozen=True)
class Feature:
    """Sampling parameters, and fields of the message beside them."""

    params: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


FEATURES = {
    "plain": Feature(),
    "whole": Feature(fields={"stream": False}),
    "stop_ids": Feature(params={"stop_token_ids": EOS_LIKE}),
    "stop_string": Feature(params={"stop": ["a", "e", "th"]}),
    "stop_regex": Feature(params={"stop_regex": ["[0-9]|x"]}),
    "ignore_eos": Feature(params={"ignore_eos": True, "logit_bias": {"0": 90.0}}),
    "min_tokens": Feature(params={"min_new_tokens": 6, "stop_token_ids": EOS_LIKE}),
    "frequency": Feature(params={"frequency_penalty": 1.5, "logit_bias": {"7": 90.0, "9": 90.0}}),
    "presence": Feature(params={"presence_penalty": 1.5, "logit_bias": {"7": 90.0, "9": 90.0}}),
    "repetition": Feature(params={"repetition_penalty": 2.0, "logit_bias": {"7": 90.0, "9": 90.0}}),
    "bias": Feature(params={"logit_bias": {"5": 100.0}}),
    "logprobs": Feature(fields={"return_logprob": True}),
    "top_logprobs": Feature(
        fields={"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
    ),
    "ids_logprobs": Feature(fields={"return_logprob": True, "token_ids_logprob": [1, 5, 700]}),
    "regex": Feature(params={"regex": "[a-c]{2,6}[0-9]+"}),
    "schema": Feature(params={"json_schema": SCHEMA}),
    "ebnf": Feature(params={"ebnf": 'root ::= "yes" | "no" | "maybe " root'}),
    "hidden": Feature(fields={"return_hidden_states": True}),
    "processor": Feature(
        params={"custom_params": {"on": True}},
        fields={"custom_logit_processor": NeverTwice.to_str()},
    ),
}

GRAMMARS = ("regex", "schema", "ebnf")

ARGUMENTS = ("--enable-return-hidden-states", "--enable-custom-logit-processor")
"""Server flags without which some features are refused."""


def combined(*names: str) -> Feature:
    """One request with several features; of two grammars the first stays."""
    grammars = [name for name in names if name in GRAMMARS]
    params: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name in names:
        if name in grammars[1:]:
            continue
        feature = FEATURES[name]
        bias = {**params.get("logit_bias", {}), **feature.params.get("logit_bias", {})}
        params.update(feature.params)
        if bias:
            params["logit_bias"] = bias
        fields.update(feature.fields)
    return Feature(params, fields)
