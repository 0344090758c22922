"""A model whose next token is a hash of everything that a forward reads.

The layers of a real model are replaced by arithmetic on whole numbers: a position's *digest* mixes
its token, its position, and the digest found in the KV slot of the position before, which is looked
up through `req_to_token` as attention would, and the digest is written to `out_cache_loc`. The
digest chooses a row of a table of -1, 0 and 1 as the hidden state; head, sampler, masks, biases,
penalties and logprobs are the real ones.

A stale token, a wrong row, a KV slot that was given away too early or a mask of another row each
change what comes out, at once and for the rest of the sequence. Nothing is rounded, so the make-up
of a batch changes nothing: two loops are compared for equality.
"""

from __future__ import annotations

from typing import Any

import torch

TABLE_ROWS = 4093
_A, _B, _C = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D, 0x14057B7EF767814F
_MASK = (1 << 62) - 1


class HashBody:
    """Stands where a causal language model keeps its layers.

    Args:
        runner: the model runner whose model gets this body.
    """

    def __init__(self, runner: Any) -> None:
        self._req_to_token = runner.req_to_token_pool.req_to_token
        pages = runner.token_to_kv_pool.size + runner.token_to_kv_pool.page_size
        self._digests = torch.zeros(pages + 1, dtype=torch.int64)
        generator = torch.Generator().manual_seed(7)
        width = runner.model.config.hidden_size
        self._table = torch.randint(-1, 2, (TABLE_ROWS, width), generator=generator).float()

    @classmethod
    def install(cls, runner: Any) -> HashBody:
        """Give a runner's model this body, and a head whose products are exact in float32."""
        body = cls(runner)
        runner.model.model.forward = body.forward
        if hasattr(runner.model, "get_image_feature"):
            runner.model.get_image_feature = body.image_features
        head = runner.model.lm_head.weight
        head.data = (head.data * 2**10).round().clamp(-(2**10), 2**10) / 2**10
        return body

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,  # noqa: ARG002 - derived from the lengths, M-RoPE or not
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,  # noqa: ARG002 - upstream's
    ) -> torch.Tensor:
        """Hidden states, (tokens, hidden), of a prefill, a decode or a mixed batch."""
        tokens = _identities(input_ids, input_embeds)
        if forward_batch.forward_mode.is_decode():
            digests = self._decode(tokens, forward_batch)
        else:
            digests = self._extend(tokens, forward_batch)
        self._digests[forward_batch.out_cache_loc] = digests
        return self._table[digests % TABLE_ROWS]

    def image_features(self, items: list[Any]) -> torch.Tensor:
        """Embeddings of pictures, (tokens, hidden): of each token's patches, exact in any batch."""
        found = []
        for item in items:
            patches = (item.feature.float() * 2**12).round().long()
            tokens = sum(end + 1 - start for start, end in item.offsets)
            digests = patches.reshape(tokens, -1).sum(dim=-1)
            found.append(self._table[digests % TABLE_ROWS])
        return torch.cat(found)

    def _decode(self, tokens: torch.Tensor, batch: Any) -> torch.Tensor:
        last = batch.seq_lens - 1
        before = self._req_to_token[batch.req_pool_indices, (last - 1).clamp(min=0)]
        digests = torch.where(last > 0, self._digests[before.long()], 0)
        return _mix(digests, tokens, last)

    def _extend(self, tokens: torch.Tensor, batch: Any) -> torch.Tensor:
        digests = []
        values = tokens.tolist()
        rows = batch.req_pool_indices.tolist()
        prefixes = batch.extend_prefix_lens_cpu
        for row, prefix, length in zip(rows, prefixes, batch.extend_seq_lens_cpu, strict=True):
            digest = int(self._digests[self._req_to_token[row, prefix - 1]]) if prefix else 0
            for position in range(prefix, prefix + length):
                digest = _mix(digest, values[len(digests)], position)
                digests.append(digest)
        return torch.tensor(digests, dtype=torch.int64)


def _identities(ids: torch.Tensor | None, embeds: torch.Tensor | None) -> torch.Tensor:
    """One whole number per token; of an embedding, from its bits."""
    if embeds is None:
        assert ids is not None
        return ids.long()
    return embeds.float().contiguous().view(torch.int32).long().sum(dim=-1)


def _mix(digest: Any, token: Any, position: Any) -> Any:
    """The same for tensors, whose products wrap around at 64 bits, and for Python's integers."""
    mixed = (digest * _A + (token + 1) * _B + (position + 1) * _C) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * _B) & _MASK
    return mixed ^ (mixed >> 32)
