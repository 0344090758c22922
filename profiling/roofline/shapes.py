"""What a decoder is made of, as far as bytes and operations go.

Norms, biases and position tables of the language model are left out: together they stay below a
thousandth of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of one layer.

    Attributes:
        params: weights of its projections.
        kv_values: numbers cached per token.
        decode_flop: FLOP per row and cached token of a decode step.
        prefill_flop: FLOP per pair of query and key of a prefill.
        window: tokens it looks back at most; None: all.
        selected: it attends to this many tokens that an indexer picks; None: to all.
        index_bytes: bytes per cached token that the indexer reads.
        index_flop: FLOP of the indexer per pair of query and key.
    """

    params: int
    kv_values: int
    decode_flop: int
    prefill_flop: int
    window: int | None = None
    selected: int | None = None
    index_bytes: int = 0
    index_flop: int = 0

    def reach(self, context: int) -> int:
        """How many of `context` cached tokens a new token attends to."""
        return min(context, self.window or context, self.selected or context)

    def pairs(self, tokens: int) -> float:
        """Pairs of query and key in a causal prefill of `tokens` tokens."""
        limit = self.reach(tokens)
        return limit * (limit + 1) / 2 + (tokens - limit) * limit


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The feed-forward part of one layer.

    Attributes:
        params: weights that every token uses (dense, shared experts, router).
        expert_params: weights of one routed expert.
        experts: routed experts, 0 in a dense layer.
        top_k: routed experts per token.
    """

    params: int
    expert_params: int = 0
    experts: int = 0
    top_k: int = 0

    def expected_experts(self, tokens: int) -> float:
        """Routed experts that at least one of `tokens` tokens uses, under even random routing."""
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** tokens)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer."""

    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, kw_only=True)
class Vision:
    """A vision tower and its projector.

    Attributes:
        params: weights.
        patches_per_token: patches that one image token of the prompt stands for.
    """

    params: int
    patches_per_token: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A language model, with its vision tower where it has one.

    Attributes:
        family: `model_type` of the language model.
        layers: from first to last.
        table: weights of the token embedding.
        tied: the output projection uses that same table.
        vision: None for a text model.
        dtype: of weights that are not quantised, as SGLang loads them.
        notes: what was assumed while reading the file.
    """

    family: str
    layers: tuple[Layer, ...]
    table: int
    tied: bool
    vision: Vision | None = None
    dtype: str = "bf16"
    notes: tuple[str, ...] = field(default=())

    @property
    def head(self) -> int:
        """Weights of the output projection that are its own."""
        return 0 if self.tied else self.table

    @property
    def text_params(self) -> int:
        """All weights of the language model."""
        own = sum(
            layer.attention.params
            + layer.feed_forward.params
            + layer.feed_forward.expert_params * layer.feed_forward.experts
            for layer in self.layers
        )
        return own + self.table + self.head

    @property
    def active_params(self) -> int:
        """Weights of the language model that one token uses (with the embedding table)."""
        idle = sum(
            layer.feed_forward.expert_params
            * (layer.feed_forward.experts - layer.feed_forward.top_k)
            for layer in self.layers
        )
        return self.text_params - idle

    @property
    def params(self) -> int:
        """All weights, with the vision tower."""
        return self.text_params + (self.vision.params if self.vision else 0)
