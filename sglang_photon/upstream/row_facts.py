"""What a request means for the fast path, read from SGLang's `Req`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import DEFAULT_FORCE_STREAM_INTERVAL
from sglang.srt.observability.req_time_stats import get_global_tracing_enabled
from sglang.srt.runtime_context import get_exec, get_serving

from sglang_photon.rows.table import NEVER


def rows_fit(scheduler: Any) -> bool:
    """Whether the scheduler's configuration is one that rows serve; else SGLang's batches do."""
    return bool(
        scheduler.is_generation
        and scheduler.req_to_token_pool._aux_cache is None
        and scheduler.decode_offload_manager is None
        and not scheduler.output_streamer.has_additional_customized_info
        and not scheduler.tp_worker.model_runner.kv_index_translator.reads_are_translated
        and get_exec().deterministic.rl_on_policy_target is None
        and not get_global_tracing_enabled()
    )


def is_plain_decode(req: Any) -> bool:
    """Whether the request decodes one token per step in one row, and returns what rows know."""
    mm = req.multimodal_inputs
    return (
        req.beam_group is None
        and req.session is None
        and not req.return_sampling_mask
        and not req.return_routed_experts
        and not req.return_indexer_topk
        and req.customized_info is None
        and (mm is None or _positions_follow_a_delta(req, mm))
    )


def is_special(scheduler: Any, req: Any) -> bool:
    """Whether every token of the request needs a look by SGLang's own code."""
    params = req.sampling_params
    return bool(
        req.grammar is not None
        or req.return_logprob
        or req.return_hidden_states
        or params.stop_strs
        or params.stop_regex_strs
        or req.require_reasoning
        or scheduler.model_config.self_opened_think_start_ids
    )


def end_tokens(req: Any) -> Iterable[int]:
    """Tokens that may end the request; whether one does is `Req.update_finish_state`'s to say."""
    params, tokenizer = req.sampling_params, req.tokenizer
    if params.ignore_eos:
        return ()
    own = {*(params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if tokenizer is not None:
        own |= {tokenizer.eos_token_id, *(tokenizer.additional_stop_token_ids or ())}
    return {token for token in own if token is not None}


def stream_interval(req: Any) -> int | None:
    """Tokens between two chunks; None for a request that does not stream."""
    if not req.stream:
        return None
    return req.sampling_params.stream_interval or get_serving().stream_interval


def next_look(req: Any, *, committed: int, plain: bool) -> int:
    """Output tokens at which the request's length or its next chunk is due.

    Args:
        req: the request.
        committed: its output tokens.
        plain: it streams every token by itself.
    """
    interval = stream_interval(req)
    if plain:
        chunk = NEVER
    elif interval is None:
        chunk = (committed // DEFAULT_FORCE_STREAM_INTERVAL + 1) * DEFAULT_FORCE_STREAM_INTERVAL
    elif req.send_token_offset == 0:
        chunk = committed + 1
    else:
        chunk = max(req.send_token_offset + interval, committed + 1)
    return min(chunk, req.sampling_params.max_new_tokens)


def _positions_follow_a_delta(req: Any, mm: Any) -> bool:
    """Not those models that list the positions of tokens to come."""
    listed = mm.mrope_positions
    return mm.mrope_position_delta is not None and (
        listed is None or listed.shape[1] <= len(req.origin_input_ids)
    )
