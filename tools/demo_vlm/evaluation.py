"""Measures the exported model on held-out combinations, through transformers' own front door."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from sglang_photon.reference.models.pictures import PAIR_TASKS, TASKS, Example, heldout

PICTURES = 500
SEED = 2026
LARGE = 1024
"""Side in pixels of the pictures of the last row."""
_LONGEST_ANSWER = 96
_ROWS = 125


def _messages(example: Example) -> list[dict[str, Any]]:
    images = [{"type": "image", "image": picture} for picture in example.pictures]
    text = {"type": "text", "text": example.question}
    return [{"role": "user", "content": [*images, text]}]


def _encode(processor: Any, example: Example) -> dict[str, torch.Tensor]:
    text = processor.apply_chat_template(_messages(example), add_generation_prompt=True)
    return dict(processor(text=[text], images=list(example.pictures), return_tensors="pt"))


def _generate(model: Any, prompts: Sequence[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Greedy answers [rows, tokens] to prompts of one length."""
    batch = {key: torch.cat([prompt[key] for prompt in prompts]) for key in prompts[0]}
    with torch.inference_mode():
        output = model.generate(**batch, max_new_tokens=_LONGEST_ANSWER, do_sample=False)
    answers: torch.Tensor = output[:, batch["input_ids"].shape[1] :]
    return answers


def right_answers(model: Any, processor: Any, examples: Sequence[Example]) -> int:
    """How many examples the model answers exactly, ending the answer itself."""
    prompts = [_encode(processor, example) for example in examples]
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[prompt["input_ids"].shape[1]].append(index)
    right = 0
    for indices in by_length.values():
        for start in range(0, len(indices), _ROWS):
            chosen = indices[start : start + _ROWS]
            answers = _generate(model, [prompts[index] for index in chosen])
            for index, text in zip(chosen, processor.tokenizer.batch_decode(answers), strict=True):
                right += text.split("<|endoftext|>")[0] == f"{examples[index].answer}<|im_end|>"
    return right


def _load(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    )
    return model.eval(), processor


def accuracy_table(folder: Path) -> str:
    """Markdown: exact greedy answers per task, in float32 and in bfloat16."""
    suites = {task: list(heldout(PICTURES, SEED, tasks=(task,))) for task in (*TASKS, *PAIR_TASKS)}
    suites[f"all, {LARGE} x {LARGE}"] = list(heldout(PICTURES, SEED + 1, size=LARGE))
    columns = []
    for dtype in (torch.float32, torch.bfloat16):
        model, processor = _load(folder, dtype)
        columns.append([right_answers(model, processor, suite) for suite in suites.values()])
    lines = [
        f"| task ({PICTURES} held-out pictures each) | float32 | bfloat16 |",
        "| --- | ---: | ---: |",
    ]
    for name, *counts in zip(suites, *columns, strict=True):
        shares = " | ".join(f"{100 * count / PICTURES:.1f} %" for count in counts)
        lines.append(f"| {name} | {shares} |")
    return "\n".join(lines)
