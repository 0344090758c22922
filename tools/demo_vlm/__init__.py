"""Training of the demo vision-language model: conversations, tokenizer, model, loop, measure.

transformers imports torchvision, whose compiled library is absent beside a CPU build of torch; the
reference operations stand in for it, before any module here imports transformers.
"""

from __future__ import annotations

from sglang_photon.reference import install

install()
