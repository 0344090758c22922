"""The demo model: its configuration, and a batched forward for training.

Training runs the modules of transformers' ``Qwen2_5_VLForConditionalGeneration`` itself; only the
vision tower's loop over pictures is replaced by one batched pass, which is several times faster
on a CPU. Small heads on the image tokens (the colour and the shape in this cell, its column and
row) teach the tower to see; they are thrown away with this module's wrapper.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    apply_rotary_pos_emb_vision,
    get_vision_position_ids,
)

from sglang_photon.reference.models.pictures import COLOURS, GRID, SHAPES
from tools.demo_vlm.tokens import VOCABULARY

TRAITS = (1 + len(COLOURS), 1 + len(SHAPES), GRID, GRID)
"""Classes of the auxiliary heads: colour and shape (0: nothing), column and row of the cell."""
MERGE = 2


def make_config(token_id: dict[str, int]) -> Qwen2_5_VLConfig:
    """Two million parameters; ``token_id`` is the vocabulary."""
    return Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        tie_word_embeddings=True,
        image_token_id=token_id["<|image_pad|>"],
        video_token_id=token_id["<|video_pad|>"],
        vision_start_token_id=token_id["<|vision_start|>"],
        vision_end_token_id=token_id["<|vision_end|>"],
        bos_token_id=token_id["<|endoftext|>"],
        eos_token_id=token_id["<|im_end|>"],
        pad_token_id=token_id["<|endoftext|>"],
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.05,
            "tie_word_embeddings": True,
            "bos_token_id": token_id["<|endoftext|>"],
            "eos_token_id": token_id["<|im_end|>"],
            "pad_token_id": token_id["<|endoftext|>"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
            },
        },
        vision_config={
            "depth": 4,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 4,
            "patch_size": 14,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1, 2, 3],
            "out_hidden_size": 128,
            "initializer_range": 0.05,
        },
    )


class Trainee(nn.Module):
    """The model with the auxiliary heads, for pictures of one common patch grid."""

    def __init__(self, config: Qwen2_5_VLConfig, *, grid: tuple[int, int]) -> None:
        super().__init__()
        self.model = Qwen2_5_VLForConditionalGeneration(config)
        width = config.vision_config.out_hidden_size
        self.heads = nn.Linear(width, sum(TRAITS))
        visual = config.vision_config
        positions = get_vision_position_ids(torch.tensor([[1, *grid]]), MERGE)
        side = visual.window_size // visual.patch_size
        window = (positions[:, 0] // side) * 1000 + positions[:, 1] // side
        self.positions = positions
        self.same_window: torch.Tensor = window[:, None] == window[None, :]

    def see(self, patches: torch.Tensor) -> torch.Tensor:
        """``patches`` [pictures, patches, 1176] to image tokens [pictures, tokens, hidden].

        The patches of a token are neighbours already, so windows need no reordering here: a mask
        does the same.
        """
        visual = self.model.model.visual
        weight = visual.patch_embed.proj.weight
        x = functional.linear(patches, weight.reshape(weight.shape[0], -1))
        cos, sin = visual.rotary_pos_emb(x, self.positions)
        count, length, width = x.shape
        for index, block in enumerate(visual.blocks):
            attention = block.attn
            q, k, v = (
                attention.qkv(block.norm1(x))
                .view(count * length, 3, attention.num_heads, -1)
                .unbind(1)
            )
            repeat = (count, 1)
            q, k = apply_rotary_pos_emb_vision(q, k, cos.repeat(repeat), sin.repeat(repeat))
            q, k, v = (
                part.view(count, length, attention.num_heads, -1).transpose(1, 2)
                for part in (q, k, v)
            )
            everywhere = index in visual.fullatt_block_indexes
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=None if everywhere else self.same_window
            )
            x = x + attention.proj(mixed.transpose(1, 2).reshape(count, length, width))
            x = x + block.mlp(block.norm2(x))
        tokens: torch.Tensor = visual.merger(x.reshape(-1, width))
        return tokens.view(count, length // MERGE**2, -1)

    def codes(self, words: list[int]) -> list[torch.Tensor]:
        """What an image token should be: a vector per class of each trait, to be summed.

        Colour and shape are four times the embeddings of their words (``words``: token ids of the
        colours, then of the shapes), so that naming what is seen is copying; nothing is zero.
        Column and row are random vectors of the same length. Four times, because beside vectors as
        short as an embedding the tower's own noise is large.
        """
        embedding = 4 * self.model.model.language_model.embed_tokens.weight.detach()
        named = embedding[words]
        nothing = torch.zeros_like(named[:1])
        colours, shapes = named.split([len(COLOURS), len(SHAPES)])
        places = torch.randn(2 * GRID, named.shape[1]) * named.std()
        return [
            torch.cat([nothing, colours]),
            torch.cat([nothing, shapes]),
            *places.split(GRID),
        ]

    def traits(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits per trait [pictures x tokens, classes] of image tokens [pictures, tokens, hidden].

        One head per trait rather than one for all their combinations: the tower then writes colour
        and shape independently of each other, and unseen combinations come for free.
        """
        logits: torch.Tensor = self.heads(tokens)
        return torch.split(logits.flatten(0, 1), list(TRAITS), dim=-1)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states [rows, length, hidden].

        ``ids`` [rows, length] int64, padded on the right (causal attention never looks there);
        ``positions`` [3, rows, length]; ``tokens`` [pictures, tokens, hidden] in the order of
        their places in ``ids``.
        """
        core = self.model.model
        embeds = core.language_model.embed_tokens(ids)
        here = (ids == self.model.config.image_token_id).unsqueeze(-1).expand_as(embeds)
        embeds = embeds.masked_scatter(here, tokens)
        hidden: torch.Tensor = core.language_model(
            inputs_embeds=embeds, position_ids=positions, use_cache=False
        ).last_hidden_state
        return hidden
