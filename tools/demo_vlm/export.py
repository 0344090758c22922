"""Writes the trained model as a folder that transformers and SGLang load without a hub."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig

from sglang_photon.reference.models.integrity import write_manifest
from tools.demo_vlm.model import Trainee
from tools.demo_vlm.tokens import write_processor


def export(trainee: Trainee, tokenizer: Tokenizer, folder: Path) -> None:
    """bfloat16 weights without the auxiliary heads, and all that goes with them."""
    folder.mkdir(parents=True, exist_ok=True)
    model = trainee.model.to(torch.bfloat16).eval()
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=[
            tokenizer.token_to_id("<|im_end|>"),
            tokenizer.token_to_id("<|endoftext|>"),
        ],
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    model.save_pretrained(folder)
    write_processor(folder, tokenizer)
    write_manifest(folder)
