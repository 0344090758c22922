"""A model folder without weights: Qwen2.5-VL-3B-Instruct's sizes, for `--load-format dummy`.

The tokenizer and the image processor are the demo model's: nothing here reads text or pixels, but
SGLang's scheduler wants both to be there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import sglang_photon.reference.models

DEMO = Path(sglang_photon.reference.models.__file__).parent / "vlm"
BORROWED = (
    "chat_template.jinja",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "use_sliding_window": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000000.0,
            "mrope_section": [16, 24, 24],
        },
    },
    "vision_config": {
        "model_type": "qwen2_5_vl_vision",
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
    },
}
"""The published config, without what only a newer or older loader reads."""


def write(folder: Path, *, small: bool) -> Path:
    """Make the folder.

    Args:
        folder: is made; its parent exists.
        small: the demo model's sizes, for a rehearsal on a CPU.
    """
    folder.mkdir()
    for name in BORROWED:
        shutil.copy(DEMO / name, folder)
    config = json.loads((DEMO / "config.json").read_text()) if small else CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
