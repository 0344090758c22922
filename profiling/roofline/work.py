"""Bytes to move and operations to do, of one decode step and of one prefill.

Two counts of each. `usual` is what everybody quotes: all weights once, two operations per weight
and token, experts as even random routing would choose them. `least` is what no step can go below:
the token table is looked up by row, not read; all rows may pick the same experts; a prefill needs
the output projection for its last token only. A floor is stated with the usual count; a
measurement is called impossible only when it beats the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_photon.profiling.roofline.formats import Formats
from sglang_photon.profiling.roofline.shapes import ModelShape

Flop = Mapping[str, float]
"""FLOP by the format they are computed in."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one step has to do.

    Attributes:
        weight_bytes: bytes of weights read.
        kv_bytes: bytes of KV cache read (decode) or written (prefill).
        flop: by compute format.
        least_bytes: bytes that no such step can avoid.
        least_flop: FLOP that no such step can avoid.
    """

    weight_bytes: float
    kv_bytes: float
    flop: Flop
    least_bytes: float
    least_flop: Flop

    @property
    def bytes(self) -> float:
        """Bytes moved."""
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return sum(self.flop.values()) / self.bytes


def decode_work(model: ModelShape, formats: Formats, *, batch: int, context: int) -> Work:
    """One decode step of `batch` rows with `context` cached tokens each."""
    rows = float(batch)
    kv = kv_bytes(model, formats, context) * rows
    weights = _weight_bytes(model, formats, tokens=batch)
    attention = sum(
        layer.attention.decode_flop * layer.attention.reach(context)
        + layer.attention.index_flop * context
        for layer in model.layers
    )
    own = _layer_flop(model, formats)
    outside = formats.plain.compute
    least = _total(own, {outside: 2.0 * model.table}, {"bf16": attention}, times=rows)
    # Two operations per weight, the token table among them, though it is only looked up.
    usual = _total(least, {outside: 2.0 * model.head * rows})
    return Work(
        weight_bytes=weights,
        kv_bytes=kv,
        flop=usual,
        least_bytes=_least_weight_bytes(model, formats) + kv,
        least_flop=least,
    )


def prefill_work(
    model: ModelShape, formats: Formats, *, tokens: int, image_tokens: int = 0
) -> Work:
    """One prefill of `tokens` tokens, nothing cached before; `image_tokens` of them from images."""
    length = float(tokens)
    own = _layer_flop(model, formats)
    outside = formats.plain.compute
    attention = sum(
        layer.attention.prefill_flop * layer.attention.pairs(tokens)
        + layer.attention.index_flop * length * (length + 1) / 2
        for layer in model.layers
    )
    patches = image_tokens * model.vision.patches_per_token if model.vision else 0
    tower = {outside: 2.0 * model.vision.params * patches} if model.vision and patches else {}
    exact = _total(
        _total(own, times=length), {outside: 2.0 * model.table}, {"bf16": attention}, tower
    )
    rule = _total(_total(own, {outside: 2.0 * (model.table + model.head)}, times=length), tower)
    written = kv_bytes(model, formats, tokens, everything=True)
    return Work(
        weight_bytes=_weight_bytes(model, formats, tokens=tokens),
        kv_bytes=written,
        flop=max(rule, exact, key=lambda flop: sum(flop.values())),
        least_bytes=_least_weight_bytes(model, formats) + written,
        least_flop=exact,
    )


def kv_bytes(
    model: ModelShape, formats: Formats, context: int, *, everything: bool = False
) -> float:
    """Bytes of KV cache of one row that a decode step reads; or all that it occupies.

    A sliding window bounds both; an indexer bounds what is read, not what is kept.
    """
    total = 0.0
    for layer in model.layers:
        attention = layer.attention
        kept = min(context, attention.window or context)
        read = kept if everything else attention.reach(context)
        total += read * attention.kv_values * formats.kv_size + kept * attention.index_bytes
    return total


def stored_bytes(model: ModelShape, formats: Formats) -> float:
    """Bytes of device memory that the weights occupy, with the vision tower."""
    vision = model.vision.params if model.vision else 0
    every = _layer_bytes(model, formats, tokens=None)
    return every + (model.table + model.head + vision) * formats.plain.size


def _weight_bytes(model: ModelShape, formats: Formats, *, tokens: int) -> float:
    """Bytes of weights that a step with `tokens` tokens reads, by the usual count."""
    return _layer_bytes(model, formats, tokens=tokens) + (
        (model.table + model.head) * formats.plain.size
    )


def _least_weight_bytes(model: ModelShape, formats: Formats) -> float:
    """Bytes of weights that any step reads: one token's experts, no token table."""
    return _layer_bytes(model, formats, tokens=1) + model.table * formats.plain.size


def _layer_bytes(model: ModelShape, formats: Formats, *, tokens: int | None) -> float:
    """Bytes of the layers' weights that `tokens` tokens use; None: all of them."""
    total = 0.0
    for layer in model.layers:
        part = layer.feed_forward
        used = part.experts if tokens is None else part.expected_experts(tokens)
        total += (
            layer.attention.params * formats.attention.size
            + part.params * formats.feed_forward.size
            + part.expert_params * used * formats.experts.size
        )
    return total


def _layer_flop(model: ModelShape, formats: Formats) -> Flop:
    """FLOP of all layers' products with weights, for one token."""
    total: Counter[str] = Counter()
    for layer in model.layers:
        part = layer.feed_forward
        total[formats.attention.compute] += 2 * layer.attention.params
        total[formats.feed_forward.compute] += 2 * part.params
        total[formats.experts.compute] += 2 * part.expert_params * part.top_k
    return {form: float(flop) for form, flop in total.items()}


def _total(*parts: Flop, times: float = 1.0) -> Flop:
    """The sum of several counts, times a factor."""
    total: dict[str, float] = {}
    for part in parts:
        for form, flop in part.items():
            total[form] = total.get(form, 0.0) + flop * times
    return total
