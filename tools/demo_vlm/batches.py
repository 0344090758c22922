"""Conversations as tensors: token ids, M-RoPE positions, labels, picture patches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer

from sglang_photon.reference.models.pictures import (
    COLOURS,
    GRID,
    NATIVE_SIZE,
    SHAPES,
    Scene,
    render,
)
from tools.demo_vlm.chats import Chat, random_chat
from tools.demo_vlm.model import MERGE

PATCH = 14
PATCHES = NATIVE_SIZE // PATCH
CHANNELS = 3 * 2 * PATCH * PATCH
"""Values of a patch: colours, frames (a picture counts twice), rows, columns."""
IGNORE = -100
_BATCHES_SORTED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Tensors of one training step; R rows of length L, P pictures of 16 image tokens."""

    ids: torch.Tensor
    """[R, L] int64, padded on the right."""
    labels: torch.Tensor
    """[R, L] int64: the next token where it belongs to an answer, else ``IGNORE``."""
    positions: torch.Tensor
    """[3, R, L] int64: time, height, width."""
    patches: torch.Tensor
    """[P, 64, 1176] float32."""
    kinds: torch.Tensor
    """[P, 16] int64: what each image token's cell holds."""


def patchify(picture: Image.Image) -> np.ndarray:
    """[64, 1176] float32: the layout of the Qwen2-VL image processor for 112 x 112 pixels."""
    pixels = np.asarray(picture, dtype=np.float32) / 127.5 - 1.0
    half = PATCHES // MERGE
    blocks = pixels.reshape(half, MERGE, PATCH, half, MERGE, PATCH, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    frames = np.broadcast_to(blocks, (*blocks.shape[:5], 2, PATCH, PATCH))
    return frames.reshape(PATCHES * PATCHES, -1)


def photograph(rng: np.random.Generator, scene: Scene) -> Image.Image:
    """A drawing of random size and smoothness, resized as the image processor does."""
    size = NATIVE_SIZE if rng.random() < 0.3 else int(rng.integers(72, 420))
    drawing = render(scene, size=size, rng=rng, smoothing=int(rng.integers(1, 4)))
    return drawing.resize((NATIVE_SIZE, NATIVE_SIZE), Image.Resampling.BICUBIC)


def scene_kinds(scene: Scene) -> list[int]:
    """Per cell, in reading order: 0, or 1 + the number of the pair of shape and colour."""
    kinds = [0] * (GRID * GRID)
    for shape in scene:
        pair = SHAPES.index(shape.shape) * len(COLOURS) + list(COLOURS).index(shape.colour)
        kinds[shape.row * GRID + shape.column] = 1 + pair
    return kinds


class Encoder:
    """Turns chats into token ids, the way the chat template and the processor would."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}
        tokens = (PATCHES // MERGE) ** 2
        self._image = f"<|vision_start|>{'<|image_pad|>' * tokens}<|vision_end|>"
        self.image_id = tokenizer.token_to_id("<|image_pad|>")

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text between special tokens, or of special tokens."""
        if text not in self._cache:
            self._cache[text] = self._tokenizer.encode(text).ids
        return self._cache[text]

    def encode(self, chat: Chat) -> tuple[list[int], list[int]]:
        """Ids, and labels shifted to the position that predicts them."""
        ids: list[int] = []
        wanted: list[int] = []

        def add(text: str, *, learn: bool = False) -> None:
            tokens = self.tokens(text)
            ids.extend(tokens)
            wanted.extend(tokens if learn else [IGNORE] * len(tokens))

        add(f"<|im_start|>system\n{chat.system}<|im_end|>\n")
        for turn in chat.turns:
            add("<|im_start|>user\n")
            images = self._image * len(turn.scenes)
            for part in (images, turn.text) if turn.pictures_first else (turn.text, images):
                add(part)
            add("<|im_end|>\n<|im_start|>assistant\n")
            add(f"{turn.answer}<|im_end|>", learn=True)
            add("\n")
        return ids, [*wanted[1:], IGNORE]

    def positions(self, ids: list[int]) -> np.ndarray:
        """[3, length] int64 M-RoPE positions: an image token counts its row and column."""
        side = PATCHES // MERGE
        result = np.zeros((3, len(ids)), dtype=np.int64)
        index, position = 0, 0
        while index < len(ids):
            if ids[index] != self.image_id:
                result[:, index] = position
                index, position = index + 1, position + 1
                continue
            block = slice(index, index + side * side)
            result[:, block] = position
            result[1, block] += np.repeat(np.arange(side), side)
            result[2, block] += np.tile(np.arange(side), side)
            index, position = index + side * side, position + side
        return result

    def batches(self, rng: np.random.Generator, rows: int) -> Iterator[Batch]:
        """Endless batches of ``rows`` random chats of similar length, which saves padding."""
        while True:
            chats = [random_chat(rng) for _ in range(rows * _BATCHES_SORTED)]
            encoded = sorted(
                ((*self.encode(chat), chat) for chat in chats), key=lambda entry: len(entry[0])
            )
            for index in rng.permutation(_BATCHES_SORTED):
                yield self._batch(rng, encoded[index * rows : (index + 1) * rows])

    def _batch(
        self, rng: np.random.Generator, encoded: Sequence[tuple[list[int], list[int], Chat]]
    ) -> Batch:
        rows, length = len(encoded), max(len(ids) for ids, _, _ in encoded)
        ids = np.zeros((rows, length), dtype=np.int64)
        labels = np.full((rows, length), IGNORE, dtype=np.int64)
        positions = np.zeros((3, rows, length), dtype=np.int64)
        for row, (tokens, wanted, _) in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            labels[row, : len(tokens)] = wanted
            positions[:, row, : len(tokens)] = self.positions(tokens)
        scenes = [scene for *_, chat in encoded for turn in chat.turns for scene in turn.scenes]
        patches = np.zeros((len(scenes), PATCHES * PATCHES, CHANNELS), dtype=np.float32)
        for index, scene in enumerate(scenes):
            patches[index] = patchify(photograph(rng, scene))
        kinds = np.array([scene_kinds(scene) for scene in scenes]).reshape(-1, GRID * GRID)
        return Batch(
            ids=torch.from_numpy(ids),
            labels=torch.from_numpy(labels),
            positions=torch.from_numpy(positions),
            patches=torch.from_numpy(patches),
            kinds=torch.from_numpy(kinds).long(),
        )
