"""Models with random weights: SGLang's real code paths at any size, without a download.

Tests compare scheduler loops token by token, so an answer must depend on everything that a loop
could get wrong. The scales below make it so: attention logits have a standard deviation of about 2
(a head looks at few positions, not at the mean of all), every sub-layer adds as much as it
receives, and the output matrix is its own (tied to the embedding, it would repeat the last token).
The output rows of special tokens are zero: greedily they never win, so no answer ends by chance.

The tensors carry the names of the published Qwen2 and Qwen2.5-VL checkpoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_photon.reference.models import random_tokenizer
from sglang_photon.reference.models.random_spec import HEAD_DIM, RandomSpec

if TYPE_CHECKING:
    import torch

PATCH = 14
MERGE = 2
TEMPORAL_PATCH = 2
MIN_PIXELS = 56 * 56
MAX_PIXELS = 1280 * (PATCH * MERGE) ** 2
"""A larger picture is scaled down to 1280 tokens."""

_ATTENTION_GAIN = 1.5
_LOGIT_SCALE = 2.0
_BIAS_SCALE = 0.1


def build(spec: RandomSpec, target: Path) -> None:
    """Write a complete model folder for `spec` into `target`.

    Raises:
        OSError, SafetensorError: the folder cannot be written.
    """
    from safetensors.torch import save_file

    random_tokenizer.write(target, vocab=spec.vocab, context=spec.context)
    _write_json(target / "config.json", _config(spec))
    ends = [_token("<|im_end|>"), _token("<|endoftext|>")]
    _write_json(target / "generation_config.json", {"eos_token_id": ends, "do_sample": False})
    if spec.is_vision:
        _write_json(target / "preprocessor_config.json", _preprocessor())
    save_file(_weights(spec), target / "model.safetensors", metadata={"format": "pt"})


def _config(spec: RandomSpec) -> dict[str, Any]:
    text: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": spec.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "torch_dtype": spec.stored_dtype,
        "bos_token_id": _token("<|endoftext|>"),
        "eos_token_id": _token("<|im_end|>"),
        "pad_token_id": _token("<|endoftext|>"),
    }
    if not spec.is_vision:
        return text
    # Rotary frequencies are shared out over time, height and width as 2 : 3 : 3, as in Qwen2.5-VL.
    eighth = spec.hidden // spec.heads // 16
    return text | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [2 * eighth, 3 * eighth, 3 * eighth]},
        "image_token_id": _token("<|image_pad|>"),
        "video_token_id": _token("<|video_pad|>"),
        "vision_start_token_id": _token("<|vision_start|>"),
        "vision_end_token_id": _token("<|vision_end|>"),
        "vision_token_id": _token("<|vision_pad|>"),
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": spec.vision_layers,
            "hidden_size": spec.vision_hidden,
            "intermediate_size": 2 * spec.vision_hidden,
            "num_heads": spec.vision_hidden // HEAD_DIM,
            "out_hidden_size": spec.hidden,
            "hidden_act": "silu",
            "in_channels": 3,
            "in_chans": 3,
            "patch_size": PATCH,
            "spatial_patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL_PATCH,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": [spec.vision_layers - 1],
            "torch_dtype": spec.stored_dtype,
        },
    }


def _preprocessor() -> dict[str, Any]:
    return {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": TEMPORAL_PATCH,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _weights(spec: RandomSpec) -> dict[str, torch.Tensor]:
    """All tensors, drawn in a fixed order from one seeded generator, on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(spec.seed)
    dtype = getattr(torch, spec.stored_dtype)
    weights: dict[str, torch.Tensor] = {}
    for name, shape, scale in _tensors(spec):
        if scale is None:
            weights[name] = torch.ones(shape, dtype=dtype)
        else:
            weights[name] = torch.randn(shape, generator=generator).mul_(scale).to(dtype)
    weights["lm_head.weight"][: len(random_tokenizer.SPECIAL_TOKENS)] = 0
    return weights


_Tensor = tuple[str, tuple[int, ...], float | None]
"""Name, shape, and standard deviation (None: a norm's weight, all ones)."""


def _tensors(spec: RandomSpec) -> Iterator[_Tensor]:
    hidden, ffn = spec.hidden, spec.ffn
    kv = hidden // spec.heads * spec.kv_heads
    yield "model.embed_tokens.weight", (spec.vocab, hidden), 1.0
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,), None
        yield from _linear(f"{prefix}.self_attn.q_proj", hidden, hidden, gain=_ATTENTION_GAIN)
        yield from _linear(f"{prefix}.self_attn.k_proj", hidden, kv, gain=_ATTENTION_GAIN)
        yield from _linear(f"{prefix}.self_attn.v_proj", hidden, kv)
        yield from _linear(f"{prefix}.self_attn.o_proj", hidden, hidden, bias=False)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,), None
        yield from _linear(f"{prefix}.mlp.gate_proj", hidden, ffn, bias=False)
        yield from _linear(f"{prefix}.mlp.up_proj", hidden, ffn, bias=False)
        yield from _linear(f"{prefix}.mlp.down_proj", ffn, hidden, bias=False, gain=2.0)
    yield "model.norm.weight", (hidden,), None
    yield from _linear("lm_head", hidden, spec.vocab, bias=False, gain=_LOGIT_SCALE)
    if spec.is_vision:
        yield from _vision_tensors(spec)


def _vision_tensors(spec: RandomSpec) -> Iterator[_Tensor]:
    width, merged = spec.vision_hidden, spec.vision_hidden * MERGE**2
    pixels = 3 * TEMPORAL_PATCH * PATCH * PATCH
    patch = (width, 3, TEMPORAL_PATCH, PATCH, PATCH)
    yield "visual.patch_embed.proj.weight", patch, 1 / math.sqrt(pixels)
    for layer in range(spec.vision_layers):
        prefix = f"visual.blocks.{layer}"
        yield f"{prefix}.norm1.weight", (width,), None
        yield from _linear(f"{prefix}.attn.qkv", width, 3 * width, gain=_ATTENTION_GAIN)
        yield from _linear(f"{prefix}.attn.proj", width, width)
        yield f"{prefix}.norm2.weight", (width,), None
        yield from _linear(f"{prefix}.mlp.gate_proj", width, 2 * width)
        yield from _linear(f"{prefix}.mlp.up_proj", width, 2 * width)
        yield from _linear(f"{prefix}.mlp.down_proj", 2 * width, width, gain=2.0)
    yield "visual.merger.ln_q.weight", (width,), None
    yield from _linear("visual.merger.mlp.0", merged, merged)
    yield from _linear("visual.merger.mlp.2", merged, spec.hidden, gain=2.0)


def _linear(
    name: str, inputs: int, outputs: int, *, gain: float = 1.0, bias: bool = True
) -> Iterator[_Tensor]:
    yield f"{name}.weight", (outputs, inputs), gain / math.sqrt(inputs)
    if bias:
        yield f"{name}.bias", (outputs,), _BIAS_SCALE


def _token(text: str) -> int:
    return random_tokenizer.SPECIAL_TOKENS.index(text)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
