"""The spelling of `demo:random`: shapes and sizes of models with random weights.

    demo:random                                     a tiny Qwen2.5-VL
    demo:random:qwen2                               a tiny text-only Qwen2
    demo:random:qwen2.5-vl,hidden=128,layers=2,vocab=151936,seed=1,dtype=float32

After the second colon come, in any order and separated by commas, at most one shape and any number
of `key=value`. Everything left out has a default, so the shortest name starts fastest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass

from sglang_photon.errors import UsageError

PREFIX = "demo:random"
SHAPES = ("qwen2.5-vl", "qwen2")
DTYPES = ("float32", "bfloat16", "float16")
HEAD_DIM = 64
MIN_VOCAB = 1024
"""The byte-level tokenizer and the special tokens fit into this many entries."""

_RECIPE = 1
"""Raised whenever the same name would give other files: it is a part of the cache key."""

_VISION_KEYS = ("vision_hidden", "vision_layers")


@dataclass(frozen=True)
class RandomSpec:
    """One random-weight model. Equal specs give equal files, byte for byte.

    Attributes:
        shape: `qwen2.5-vl` or `qwen2`.
        hidden: width of the text model. A multiple of `heads`.
        layers: depth of the text model.
        heads: attention heads; the head dimension `hidden / heads` is a multiple of 16, at most
            256. 0: as many as give heads of 64.
        kv_heads: key and value heads; divides `heads`. 0: half of `heads`, or all if it is odd.
        ffn: width of the MLP. 0: twice `hidden`.
        vocab: entries of the vocabulary, at least 1024.
        context: longest sequence, in tokens.
        vision_hidden: width of the vision tower, a multiple of 64 (heads of 64).
        vision_layers: depth of the vision tower; the last layer has full attention.
        seed: of the weights.
        dtype: of the stored weights and of serving. "auto": stored as bfloat16, served as float32
            where there is no GPU, so that near-ties do not depend on the make-up of a batch.
    """

    shape: str = SHAPES[0]
    hidden: int = 256
    layers: int = 2
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 4096
    context: int = 8192
    vision_hidden: int = 128
    vision_layers: int = 2
    seed: int = 0
    dtype: str = "auto"

    @property
    def is_vision(self) -> bool:
        """Whether it takes pictures."""
        return self.shape == "qwen2.5-vl"

    @property
    def stored_dtype(self) -> str:
        """Name of the torch dtype of the weight file."""
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def key(self) -> str:
        """Cache key: readable shape, and a digest of everything that decides the content."""
        content = {"recipe": _RECIPE, **dataclasses.asdict(self)}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"random-{self.shape}-{digest[:16]}"

    @property
    def name(self) -> str:
        """A spelling that states the shape and every size that is not its default."""
        default = RandomSpec(shape=self.shape)
        stated = dataclasses.asdict(_resolved(default))
        changed = [f"{k}={v}" for k, v in dataclasses.asdict(self).items() if stated[k] != v]
        return f"{PREFIX}:{','.join([self.shape, *changed])}"


def parse(name: str) -> RandomSpec:
    """Read a name that starts with `demo:random`; derived sizes are filled in.

    Raises:
        UsageError: unknown shape or key, a value that is no size, or sizes that do not fit.
    """
    given: dict[str, str] = {}
    items = name.removeprefix(PREFIX).removeprefix(":")
    for item in filter(None, (part.strip() for part in items.split(","))):
        key, equals, value = item.partition("=")
        key = key if equals else "shape"
        if key in given:
            raise UsageError(f"{name!r} gives {key} twice", "Keep one of them")
        given[key] = value if equals else item
    spec = _typed(name, given)
    if not spec.is_vision and (stray := [key for key in _VISION_KEYS if key in given]):
        raise UsageError(
            f"{name!r} gives {stray[0]}, but {spec.shape} has no vision tower",
            f"Leave it out, or ask for {PREFIX}:{SHAPES[0]}",
        )
    spec = _resolved(spec)
    _check_sizes(name, spec)
    return spec


def _typed(name: str, given: dict[str, str]) -> RandomSpec:
    types = {field.name: type(field.default) for field in dataclasses.fields(RandomSpec)}
    values: dict[str, int | str] = {}
    for key, text in given.items():
        if key not in types:
            known = ", ".join(key for key in types if key != "shape")
            raise UsageError(f"{name!r} has no key {key!r}", f"The keys are {known}")
        if types[key] is int:
            lowest = 0 if key == "seed" else 1
            if not re.fullmatch("[0-9]{1,9}", text) or int(text) < lowest:
                raise UsageError(
                    f"{key}={text!r} in {name!r} is not a size",
                    f"Give a whole number from {lowest}",
                )
            values[key] = int(text)
        else:
            values[key] = text
    for key, allowed in (("shape", SHAPES), ("dtype", DTYPES)):
        if key in values and values[key] not in allowed:
            raise UsageError(
                f"{name!r} has no {key} {values[key]!r}", f"Choose one of {', '.join(allowed)}"
            )
    return dataclasses.replace(RandomSpec(), **values)  # type: ignore[arg-type]


def _resolved(spec: RandomSpec) -> RandomSpec:
    heads = spec.heads or max(1, spec.hidden // HEAD_DIM)
    kv_heads = spec.kv_heads or (heads // 2 if heads % 2 == 0 else heads)
    return dataclasses.replace(
        spec, heads=heads, kv_heads=kv_heads, ffn=spec.ffn or 2 * spec.hidden
    )


def _check_sizes(name: str, spec: RandomSpec) -> None:
    head_dim = spec.hidden // spec.heads
    rules = (
        (spec.hidden % spec.heads == 0, f"heads={spec.heads} does not divide hidden={spec.hidden}"),
        (
            head_dim % 16 == 0 and head_dim <= 256,
            f"hidden/heads={head_dim} is not usable",
        ),
        (spec.heads % spec.kv_heads == 0, f"kv_heads={spec.kv_heads} does not divide {spec.heads}"),
        (spec.vocab >= MIN_VOCAB, f"vocab={spec.vocab} is less than {MIN_VOCAB}"),
        (spec.vision_hidden % HEAD_DIM == 0, f"vision_hidden={spec.vision_hidden} is not usable"),
    )
    for holds, problem in rules:
        if not holds:
            raise UsageError(
                f"{problem} in {name!r}",
                "Use a hidden size of 16 to 256 per head, kv_heads that divide heads, "
                f"a vision_hidden that is a multiple of {HEAD_DIM}, and a vocab from {MIN_VOCAB}",
            )
