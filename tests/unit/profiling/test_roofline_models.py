"""The sizes that are calculated from published configurations are those of the published models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline.architecture import read_model
from sglang_photon.profiling.roofline.config_file import load
from sglang_photon.profiling.roofline.formats import FORMS, Formats
from sglang_photon.profiling.roofline.shapes import Attention, FeedForward
from sglang_photon.profiling.roofline.work import kv_bytes

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "tests/fixtures/configs"
DEMO = ROOT / "sglang_photon/reference/models/vlm/config.json"
BF16 = FORMS["bf16"]
PLAIN = Formats(attention=BF16, feed_forward=BF16, experts=BF16, plain=BF16, kv="bf16")

# Totals as the model cards and the index files of the checkpoints state them.
TOTALS = {
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_419_200,
    "gemma-3-4b": 4_300_079_472,
    "smolvlm-256m": 256_484_928,
    "llava-1.5-7b": 7_063_427_072,
    "gpt-oss-20b": 20_914_757_184,
    "llama-4-scout": 108_641_793_536,
}
ACTIVE = {"qwen3-30b-a3b": 3.3e9, "mixtral-8x7b": 12.9e9, "deepseek-v3": 37e9,
          "llama-4-scout": 17e9}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    return load(CONFIGS / f"{name}.json")


@pytest.mark.parametrize("name", TOTALS)
def test_all_parameters_are_counted(name: str) -> None:
    assert read_model(config(name)).params == pytest.approx(TOTALS[name], rel=0.005)


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_uses_a_few_experts(name: str) -> None:
    assert read_model(config(name)).active_params == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("qwen2.5-vl-3b", 36 * 2 * 2 * 128 * 2),
        # Latent attention: one vector of 512 + 64 numbers per layer, for all 128 heads.
        ("deepseek-v3", 61 * (512 + 64) * 2),
    ],
)
def test_the_cache_of_a_token(name: str, per_token: int) -> None:
    assert kv_bytes(read_model(config(name)), PLAIN, 1) == per_token
    assert kv_bytes(read_model(config(name)), PLAIN, 4096) == 4096 * per_token


def test_a_sliding_window_bounds_what_a_step_reads() -> None:
    model = read_model(config("gemma-3-4b"))
    windows = [layer.attention.window for layer in model.layers]
    assert windows[:7] == [1024] * 5 + [None, 1024]
    assert windows.count(None) == 5
    per_layer = 2 * 4 * 256 * 2
    assert kv_bytes(model, PLAIN, 32768) == per_layer * (29 * 1024 + 5 * 32768)


def test_layer_types_say_which_layers_slide() -> None:
    windows = [layer.attention.window for layer in read_model(config("gpt-oss-20b")).layers]
    assert windows == [128, None] * 12


def test_a_window_that_is_switched_off_is_none() -> None:
    layers = read_model(config("qwen2.5-vl-3b")).layers
    assert all(layer.attention.window is None for layer in layers)


def test_chunked_attention_has_a_global_layer_in_four() -> None:
    windows = [layer.attention.window for layer in read_model(config("llama-4-scout")).layers]
    assert windows == [8192, 8192, 8192, None] * 12


def test_pairs_of_a_causal_prefill() -> None:
    whole = Attention(params=0, kv_values=0, decode_flop=0, prefill_flop=0)
    assert whole.pairs(4) == 1 + 2 + 3 + 4
    narrow = Attention(params=0, kv_values=0, decode_flop=0, prefill_flop=0, window=2)
    assert narrow.pairs(4) == 1 + 2 + 2 + 2


def test_experts_of_a_batch() -> None:
    layer = FeedForward(params=0, expert_params=1, experts=128, top_k=8)
    assert layer.expected_experts(1) == pytest.approx(8)
    assert layer.expected_experts(2) == pytest.approx(128 * (1 - (120 / 128) ** 2))
    assert layer.expected_experts(1000) == pytest.approx(128)
    assert FeedForward(params=1).expected_experts(7) == 0


def test_an_indexer_bounds_what_is_read_and_not_what_is_kept() -> None:
    sparse = {**config("deepseek-v3"), "index_topk": 2048, "index_n_heads": 64,
              "index_head_dim": 128}  # fmt: skip
    model = read_model(sparse)
    read = 61 * (2048 * 576 * 2 + 100_000 * 128)
    assert kv_bytes(model, PLAIN, 100_000) == read
    kept = 61 * 100_000 * (576 * 2 + 128)
    assert kv_bytes(model, PLAIN, 100_000, everything=True) == kept


def test_patches_of_an_image_token() -> None:
    expected = {"qwen2.5-vl-3b": 4, "smolvlm-256m": 16, "gemma-3-4b": 16, "llava-1.5-7b": 1}
    for name, patches in expected.items():
        vision = read_model(config(name)).vision
        assert vision is not None
        assert vision.patches_per_token == patches


def test_a_tower_that_cannot_be_counted_is_told() -> None:
    model = read_model({**config("qwen2.5-vl-3b"), "vision_config": {"depth": 3}})
    assert model.vision is None
    assert any("hidden_size" in note or "embed_dim" in note for note in model.notes)


def test_defaults_that_were_filled_in_are_told() -> None:
    (note,) = read_model(config("gemma-3-4b")).notes
    assert "num_attention_heads 8" in note
    assert "gemma3_text" in note


def test_missing_sizes_are_named_all_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read_model({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2})
    for key in ("vocab_size", "num_attention_heads", "intermediate_size"):
        assert key in caught.value.problem
    assert "hidden_size" not in caught.value.problem


def test_latent_attention_names_its_missing_sizes() -> None:
    broken = config("deepseek-v3")
    del broken["v_head_dim"]
    with pytest.raises(UsageError, match="v_head_dim"):
        read_model(broken)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "an encoder"),
    ],
)
def test_what_is_not_modelled_is_refused(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_model({**config("llama-3.1-8b"), **extra})


def test_old_key_names_work() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    assert read_model(gpt2).params == pytest.approx(124_439_808, rel=0.01)


def test_the_quantisation_file_beside_a_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("llama-3.1-8b")))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    )
    assert load(tmp_path)["quantization_config"]["quant_algo"] == "NVFP4"


@pytest.mark.skipif(not DEMO.is_file(), reason="the demo model is not in this checkout")
def test_the_demo_model_is_counted() -> None:
    model = read_model(load(DEMO))
    assert model.vision is not None
    assert 0 < model.text_params < 100e6
