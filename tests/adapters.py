"""LoRA adapters for the tiny text model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sglang_photon.reference.models import names

RANK = 4


def adapter(folder: Path, seed: int, *, model: str) -> Path:
    """An adapter strong enough to change every answer.

    Args:
        folder: is made.
        seed: another one is another adapter.
        model: a demo model's name.
    """
    path, shape = _model(model)
    hidden = shape["hidden_size"]
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, RANK, generator=generator)
    return _written(folder, weights, path, modules=["o_proj"])


def forcing(folder: Path, token: int, *, model: str) -> Path:
    """An adapter under which every text is one token, again and again.

    Gate and up projection get the same large addend, so that their product, after SiLU, is positive
    everywhere; the down projection turns any positive vector into the token's row of the head.
    """
    path, shape = _model(model)
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head = load_file(Path(path) / "model.safetensors")
    row = head.get("lm_head.weight", head["model.embed_tokens.weight"])[token].float()
    generator = torch.Generator().manual_seed(token)
    read = torch.randn(RANK, hidden, generator=generator)
    spread = 100 * torch.randn(inner, RANK, generator=generator)
    weights = {}
    layer = shape["num_hidden_layers"] - 1
    for name in ("gate_proj", "up_proj"):
        stem = f"base_model.model.model.layers.{layer}.mlp.{name}"
        weights[f"{stem}.lora_A.weight"] = read
        weights[f"{stem}.lora_B.weight"] = spread
    stem = f"base_model.model.model.layers.{layer}.mlp.down_proj"
    weights[f"{stem}.lora_A.weight"] = torch.ones(RANK, inner)
    weights[f"{stem}.lora_B.weight"] = row[:, None].repeat(1, RANK)
    return _written(folder, weights, path, modules=["gate_proj", "up_proj", "down_proj"])


def _model(name: str) -> tuple[str, dict[str, int]]:
    path = names.resolve(name).path
    shape: dict[str, int] = json.loads((Path(path) / "config.json").read_text())
    return path, shape


def _written(
    folder: Path, weights: dict[str, torch.Tensor], model: str, *, modules: list[str]
) -> Path:
    folder.mkdir(parents=True)
    save_file(
        {k: v.contiguous().clone() for k, v in weights.items()},
        folder / "adapter_model.safetensors",
    )
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 16,
        "target_modules": modules,
        "base_model_name_or_path": model,
        "bias": "none",
        "lora_dropout": 0.0,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
