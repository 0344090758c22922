"""In which number format weights and KV cache lie in memory, and products are computed.

Scales count: an AWQ weight in groups of 128 takes 4 + 20/128 bits (a 16-bit scale and a 4-bit zero
per group), an NVFP4 weight 4.5, an MXFP4 weight 4.25. What a checkpoint leaves unquantised (token
table, output projection, vision tower, listed modules) stays in the model's own format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_photon.errors import UsageError

_GROUP = 128


@dataclass(frozen=True, kw_only=True)
class Form:
    """A format of stored weights.

    Attributes:
        name: as on the command line.
        bits: per weight, with scales.
        compute: format the products are computed in, where the GPU can.
    """

    name: str
    bits: float
    compute: str

    @property
    def size(self) -> float:
        """Bytes per weight."""
        return self.bits / 8


FORMS = {
    form.name: form
    for form in (
        Form(name="bf16", bits=16, compute="bf16"),
        Form(name="fp16", bits=16, compute="bf16"),
        Form(name="fp8", bits=8, compute="fp8"),
        Form(name="int8", bits=8, compute="int8"),
        Form(name="int4", bits=4 + 20 / _GROUP, compute="bf16"),
        Form(name="mxfp4", bits=4 + 8 / 32, compute="mxfp8"),
        Form(name="nvfp4", bits=4 + 8 / 16, compute="fp4"),
    )
}
KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
            "fp4_e2m1": 4.5 / 8}  # fmt: skip
KV_NAMES = tuple(KV_BYTES)


@dataclass(frozen=True, kw_only=True)
class Formats:
    """The formats of a model's parts.

    Attributes:
        attention: projections of the attention.
        feed_forward: dense layers and shared experts.
        experts: routed experts.
        plain: token table, output projection, router, vision tower.
        kv: name of the format of the KV cache.
    """

    attention: Form
    feed_forward: Form
    experts: Form
    plain: Form
    kv: str

    @property
    def kv_size(self) -> float:
        """Bytes per cached number."""
        return KV_BYTES[self.kv]

    @property
    def main(self) -> Form:
        """The format of most weights: that of the feed-forward part."""
        return self.experts if self.experts != self.plain else self.feed_forward


def read_formats(
    data: Mapping[str, Any],
    section: Mapping[str, Any],
    *,
    dtype: str,
    layers: int,
    weights: str | None = None,
    kv: str | None = None,
) -> Formats:
    """The formats of a checkpoint, or those asked for.

    Args:
        data: the whole configuration.
        section: the language model's part of it.
        dtype: of weights that are not quantised.
        layers: how many the decoder has.
        weights: format of every layer's weights, in place of what the checkpoint says.
        kv: format of the KV cache, in place of what the checkpoint says.

    Raises:
        UsageError: the checkpoint's quantisation is not known here.
    """
    plain = FORMS[dtype]
    config = data.get("quantization_config") or section.get("quantization_config")
    config = config if isinstance(config, Mapping) else {}
    kv = kv or _kv_of(config) or dtype
    if weights is not None or not config:
        form = FORMS[weights] if weights else plain
        return Formats(attention=form, feed_forward=form, experts=form, plain=plain, kv=kv)
    form = _form_of(config)
    left_out = tuple(_left_out(config))

    def of(*words: str) -> Form:
        return plain if any(_covers(left_out, word, layers) for word in words) else form

    dense = plain if config.get("quant_method") == "mxfp4" else of("mlp", "shared_expert")
    return Formats(
        attention=of("self_attn", "attn"),
        feed_forward=dense,
        experts=of("experts"),
        plain=plain,
        kv=kv,
    )


def _form_of(config: Mapping[str, Any]) -> Form:
    method = str(config.get("quant_method", "")).lower().replace("-", "_")
    bits = config.get("bits")
    if method in ("compressed_tensors", "quark"):
        return _of_groups(config)
    if method.startswith("modelopt") or config.get("quant_algo"):
        algorithm = str(config.get("quant_algo", "")).upper()
        if "MIXED" not in algorithm:
            method = "nvfp4" if "FP4" in algorithm else "fp8" if "FP8" in algorithm else method
    if method in ("fp8", "fbgemm_fp8", "w8a8_fp8"):
        return FORMS["fp8"]
    if method in ("w8a8_int8", "blockwise_int8"):
        return FORMS["int8"]
    if method in ("mxfp4", "nvfp4", "modelopt_fp4", "petit_nvfp4"):
        return FORMS["mxfp4" if method == "mxfp4" else "nvfp4"]
    if method in ("awq", "gptq", "auto_round", "awq_marlin", "gptq_marlin") and bits:
        return _weight_only(int(bits), config.get("group_size"))
    if method == "bitsandbytes":
        return _weight_only(4, 64) if config.get("load_in_4bit") else FORMS["int8"]
    raise _unknown(method or "without quant_method")


def _of_groups(config: Mapping[str, Any]) -> Form:
    """compressed-tensors: one group of formats for all layers."""
    groups = config.get("config_groups") or {}
    found = {_of_group(group) for group in groups.values()}
    if len(found) != 1:
        raise _unknown(f"{config.get('quant_method')} with {len(found)} different formats")
    return found.pop()


def _of_group(group: Mapping[str, Any]) -> Form:
    weights = group.get("weights") or {}
    bits, size = weights.get("num_bits"), weights.get("group_size")
    whole = bool(group.get("input_activations"))
    if bits == 8:
        name = "fp8" if weights.get("type") == "float" else "int8"
        return FORMS[name] if whole else _weight_only(8, size)
    if bits == 4 and weights.get("type") == "float":
        form = FORMS["mxfp4" if size == 32 else "nvfp4"]
        return form if whole else Form(name=form.name, bits=form.bits, compute="bf16")
    if bits == 4 and not whole:
        return _weight_only(4, size)
    raise _unknown(f"compressed-tensors with {bits}-bit {weights.get('type')} weights")


def _weight_only(bits: int, group: Any) -> Form:
    """Weights that are widened before the product: a 16-bit scale and a zero per group."""
    per_group = (16 + bits) / group if isinstance(group, int) and group > 0 else 0.0
    return Form(name=f"int{bits}", bits=bits + per_group, compute="bf16")


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"The quantisation of this checkpoint is not known here ({what})",
        f"Say what its weights are stored in: --weight-dtype {{{','.join(FORMS)}}}",
    )


def _kv_of(config: Mapping[str, Any]) -> str | None:
    """The KV format a checkpoint asks for."""
    scheme = config.get("kv_cache_scheme")
    if str(config.get("kv_cache_quant_algo") or "").upper() == "FP8":
        return "fp8"
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8"
    return None


def _left_out(config: Mapping[str, Any]) -> Iterable[str]:
    """Patterns of modules that stay unquantised, under each method's own key."""
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude"):
        yield from (str(pattern) for pattern in config.get(key) or ())


def _covers(patterns: Iterable[str], word: str, layers: int) -> bool:
    """Whether patterns leave out `word` in at least half of the decoder's layers."""
    numbers = set()
    for pattern in patterns:
        if re.search(r"vis(ion|ual)|lm_head|gate$|router", pattern):
            continue
        # A whole module by that name, not one inside another: "mlp" is not "mlp.experts".
        if not re.search(rf"\b{word}s?(\b(?!\.(gate|shared|experts))|[*$])", pattern):
            continue
        number = re.search(r"layers\\?\.(\d+)\\?\.", pattern)
        if number is None:
            return True
        numbers.add(number.group(1))
    return len(numbers) * 2 >= layers
