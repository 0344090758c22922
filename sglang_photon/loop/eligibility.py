"""Which loop serves a configuration, as a pure function with a reason.

Photon's loop runs what is proven to give the same tokens, and nothing else. Everything that is not
listed here as a reason is in: radix cache on and off, pages, chunked and mixed prefill, priorities,
LoRA, penalties, biases, stop conditions, logprobs, grammars, sessions, retraction, embeddings,
tensor and data parallel.
"""

from __future__ import annotations

from dataclasses import dataclass

PHOTON = "photon"
SGLANG = "sglang"
BLOCKING = "blocking"


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """What of a server's configuration decides about the loop; each field a plain yes or no.

    A field that is true makes the loop ineligible, except `overlap`.
    """

    overlap: bool = True
    speculative: bool = False
    pipeline_parallel: bool = False
    disaggregated: bool = False
    diffusion: bool = False
    multiplexed: bool = False
    hisparse: bool = False
    attention_data_parallel: bool = False
    context_parallel: bool = False
    two_batch_overlap: bool = False
    hierarchical_cache: bool = False
    external_cache: bool = False
    unified_memory: bool = False
    state_space: bool = False
    sliding_window_pool: bool = False
    encoder_decoder: bool = False
    ngram_embedding: bool = False
    watermark: bool = False
    routed_experts: bool = False
    elastic_experts: bool = False
    confidential_computing: bool = False
    forward_metrics: bool = False
    mlx: bool = False
    scripted: bool = False
    unmeasured_device: bool = False


REASONS = {
    "speculative": "speculative decoding brings its own overlap",
    "pipeline_parallel": "pipeline parallelism has its own loop",
    "disaggregated": "prefill/decode disaggregation has its own loops",
    "diffusion": "diffusion language models decode in blocks",
    "multiplexed": "prefill/decode multiplexing has its own loop",
    "hisparse": "hierarchical sparse attention stages requests between prefill and decode",
    "attention_data_parallel": "attention data parallelism must keep its ranks in step",
    "context_parallel": "context parallelism is not proven with two slots",
    "two_batch_overlap": "two-batch overlap splits every batch by itself",
    "hierarchical_cache": "the hierarchical cache is not proven with two slots",
    "external_cache": "an external KV cache is not proven with two slots",
    "unified_memory": "the unified memory pool moves pages between steps",
    "state_space": "state-space layers keep their state outside the KV pages",
    "sliding_window_pool": "a sliding-window pool frees pages while steps are in flight",
    "encoder_decoder": "encoder-decoder models are not proven with two slots",
    "ngram_embedding": "n-gram embeddings need the last token on the host",
    "watermark": "watermarking needs the last tokens on the host",
    "routed_experts": "returning routed experts is not proven with two slots",
    "elastic_experts": "elastic expert parallelism changes the ranks between steps",
    "confidential_computing": "confidential computing copies results in a thread of its own",
    "forward_metrics": "forward-pass metrics are measured around a blocking forward",
    "mlx": "MLX has its own overlap loop",
    "scripted": "a scripted test runtime drives the scheduler",
    "unmeasured_device": "two slots are not measured on this device (--photon-loop photon tries)",
}
"""Field of `LoopFacts` to the sentence that the log and the metrics show."""


@dataclass(frozen=True, kw_only=True)
class LoopChoice:
    """The loop that runs, and why.

    Attributes:
        loop: `photon`, `sglang` or `blocking`.
        reason: a clause that follows "because".
    """

    loop: str
    reason: str


def choose_loop(facts: LoopFacts, *, insist: bool = False) -> LoopChoice:
    """The fastest loop that is proven for a configuration.

    With several reasons against Photon's loop, the first in the order of `REASONS` is given.

    Args:
        facts: the configuration.
        insist: Photon's loop was asked for by name: a device that nobody has measured will do.
    """
    if not facts.overlap:
        return LoopChoice(loop=BLOCKING, reason="--disable-overlap-schedule is set")
    for name, sentence in REASONS.items():
        if getattr(facts, name) and not (insist and name == "unmeasured_device"):
            return LoopChoice(loop=SGLANG, reason=sentence)
    return LoopChoice(loop=PHOTON, reason="every feature in use is proven with two slots")
