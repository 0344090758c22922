"""The training loop: answers, plus what each image token sees."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from tools.demo_vlm.batches import IGNORE, PATCHES, Batch, Encoder
from tools.demo_vlm.chats import corpus
from tools.demo_vlm.model import CELLS, KINDS, Trainee, make_config
from tools.demo_vlm.tokens import train_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long and how fast to train."""

    seed: int
    minutes: float
    """Wall time at which the learning rate reaches zero, if ``steps`` have not been done before."""
    steps: int = 4000
    rows: int = 32
    learning_rate: float = 1.5e-3
    warmup: int = 100


def losses(trainee: Trainee, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss of the answers' tokens, and of the auxiliary heads (thrown away later)."""
    hidden, tokens = trainee(batch.ids, batch.positions, batch.patches)
    learned = batch.labels != IGNORE
    logits = trainee.model.lm_head(hidden[learned])
    answer = functional.cross_entropy(logits, batch.labels[learned])
    kind = functional.cross_entropy(trainee.kind_head(tokens).view(-1, KINDS), batch.kinds.view(-1))
    cells = torch.arange(CELLS).repeat(len(tokens))
    cell = functional.cross_entropy(trainee.cell_head(tokens).view(-1, CELLS), cells)
    return answer, kind + 0.3 * cell


def _rate(plan: Plan, step: int, started: float) -> float:
    """Warm up, then a cosine over the steps, or over the minutes if those are over sooner."""
    progress = max(step / plan.steps, (time.monotonic() - started) / (60 * plan.minutes))
    ramp = min(1.0, (step + 1) / plan.warmup)
    return plan.learning_rate * ramp * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _optimizer(trainee: Trainee, plan: Plan) -> torch.optim.AdamW:
    matrices = [p for p in trainee.parameters() if p.ndim > 1]
    vectors = [p for p in trainee.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}],
        lr=plan.learning_rate,
        betas=(0.9, 0.98),
    )


def train(plan: Plan) -> tuple[Trainee, Tokenizer]:
    """Trains from nothing; the same plan gives the same weights where torch allows it."""
    torch.manual_seed(plan.seed)
    rng = np.random.default_rng(plan.seed)
    tokenizer = train_tokenizer(corpus(np.random.default_rng(plan.seed), 4000))
    encoder = Encoder(tokenizer)
    config = make_config(tokenizer.get_vocab())
    trainee = Trainee(config, grid=(PATCHES, PATCHES))
    optimizer = _optimizer(trainee, plan)
    started, sums = time.monotonic(), np.zeros(2)
    for step, batch in zip(range(plan.steps), encoder.batches(rng, plan.rows), strict=False):
        rate = _rate(plan, step, started)
        if rate == 0.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate
        answer, sight = losses(trainee, batch)
        optimizer.zero_grad(set_to_none=True)
        (answer + sight).backward()
        torch.nn.utils.clip_grad_norm_(trainee.parameters(), 1.0)
        optimizer.step()
        sums += (answer.item(), sight.item())
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            a, s = sums / 50
            print(f"step {step + 1} {seconds:.0f} s: answers {a:.4f} sight {s:.4f}", flush=True)
            sums[:] = 0
    return trainee, tokenizer
