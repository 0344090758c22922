"""Reads a model's config.json, whose keys have a different name in every family.

Files leave out what the family's configuration class would fill in. Only the few cases met in
published checkpoints are filled in here, and each one is told; anything else that is missing ends
in one message that names all missing keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_photon.errors import UsageError

FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
    "siglip_vision_model": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "patch_size": 16,
        "image_size": 224,
    },
    "smolvlm_vision": {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12},
    "idefics3_vision": {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12},
}
"""What transformers fills in where published files of these families are silent."""

NESTED_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""The class defaults that the LLaVA 1.5 family counts on; never used for a plain Llama file."""

TEXT_KEYS = ("text_config", "llm_config", "language_config")


class Keys:
    """A section of a config.json: looks keys up by any of their names and remembers the gaps.

    Args:
        section: the JSON object.
        defaults: what its family fills in.
    """

    def __init__(self, section: Mapping[str, Any], defaults: Mapping[str, Any] | None = None):
        self._section = section
        self._defaults = defaults or {}
        self.missing: list[str] = []
        self.assumed: dict[str, Any] = {}

    @property
    def family(self) -> str:
        """`model_type`, or an empty string."""
        return str(self._section.get("model_type", ""))

    def get(self, *names: str) -> Any:
        """The first of these keys that is present and not null, else the family's default."""
        for name in names:
            if self._section.get(name) is not None:
                return self._section[name]
        for name in names:
            if name in self._defaults:
                self.assumed[name] = self._defaults[name]
                return self._defaults[name]
        return None

    def size(self, *names: str) -> int:
        """A positive whole number that must be there; 0, and remembered, where it is not."""
        value = self.optional(*names)
        if value is None:
            self.missing.append(names[0])
        return value or 0

    def optional(self, *names: str) -> int | None:
        """A positive whole number, or None."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            return None
        return value


def load(path: Path) -> dict[str, Any]:
    """The configuration of a model, from its config.json or the folder that holds it.

    A `hf_quant_config.json` beside it (ModelOpt) stands in for a missing `quantization_config`.

    Raises:
        UsageError: there is no such file, or it is not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    data = _read_object(file)
    quantised = file.with_name("hf_quant_config.json")
    if "quantization_config" not in data and file.name == "config.json" and quantised.is_file():
        described = _read_object(quantised).get("quantization", {})
        data["quantization_config"] = {"quant_method": "modelopt", **described}
    return data


def text_section(data: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The language model's part of a configuration, and whether it was nested in a larger one."""
    outer = data.get("thinker_config")
    if isinstance(outer, Mapping):
        return text_section(outer)[0], True
    for key in TEXT_KEYS:
        if isinstance(data.get(key), Mapping):
            return dict(data[key]), True
    return dict(data), False


def text_defaults(section: Mapping[str, Any], nested: bool) -> Mapping[str, Any]:
    """What the family of a language model fills in; only nested sections are ever that short."""
    if not nested:
        return {}
    family = section.get("model_type")
    return NESTED_LLAMA if family == "llama" else FAMILY_DEFAULTS.get(str(family), {})


def _read_object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror})",
            "Give --config the config.json of a model, or the folder that holds it",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not JSON ({error})", "Give --config the config.json of a model"
        ) from error
    if not isinstance(data, dict):
        raise UsageError(f"{file} holds no JSON object", "Give --config the config.json of a model")
    return data
