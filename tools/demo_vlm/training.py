"""Training in three stages: to see, to answer, and to answer sharply.

Learning both at once takes several times as long: answers give the vision tower a weak signal, and
a tower that still moves gives the language model none to rely on. So the tower first learns to
name what each image token holds (``see``) and to write it as the sum of one vector per trait, which
is why combinations it never saw read like the others. Then it is frozen, and the language model
learns conversations about an album of pictures seen once (``answer``); the album is drawn anew
every few hundred steps. The last stage (``sharpen``) does the same with a new, lower rate and more
of the questions that are learned last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from sglang_photon.reference.models.pictures import COLOURS, SHAPES, random_scene
from tools.demo_vlm.batches import IGNORE, PATCHES, Batch, Encoder, draw, scene_traits
from tools.demo_vlm.chats import Mix, corpus, random_scenes
from tools.demo_vlm.model import Trainee, make_config
from tools.demo_vlm.tokens import train_tokenizer

_CODE_WEIGHT = 0.25
_REPORT_EVERY = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """How long and how fast to train; ``minutes`` ends it if the steps have not before."""

    name: str
    steps: int
    rows: int
    rate: float
    minutes: float


class Schedule:
    """Optimizers whose rate warms up and falls along a cosine over a stage's steps, or its minutes.

    Muon for the matrices inside the blocks, AdamW for the rest: in as many steps Muon comes about
    half as far again (K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
    2024).
    """

    _WARMUP = 100

    def __init__(self, stage: Stage, *modules: nn.Module) -> None:
        self._stage = stage
        named = [entry for module in modules for entry in module.named_parameters()]
        self._parameters = [parameter for _, parameter in named]
        inner = [parameter for name, parameter in named if _is_inner(name, parameter)]
        taken = {id(parameter) for parameter in inner}
        outer = [parameter for parameter in self._parameters if id(parameter) not in taken]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                inner,
                lr=stage.rate,
                momentum=0.95,
                weight_decay=0.02,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(outer, lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self._started = time.monotonic()
        self._step = 0
        self._sum = 0.0

    @property
    def progress(self) -> float:
        """0 to 1, the end of the stage."""
        seconds = time.monotonic() - self._started
        return min(1.0, max(self._step / self._stage.steps, seconds / (60 * self._stage.minutes)))

    def step(self, loss: torch.Tensor) -> None:
        """One optimizer step down ``loss``; prints the mean loss now and then."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        ramp = min(1.0, (self._step + 1) / self._WARMUP)
        rate = self._stage.rate * ramp * 0.5 * (1 + math.cos(math.pi * self.progress))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._step += 1
        self._sum += loss.item()
        if self._step % _REPORT_EVERY == 0:
            seconds = time.monotonic() - self._started
            mean = self._sum / _REPORT_EVERY
            print(f"{self._stage.name} {self._step} {seconds:.0f} s: {mean:.4f}", flush=True)
            self._sum = 0.0


def _is_inner(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and ("blocks." in name or "layers." in name)


def _sight_loss(
    trainee: Trainee, patches: torch.Tensor, traits: torch.Tensor, codes: list[torch.Tensor]
) -> torch.Tensor:
    """Naming the traits (cross entropy) and writing their codes (squared distance).

    ``traits`` [pictures, 16, 4]; ``codes`` as ``Trainee.codes`` gives them.
    """
    tokens = trainee.see(patches)
    loss = torch.zeros(())
    target = torch.zeros_like(tokens)
    for index, scores in enumerate(trainee.traits(tokens)):
        wanted = traits[:, :, index]
        loss = loss + functional.cross_entropy(scores, wanted.reshape(-1))
        target = target + codes[index][wanted]
    return loss + _CODE_WEIGHT * (tokens - target).square().sum(-1).mean()


def learn_to_see(
    trainee: Trainee, rng: np.random.Generator, stage: Stage, codes: list[torch.Tensor]
) -> None:
    """Trains the vision tower on crowded pictures, up to eight shapes, to name every cell.

    Never on empty ones: a uniform picture has no positions to see.
    """
    schedule = Schedule(stage, trainee.model.model.visual, trainee.heads)
    while schedule.progress < 1.0:
        scenes = [random_scene(rng, count=int(rng.integers(1, 9))) for _ in range(stage.rows)]
        traits = torch.from_numpy(np.stack([scene_traits(scene) for scene in scenes]))
        schedule.step(_sight_loss(trainee, draw(rng, scenes), traits, codes))


def _answer_loss(trainee: Trainee, batch: Batch, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the answers' tokens; ``tokens`` are those of the batch's pictures.

    A token of an answer of n tokens weighs n ** -0.25: short answers are not drowned by long ones,
    and the few digits of a long JSON answer still count.
    """
    hidden = trainee(batch.ids, batch.positions, tokens)
    learned = batch.labels != IGNORE
    losses = functional.cross_entropy(
        trainee.model.lm_head(hidden[learned]), batch.labels[learned], reduction="none"
    )
    begins = learned & ~functional.pad(learned, (1, 0))[:, :-1]
    answer = begins.flatten().cumsum(0)[learned.flatten()] - 1
    weights = answer.bincount()[answer].float() ** -0.25
    return (losses * weights).sum() / weights.sum()


def _general(progress: float) -> Mix:
    """Everything alike; one question at first, and up to four towards the end."""
    return Mix(most=1 + int(4 * max(0.0, progress - 0.25)))


def _sharp(progress: float) -> Mix:
    """More of what is learned last: to find a shape by its name and to say where it is."""
    weights = {"describe": 0.5, "exists": 0.5, "where": 2.0, "point": 3.0, "box": 3.0}
    return Mix(most=1 + int(3 * progress), tasks=weights, pairs=0.4, pair_questions=0.85)


def _albums(
    trainee: Trainee,
    rng: np.random.Generator,
    encoder: Encoder,
    schedule: Schedule,
    rows: int,
    mix: Callable[[float], Mix],
) -> Iterator[tuple[Batch, torch.Tensor]]:
    """Batches about an album of 512 pictures, with their image tokens, until the stage ends."""
    while True:
        scenes = list(dict.fromkeys(random_scenes(rng, 512)))
        with torch.no_grad():
            tokens = torch.cat([trainee.see(part) for part in draw(rng, scenes).split(64)])
        for _ in range(20):
            now = mix(schedule.progress)
            for batch in encoder.batches(rng, scenes, rows=rows, count=10, mix=now):
                if schedule.progress >= 1.0:
                    return
                yield batch, tokens[batch.pictures]


def learn_to_answer(
    trainee: Trainee,
    rng: np.random.Generator,
    encoder: Encoder,
    stage: Stage,
    mix: Callable[[float], Mix],
) -> None:
    """Trains the language model; the vision tower stays as it is."""
    schedule = Schedule(stage, trainee.model.model.language_model)
    for batch, tokens in _albums(trainee, rng, encoder, schedule, stage.rows, mix):
        schedule.step(_answer_loss(trainee, batch, tokens))


def train(seed: int, minutes: float) -> tuple[Trainee, Tokenizer]:
    """Trains from nothing; the same seed gives the same weights where torch allows it."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    tokenizer = train_tokenizer(corpus(np.random.default_rng(seed), 4000))
    trainee = Trainee(make_config(tokenizer.get_vocab()), grid=(PATCHES, PATCHES))
    see = Stage(name="see", steps=900, rows=32, rate=2e-3, minutes=0.15 * minutes)
    answer = Stage(name="answer", steps=8000, rows=32, rate=3e-3, minutes=0.65 * minutes)
    sharpen = Stage(name="sharpen", steps=2500, rows=32, rate=1.5e-3, minutes=0.2 * minutes)
    words = [tokenizer.encode(f" {word}").ids[-1] for word in (*COLOURS, *SHAPES)]
    learn_to_see(trainee, rng, see, trainee.codes(words))
    learn_to_answer(trainee, rng, Encoder(tokenizer), answer, _general)
    learn_to_answer(trainee, rng, Encoder(tokenizer), sharpen, _sharp)
    return trainee, tokenizer
