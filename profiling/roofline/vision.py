"""Counts the weights of a vision tower and its projector.

Decode never touches them, so a tower that cannot be counted is told and left out, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_photon.profiling.roofline.config_file import FAMILY_DEFAULTS, Keys
from sglang_photon.profiling.roofline.shapes import Vision

GATED = ("qwen2_5_vl", "pixtral")
ROTARY = ("qwen2_vl", "qwen2_5_vl", "pixtral")
"""Towers without a table of positions."""


def read_vision(data: Mapping[str, Any], text_hidden: int) -> tuple[Vision | None, str]:
    """The vision tower of a configuration, and a note where something was left out.

    Args:
        data: the whole configuration.
        text_hidden: width of the language model.
    """
    thinker = data.get("thinker_config")
    outer = thinker if isinstance(thinker, Mapping) else data
    section = outer.get("vision_config")
    if not isinstance(section, Mapping):
        return None, ""
    keys = Keys(section, FAMILY_DEFAULTS.get(str(section.get("model_type")), {}))
    family = f"{outer.get('model_type', '')} {keys.family}"
    # Qwen2-VL calls the width embed_dim; its hidden_size is the width of the language model.
    width = keys.size("embed_dim", "hidden_size", "width")
    depth = keys.size("depth", "num_hidden_layers", "layers")
    ratio = keys.get("mlp_ratio") or 0
    inner = keys.optional("intermediate_size", "mlp_dim") or int(width * ratio)
    if not inner:
        keys.missing.append("intermediate_size")
    if keys.missing:
        return None, f"the vision tower is not counted: it lacks {', '.join(keys.missing)}"
    matrices = 3 if any(name in family for name in GATED) else 2
    tower = depth * (4 * width * width + matrices * width * inner) + _patches(keys, width, family)
    projector, merged = _projector(outer, keys, family, width, text_hidden)
    note = "" if projector else "the projector of the vision tower is not counted"
    return Vision(params=tower + projector, patches_per_token=merged), note


def _patches(keys: Keys, width: int, family: str) -> int:
    """Weights of the patch embedding and of the table of positions."""
    patch = keys.optional("patch_size") or 14
    channels = keys.optional("in_chans", "in_channels", "num_channels") or 3
    frames = keys.optional("temporal_patch_size") or 1
    embedding = channels * patch * patch * frames * width
    if any(name in family for name in ROTARY):
        return embedding
    side = (keys.optional("image_size") or 0) // patch
    return embedding + (keys.optional("num_position_embeddings") or side * side) * width


def _projector(
    outer: Mapping[str, Any], keys: Keys, family: str, width: int, text_hidden: int
) -> tuple[int, int]:
    """Weights between tower and language model, and patches per image token."""
    top = Keys(outer)
    if "qwen" in family:
        merged = (keys.optional("spatial_merge_size") or 2) ** 2
        out = keys.optional("out_hidden_size") or text_hidden
        mergers = 1 + len(keys.get("deepstack_visual_indexes") or ())
        return mergers * merged * width * (merged * width + out), merged
    if "smolvlm" in family or "idefics3" in family:
        merged = (top.optional("scale_factor") or 2) ** 2
        return merged * width * text_hidden, merged
    if "gemma3" in family:
        side = (keys.optional("image_size") or 0) // (keys.optional("patch_size") or 1)
        tokens = top.optional("mm_tokens_per_image") or 256
        return width * text_hidden, max(side * side // tokens, 1)
    if "internvl" in family:
        return 4 * width * text_hidden + text_hidden * text_hidden, 4
    if "llava" in family:
        return (width + text_hidden) * text_hidden, 1
    return 0, 1
