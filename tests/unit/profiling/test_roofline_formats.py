"""Weights and cache are counted in the format they are stored in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.config_file import load
from sglang_photon.profiling.roofline.formats import Formats, read_formats

CONFIGS = Path(__file__).resolve().parents[3] / "tests/fixtures/configs"


def formats(quantisation: dict[str, Any] | None, **asked: str) -> Formats:
    data = {"quantization_config": quantisation} if quantisation else {}
    return read_formats(data, data, dtype="bf16", layers=4, **asked)


def group(weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, "input_activations": activations}},
        "ignore": ["lm_head"],
    }


INT8 = {"num_bits": 8, "type": "int"}
FP4 = {"num_bits": 4, "type": "float", "group_size": 16}


@pytest.mark.parametrize(
    ("quantisation", "bits", "compute"),
    [
        (None, 16, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 4 + 20 / 32, "bf16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8, "fp8"),
        ({"quant_method": "w8a8_int8"}, 8, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 20 / 64, "bf16"),
        (group(INT8, INT8), 8, "int8"),
        (group(INT8, None), 8, "bf16"),
        (group({"num_bits": 8, "type": "float"}, {"num_bits": 8}), 8, "fp8"),
        (group(FP4, FP4), 4.5, "fp4"),
        (group(FP4, None), 4.5, "bf16"),
        (group({"num_bits": 4, "type": "int", "group_size": 128}, None), 4 + 20 / 128, "bf16"),
    ],
)
def test_methods(quantisation: dict[str, Any] | None, bits: float, compute: str) -> None:
    form = formats(quantisation).feed_forward
    assert form.bits == pytest.approx(bits)
    assert form.compute == compute
    assert formats(quantisation).plain.bits == 16


def test_mxfp4_holds_the_experts_alone() -> None:
    data = load(CONFIGS / "gpt-oss-20b.json")
    found = read_formats(data, data, dtype="bf16", layers=24)
    assert found.experts.name == "mxfp4"
    assert {found.attention.name, found.feed_forward.name} == {"bf16"}
    assert found.main.name == "mxfp4"


@pytest.mark.parametrize(
    ("left_out", "attention", "feed_forward", "experts"),
    [
        (["lm_head", "model.layers.0.mlp.gate", "visual"], "nvfp4", "nvfp4", "nvfp4"),
        (["re:.*self_attn.*"], "bf16", "nvfp4", "nvfp4"),
        ([f"model.layers.{n}.self_attn*" for n in range(4)], "bf16", "nvfp4", "nvfp4"),
        # One layer of four stays as it is: not the rule.
        (["model.layers.0.self_attn.q_proj"], "nvfp4", "nvfp4", "nvfp4"),
        (["model.layers.*.mlp.shared_experts*"], "nvfp4", "bf16", "nvfp4"),
        (["visual.blocks.0.attn.qkv", "vision_tower.*self_attn"], "nvfp4", "nvfp4", "nvfp4"),
    ],
)
def test_parts_that_stay_unquantised(
    left_out: list[str], attention: str, feed_forward: str, experts: str
) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": left_out}
    found = formats(config)
    assert found.attention.name == attention
    assert found.feed_forward.name == feed_forward
    assert found.experts.name == experts


def test_the_cache_follows_the_checkpoint_or_the_flag() -> None:
    checkpoint = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    scheme = {**group(INT8, INT8), "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert formats(None).kv_size == 2
    assert formats(checkpoint).kv_size == 1
    assert formats(scheme).kv_size == 1
    assert formats(checkpoint, kv="bf16").kv_size == 2
    assert formats(None, kv="fp4_e2m1").kv_size == pytest.approx(0.5625)


def test_a_flag_replaces_what_the_checkpoint_says() -> None:
    found = formats({"quant_method": "awq", "bits": 4, "group_size": 128}, weights="fp8")
    assert {found.attention.name, found.feed_forward.name, found.experts.name} == {"fp8"}


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "brand_new"},
        {"bits": 4},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        group({"num_bits": 2, "type": "int"}, None),
    ],
)
def test_an_unknown_method_names_the_flag(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--weight-dtype"):
        formats(config)
