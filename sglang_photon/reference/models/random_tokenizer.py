"""A tokenizer of any vocabulary size, made without a model hub.

Random weights answer with random token ids, so what the tokenizer must give is: every text can be
encoded (byte-level BPE), every id decodes to visible text, the special tokens and the chat format
are Qwen's, and the same size gives the same file on every machine. Ids are laid out as

    0 .. 13          special tokens         never produced greedily (see random_weights)
    14 .. 703        bytes and merges       trained on the text below
    704 .. vocab - 1 made-up words          no merge leads to them: only the model produces them
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen's special tokens; a token's id is its position here."""

_TRAINED_SIZE = 704

# Qwen2's word boundaries, as its tokenizer class applies them.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type in ('video', 'video_url') -%}
{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'text' -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

_TEXT = """\
Describe the picture. What is in the image? There is a red circle above a blue square, and a green
triangle is on the left of the table. How many people are walking down the street in the rain?
Answer with a short sentence, then give the box as JSON with the keys x, y, width and height.
The quick brown fox jumps over the lazy dog while seven children are watching.
You are a helpful assistant. Please write a story about an old sailor who finds a letter in a
bottle, and explain why the sky is blue during the day but red in the evening. List three reasons
for learning another language. Translate the following text, summarise it, and tell me which parts
should be read first. Thank you for your question; here is what I think.
When a server receives a request, the scheduler decides which step runs next on the device. Each
step computes one token for every row of the batch, and its result is sent to the user as soon as
it has arrived. Reading, planning and sending must never make the device wait.
def answer(question, numbers):
    total = 0
    for value in numbers:
        total += value
    return {'question': question, 'total': total, 'mean': total / len(numbers)}
{"label": "circle", "color": "red", "box": [10, 20, 30, 40], "point": {"x": 1, "y": 2}}
"""


def write(folder: Path, *, vocab: int, context: int) -> None:
    """Write `tokenizer.json`, its config and the chat template into `folder`.

    Args:
        vocab: entries, special tokens included; at least `random_spec.MIN_VOCAB`.
        context: longest sequence in tokens, for the tokenizer's own warning.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / "tokenizer.json").write_text(_tokenizer_json(vocab), encoding="utf-8")
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": context,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")


def _tokenizer_json(vocab: int) -> str:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TRAINED_SIZE,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    description = json.loads(tokenizer.to_str())
    entries: dict[str, int] = description["model"]["vocab"]
    number = 0
    while len(entries) < vocab:
        entries.setdefault(_word(number), len(entries))
        number += 1
    return json.dumps(description, ensure_ascii=False)


def _word(number: int) -> str:
    """The made-up word of this number: a leading space (spelled as byte-level BPE does) and two
    or more syllables, least significant first."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    syllables = []
    for place in range(8):
        if place >= 2 and number == 0:
            break
        number, digit = divmod(number, len(consonants) * len(vowels))
        syllables.append(consonants[digit // len(vowels)] + vowels[digit % len(vowels)])
    return "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}" + "".join(syllables)
