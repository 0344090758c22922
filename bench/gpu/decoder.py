"""A decoder of Qwen2.5-VL-3B's shape with random weights, and nothing of SGLang.

One step reads its tokens from the device, writes the next ones there, and moves its positions on,
all in place: on CUDA a step of each batch size is a graph, so launching it costs the host one call.
The key-value cache is static, one row for each place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder with grouped-query attention and a gated MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


QWEN25_VL_3B = Shape(layers=36, hidden=2048, heads=16, kv_heads=2, intermediate=11008, vocab=151936)
"""The text model of Qwen/Qwen2.5-VL-3B-Instruct, by its published config."""

TINY = Shape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=128, vocab=512)


@dataclass(frozen=True, kw_only=True)
class _Layer:
    before: Tensor
    qkv: Tensor
    out: Tensor
    after: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor


class Decoder:
    """The model, its cache, and its graphs.

    Args:
        shape: sizes.
        device: `cuda` or `cpu`.
        rows: of the largest batch.
        context: tokens that a row's cache holds; positions stay below it.

    Attributes:
        tokens: (rows,) int64 on the device: what the next step reads, what the last one wrote.
    """

    def __init__(self, *, shape: Shape, device: str, rows: int, context: int) -> None:
        self._shape = shape
        self._device = device
        self._context = context
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._random = torch.Generator(device).manual_seed(1)
        s = shape
        self._embedding = self._weight(s.vocab, s.hidden)
        self._layers = [self._layer(rows) for _ in range(s.layers)]
        self._norm = torch.ones(s.hidden, dtype=self._dtype, device=device)
        half = torch.arange(0, s.head, 2, device=device) / s.head
        self._frequencies = (1e6**-half).float()
        self._places = torch.arange(rows, device=device)
        self._window = torch.arange(context, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._pool: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that a step reads."""
        own = (
            t for layer in self._layers for t in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )
        return int(self._embedding.nbytes) + sum(int(tensor.nbytes) for tensor in own)

    def reset(self, *, prompt: int) -> None:
        """Every row at the same place with its own token."""
        self.tokens.copy_(self._places % self._shape.vocab)
        self._positions.fill_(prompt)

    @torch.no_grad()
    def forward_for(self, batch: int) -> Callable[[], None]:
        """What runs one step of a batch: a graph's replay on CUDA, the step itself elsewhere."""
        if self._device != "cuda":
            return lambda: self._step(batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(batch)
        self._pool = graph.pool()
        return graph.replay

    def _weight(self, *size: int) -> Tensor:
        weight = torch.empty(*size, dtype=self._dtype, device=self._device)
        return weight.normal_(0, 0.02, generator=self._random)

    def _layer(self, rows: int) -> _Layer:
        s = self._shape
        ones = torch.ones(s.hidden, dtype=self._dtype, device=self._device)
        cache = (rows, s.kv_heads, self._context, s.head)
        return _Layer(
            before=ones,
            qkv=self._weight((s.heads + 2 * s.kv_heads) * s.head, s.hidden),
            out=self._weight(s.hidden, s.hidden),
            after=ones,
            gate_up=self._weight(2 * s.intermediate, s.hidden),
            down=self._weight(s.hidden, s.intermediate),
            keys=torch.zeros(cache, dtype=self._dtype, device=self._device),
            values=torch.zeros(cache, dtype=self._dtype, device=self._device),
        )

    @torch.no_grad()
    def _step(self, batch: int) -> None:
        tokens, positions = self.tokens[:batch], self._positions[:batch]
        angles = positions[:, None].float() * self._frequencies
        turn = angles.cos().to(self._dtype)[:, None], angles.sin().to(self._dtype)[:, None]
        hidden = functional.embedding(tokens, self._embedding)
        seen = (self._window <= positions[:, None])[:, None, None]
        for layer in self._layers:
            hidden = hidden + self._attend(
                layer, self._normalised(hidden, layer.before), turn, seen
            )
            gate, up = functional.linear(
                self._normalised(hidden, layer.after), layer.gate_up
            ).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        logits = functional.linear(self._normalised(hidden, self._norm), self._embedding)
        tokens.copy_(logits.argmax(dim=-1))
        positions.add_(1).clamp_(max=self._context - 1)

    def _normalised(self, hidden: Tensor, gain: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self._shape.hidden,), gain, 1e-6)

    def _attend(
        self, layer: _Layer, hidden: Tensor, turn: tuple[Tensor, Tensor], seen: Tensor
    ) -> Tensor:
        s, batch = self._shape, hidden.shape[0]
        heads = functional.linear(hidden, layer.qkv).view(batch, -1, s.head)
        turned = _rotate(heads[:, : s.heads + s.kv_heads], *turn)
        places, positions = self._places[:batch], self._positions[:batch]
        layer.keys[places, :, positions] = turned[:, s.heads :]
        layer.values[places, :, positions] = heads[:, s.heads + s.kv_heads :]
        query = turned[:, : s.heads].reshape(batch, s.kv_heads, -1, s.head)
        scores = query @ layer.keys[:batch].transpose(-1, -2) * s.head**-0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        mixed = (weights @ layer.values[:batch]).reshape(batch, -1)
        return functional.linear(mixed, layer.out)


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
