"""Random-weight models: whole checkpoints whose answers depend on everything in the question."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sglang_photon import reference
from sglang_photon.reference.models.names import resolve
from sglang_photon.reference.models.random_tokenizer import SPECIAL_TOKENS

QUESTIONS = ("Hello", "Why is the sky blue?", "Why is the sky blue!", "List three fruits.")
STEPS = 24
VL = "demo:random"
TEXT = "demo:random:qwen2"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def transformers() -> Any:
    """Transformers' picture processors need torchvision, whose operators a CPU build lacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        reference.install()
        import transformers

        yield transformers


Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def load(cache: Path, transformers: Any) -> Load:
    """Transformers' own model of that architecture, with every tensor of the checkpoint."""

    def load(name: str) -> Any:
        folder = resolve(name, cache_dir=cache).path
        config = transformers.AutoConfig.from_pretrained(folder)
        weights = load_file(f"{folder}/model.safetensors")
        if config.model_type == "qwen2":
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        else:
            kind = transformers.AutoModelForImageTextToText
            model = kind.from_config(config, dtype=torch.float32)
            weights = {_module_name(name): tensor for name, tensor in weights.items()}
        model.load_state_dict(weights, strict=True)
        return model.eval()

    return load


def _module_name(name: str) -> str:
    """The published checkpoint's name of a tensor -> the name of transformers' parameter."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


def _answer(model: Any, inputs: Any) -> list[int]:
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=STEPS, do_sample=False)
    return [int(token) for token in ids[0, inputs["input_ids"].shape[1] :]]


def _assert_lively(answers: list[list[int]]) -> None:
    """All differ, none repeats itself, none ends early or holds a special token."""
    assert len({tuple(answer) for answer in answers}) == len(answers)
    for answer in answers:
        assert len(answer) == STEPS
        assert len(set(answer)) > STEPS // 2
        assert min(answer) >= len(SPECIAL_TOKENS)


@pytest.mark.parametrize("name", [VL, TEXT, f"{TEXT},hidden=64,layers=1,vocab=1024,seed=3"])
def test_answers_depend_on_the_question(
    name: str, load: Load, cache: Path, transformers: Any
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve(name, cache_dir=cache).path)
    model = load(name)
    answers = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answers.append(_answer(model, inputs))
    _assert_lively(answers)


def test_answers_depend_on_the_picture(load: Load, cache: Path, transformers: Any) -> None:
    from PIL import Image

    processor = transformers.AutoProcessor.from_pretrained(resolve(VL, cache_dir=cache).path)
    model = load(VL)
    answers = []
    for box in ((10, 10, 50, 50), (60, 60, 100, 100), (10, 60, 50, 100)):
        picture = Image.new("RGB", (112, 112), "white")
        picture.paste("red", box)
        content = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        image_token = SPECIAL_TOKENS.index("<|image_pad|>")
        assert int((inputs["input_ids"] == image_token).sum()) == (112 // 28) ** 2
        answers.append(_answer(model, inputs))
    _assert_lively(answers)


def test_the_same_name_gives_the_same_bytes(tmp_path: Path) -> None:
    name = f"{VL},hidden=64,layers=1,vision_hidden=64,vision_layers=1,vocab=2048"
    folders = [Path(resolve(name, cache_dir=tmp_path / place).path) for place in ("a", "b")]
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    assert manifests[0] == manifests[1]
    other = Path(resolve(f"{name},seed=1", cache_dir=tmp_path / "a").path)
    changed = json.loads((other / "manifest.json").read_text())["files"]
    assert {k for k, v in manifests[0]["files"].items() if changed[k] != v} == {"model.safetensors"}


@pytest.mark.parametrize("vocab", [1024, 151936])
def test_a_tokenizer_of_any_size_reads_and_writes_every_text(
    vocab: int, tmp_path: Path, transformers: Any
) -> None:
    name = f"{TEXT},hidden=16,layers=1,vocab={vocab}"
    folder = resolve(name, cache_dir=tmp_path).path
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == len(tokenizer.get_vocab()) == vocab
    text = "Grüße, don't 12345 日本 🙂\n\n  x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("What is in the picture?")["input_ids"]) < 12
    words = [tokenizer.decode([number]) for number in range(704, vocab, 97)]
    assert all(word.startswith(" ") and word[1:].isalpha() for word in words)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(14))
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer("<|im_start|>")["input_ids"] == [1]


def test_sizes_are_as_asked(cache: Path) -> None:
    name = f"{VL},hidden=128,heads=4,kv_heads=1,layers=3,ffn=96,context=512,dtype=float32"
    folder = resolve(name, cache_dir=cache).path
    weights = load_file(f"{folder}/model.safetensors")
    assert weights["model.layers.2.self_attn.k_proj.weight"].shape == (32, 128)
    assert weights["model.layers.0.mlp.up_proj.weight"].shape == (96, 128)
    assert "model.layers.3.mlp.up_proj.weight" not in weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    config = json.loads(Path(folder, "config.json").read_text())
    assert config["max_position_embeddings"] == 512
    assert config["rope_scaling"]["mrope_section"] == [4, 6, 6]
    assert sum(config["rope_scaling"]["mrope_section"]) == 128 // 4 // 2
