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
from tools.demo_vlm.chats import Chat, Mix, random_chat
from tools.demo_vlm.model import MERGE

PATCH = 14
PATCHES = NATIVE_SIZE // PATCH
CHANNELS = 3 * 2 * PATCH * PATCH
"""Values of a patch: colours, frames (a picture counts twice), rows, columns."""
IGNORE = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Conversations of one training step; R rows of length L with P pictures in all."""

    ids: torch.Tensor
    """[R, L] int64, padded on the right."""
    labels: torch.Tensor
    """[R, L] int64: the next token where it belongs to an answer, else ``IGNORE``."""
    positions: torch.Tensor
    """[3, R, L] int64: time, height, width."""
    pictures: torch.Tensor
    """[P] int64: indices into the scenes that were talked about, in the order of ``ids``."""


def patchify(picture: Image.Image) -> np.ndarray:
    """[64, 1176] float32: the layout of the Qwen2-VL image processor for 112 x 112 pixels."""
    pixels = np.asarray(picture, dtype=np.float32) / 127.5 - 1.0
    half = PATCHES // MERGE
    blocks = pixels.reshape(half, MERGE, PATCH, half, MERGE, PATCH, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
    frames = np.broadcast_to(blocks, (*blocks.shape[:5], 2, PATCH, PATCH))
    return frames.reshape(PATCHES * PATCHES, CHANNELS)


def photograph(rng: np.random.Generator, scene: Scene) -> Image.Image:
    """A drawing of random size and smoothness, resized as the image processor does."""
    size = NATIVE_SIZE if rng.random() < 0.3 else int(rng.integers(72, 420))
    drawing = render(scene, size=size, rng=rng, smoothing=int(rng.integers(1, 4)))
    return drawing.resize((NATIVE_SIZE, NATIVE_SIZE), Image.Resampling.BICUBIC)


def scene_traits(scene: Scene) -> np.ndarray:
    """[16, 4] int64: per cell, in reading order, the classes of the auxiliary heads."""
    rows, columns = np.divmod(np.arange(GRID * GRID), GRID)
    traits = np.stack([np.zeros_like(rows), np.zeros_like(rows), columns, rows], axis=1)
    for shape in scene:
        colour, form = list(COLOURS).index(shape.colour), SHAPES.index(shape.shape)
        traits[shape.row * GRID + shape.column, :2] = 1 + colour, 1 + form
    return traits


def draw(rng: np.random.Generator, scenes: Sequence[Scene]) -> torch.Tensor:
    """[scenes, 64, 1176] float32: patches of a photograph of each."""
    return torch.from_numpy(np.stack([patchify(photograph(rng, scene)) for scene in scenes]))


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

    def batches(
        self, rng: np.random.Generator, scenes: Sequence[Scene], *, rows: int, count: int, mix: Mix
    ) -> Iterator[Batch]:
        """``count`` batches of ``rows`` chats about ``scenes``, alike in length to save padding."""
        chats = [random_chat(rng, scenes, mix) for _ in range(rows * count)]
        encoded = sorted(
            ((*self.encode(chat), chat) for chat in chats), key=lambda entry: len(entry[0])
        )
        index = {scene: number for number, scene in enumerate(scenes)}
        for start in rng.permutation(count) * rows:
            yield self._batch(encoded[start : start + rows], index)

    def _batch(
        self, encoded: Sequence[tuple[list[int], list[int], Chat]], index: dict[Scene, int]
    ) -> Batch:
        rows, length = len(encoded), max(len(ids) for ids, _, _ in encoded)
        ids = np.zeros((rows, length), dtype=np.int64)
        labels = np.full((rows, length), IGNORE, dtype=np.int64)
        positions = np.zeros((3, rows, length), dtype=np.int64)
        for row, (tokens, wanted, _) in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            labels[row, : len(tokens)] = wanted
            positions[:, row, : len(tokens)] = self.positions(tokens)
        shown = [
            index[scene] for *_, chat in encoded for turn in chat.turns for scene in turn.scenes
        ]
        return Batch(
            ids=torch.from_numpy(ids),
            labels=torch.from_numpy(labels),
            positions=torch.from_numpy(positions),
            pictures=torch.tensor(shown, dtype=torch.int64),
        )
