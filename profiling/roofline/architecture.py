"""From a config.json to the shape of the decoder: attention, experts, windows, tied tables.

Covered: multi-head, grouped and multi-query attention, multi-head latent attention (DeepSeek) with
and without an indexer, sliding and chunked windows, dense and expert layers with shared experts.
State-space and linear-attention layers, encoders and cross attention are refused: their steps read
other things than a KV cache, and a wrong floor is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.config_file import Keys, text_defaults, text_section
from sglang_photon.profiling.roofline.shapes import Attention, FeedForward, Layer, ModelShape
from sglang_photon.profiling.roofline.vision import read_vision

NOT_MODELLED = {
    "layers_block_type": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "ssm_state_size": "state-space layers",
    "attn_layer_period": "state-space layers",
    "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "attn_type_list": "linear attention",
    "cross_attention_layers": "cross attention",
    "compress_ratios": "compressed attention",
    "global_head_dim": "two head sizes",
    "laurel_rank": "per-layer embeddings",
}
"""Keys that give away a structure this arithmetic does not describe."""

UNGATED = frozenset(
    [
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "phi",
        "starcoder2",
    ]
)
TIED_BY_DEFAULT = frozenset(
    [
        "bloom",
        "cohere",
        "cohere2",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gpt2",
        "gpt_bigcode",
        "mpt",
        "opt",
    ]
)
ALL_LAYERS_SLIDE = frozenset(["mistral", "mixtral", "phi3", "starcoder2"])
GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Families with one layer of full attention in so many, where the file does not say."""

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
FLOAT_NAMES = {"float32": "fp16", "float16": "fp16", "bfloat16": "bf16"}
"""SGLang loads a float32 checkpoint as float16 unless told otherwise."""


def read_model(data: Mapping[str, Any]) -> ModelShape:
    """The shape of the model that a configuration describes.

    Raises:
        UsageError: sizes are missing (all are named), or the structure is not modelled.
    """
    section, nested = text_section(data)
    _refuse_other_structures(data, section)
    keys = Keys(section, text_defaults(section, nested))
    hidden = keys.size("hidden_size", "n_embd", "d_model")
    depth = keys.size("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    vocabulary = keys.size("vocab_size")
    heads = keys.size("num_attention_heads", "n_head", "n_heads")
    _check_feed_forward(keys)
    if keys.missing:
        raise UsageError(
            f"The configuration lacks {', '.join(keys.missing)}",
            "Give --config the complete config.json of a decoder or a vision-language model",
        )
    layers = tuple(
        Layer(
            attention=_attention(keys, hidden, heads, _window(keys, index)),
            feed_forward=_feed_forward(keys, hidden, index),
        )
        for index in range(depth)
    )
    vision, note = read_vision(data, hidden)
    assumed = ", ".join(f"{key} {value}" for key, value in keys.assumed.items())
    notes = [f"not in the file, defaults of {keys.family}: {assumed}"] if assumed else []
    dtype = str(_first(section, data, "dtype", "torch_dtype") or "bfloat16").split(".")[-1]
    if dtype == "float32":
        notes.append("the file says float32: SGLang loads that as float16")
    return ModelShape(
        family=keys.family,
        layers=layers,
        table=hidden * vocabulary,
        tied=_tied(section, data, keys.family),
        vision=vision,
        dtype=FLOAT_NAMES.get(dtype, "bf16"),
        notes=(*notes, note) if note else tuple(notes),
    )


def _refuse_other_structures(data: Mapping[str, Any], section: Mapping[str, Any]) -> None:
    found = [what for key, what in NOT_MODELLED.items() if section.get(key)]
    plain = {"full_attention", "sliding_attention", "chunked_attention"}
    found += sorted(set(section.get("layer_types") or ()) - plain)
    if data.get("is_encoder_decoder"):
        found.append("an encoder and a decoder")
    if found:
        raise UsageError(
            f"A model with {found[0].replace('_', ' ')} is not modelled",
            "Its floor cannot be calculated here: compare measured steps with each other",
        )


def _first(section: Mapping[str, Any], data: Mapping[str, Any], *names: str) -> Any:
    """A key of the language model, else of the whole configuration."""
    values = (part.get(name) for part in (section, data) for name in names)
    return next((value for value in values if value is not None), None)


def _tied(section: Mapping[str, Any], data: Mapping[str, Any], family: str) -> bool:
    # A vision-language model is tied as its outer class says.
    stated = _first(data, section, "tie_word_embeddings")
    return family in TIED_BY_DEFAULT if stated is None else bool(stated)


def _attention(keys: Keys, hidden: int, heads: int, window: int | None) -> Attention:
    if keys.optional("kv_lora_rank"):
        return _latent_attention(keys, hidden, heads)
    head = keys.optional("head_dim", "attention_head_dim") or hidden // heads
    value = keys.optional("v_head_dim") or head
    kv_heads = keys.optional("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    if keys.get("multi_query") and not keys.get("new_decoder_architecture"):
        kv_heads = 1
    kv_heads = kv_heads or heads
    per_pair = 2 * heads * (head + value)
    return Attention(
        params=hidden * (heads + kv_heads) * (head + value),
        kv_values=kv_heads * (head + value),
        decode_flop=per_pair,
        prefill_flop=per_pair,
        window=window,
    )


def _latent_attention(keys: Keys, hidden: int, heads: int) -> Attention:
    """DeepSeek's attention: one small latent vector per token is cached for all heads."""
    latent, rotary = keys.size("kv_lora_rank"), keys.size("qk_rope_head_dim")
    plain, value = keys.size("qk_nope_head_dim"), keys.size("v_head_dim")
    if keys.missing:
        raise UsageError(
            f"The configuration lacks {', '.join(keys.missing)}",
            "Latent attention needs them: give --config the complete config.json",
        )
    query = heads * (plain + rotary)
    rank = keys.optional("q_lora_rank")
    params = (hidden + query) * rank if rank else hidden * query
    params += hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    selected = keys.optional("index_topk")
    width, index_heads = keys.optional("index_head_dim") or 0, keys.optional("index_n_heads") or 0
    if selected:
        params += (rank or hidden) * index_heads * width + hidden * (width + index_heads)
    return Attention(
        params=params,
        kv_values=latent + rotary,
        decode_flop=2 * heads * (2 * latent + rotary),
        prefill_flop=2 * heads * (plain + rotary + value),
        selected=selected,
        index_bytes=width if selected else 0,
        index_flop=2 * index_heads * width if selected else 0,
    )


def _window(keys: Keys, index: int) -> int | None:
    """How far the attention of a layer looks back; None: to the beginning."""
    chunk, window = keys.optional("attention_chunk_size"), keys.optional("sliding_window")
    kinds = keys.get("layer_types")
    if kinds:
        return {"sliding_attention": window, "chunked_attention": chunk}.get(kinds[index])
    if chunk:
        rotary = keys.get("no_rope_layers")
        every = keys.optional("no_rope_layer_interval") or 4
        return chunk if (rotary[index] if rotary else (index + 1) % every) else None
    if not window or keys.get("use_sliding_window") is False:
        return None
    pattern = keys.optional("sliding_window_pattern", "_sliding_window_pattern")
    every = pattern or GLOBAL_EVERY.get(keys.family, 0)
    if every:
        return window if (index + 1) % every else None
    if keys.get("use_sliding_window"):
        return window if index >= (keys.optional("max_window_layers") or 0) else None
    return window if keys.family in ALL_LAYERS_SLIDE else None


def _check_feed_forward(keys: Keys) -> None:
    """Note missing sizes of the feed-forward part."""
    if keys.family != "gpt2":
        keys.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim",
                  "moe_intermediate_size")  # fmt: skip
    if (keys.optional(*EXPERTS) or 1) > 1:
        keys.size("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")


def _feed_forward(keys: Keys, hidden: int, index: int) -> FeedForward:
    matrices = 2 if keys.family in UNGATED else 3
    experts = keys.optional(*EXPERTS) or 0
    inner = keys.optional("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim")
    if experts > 1 and _has_experts(keys, index):
        size = keys.optional("moe_intermediate_size") or inner or 0
        shared = keys.optional("shared_expert_intermediate_size") or 0
        count = keys.optional("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        if keys.family.startswith("llama4"):
            count = 1
        shared = shared or (count or 0) * size
        return FeedForward(
            params=matrices * hidden * shared + hidden * experts,
            expert_params=matrices * hidden * size,
            experts=experts,
            top_k=keys.size("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
        )
    inner = keys.optional("intermediate_size_mlp") or inner or 4 * hidden
    return FeedForward(params=matrices * hidden * inner)


def _has_experts(keys: Keys, index: int) -> bool:
    """Whether a layer of a mixture-of-experts model has experts."""
    chosen = keys.get("moe_layers")
    if chosen:
        return index in chosen
    if index < (keys.optional("first_k_dense_replace", "moe_layer_start_index") or 0):
        return False
    if index in (keys.get("mlp_only_layers") or ()):
        return False
    frequency = keys.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[index])
    if frequency and index % frequency:
        return False
    step = keys.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    return (index + 1) % (step or 1) == 0
